"""``Job`` and ``DeadLetter``: the projections of the queues as models of the admin, for reading alone.

No table belongs to them, in no database of the project: they are unmanaged, and their manager reads the projection of
one queue through a connection of its own (``admin_support.connection``). To enqueue, change and count jobs use the
queue (``nobroker_django.queues.get_queue``), which never lags behind; these models may.

The permissions are ``view_job`` and ``view_deadletter``.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from django.db import models

from .admin_support.fields import JobKey
from .admin_support.querysets import DeadLetterManager, ProjectionManager
from .admin_support.showing import printable
from .engine.errors import ReadOnlyError
from .engine.schema import COLUMNS
from .engine.transitions import DEAD, DONE, DUE, LEASED, WAITING, Row


class State(models.IntegerChoices):
    """The states of a row; whether a waiting one is delayed or ready depends on the time."""

    WAITING = WAITING, "waiting"
    DUE = DUE, "ready"
    LEASED = LEASED, "leased"
    DONE = DONE, "done"
    DEAD = DEAD, "dead"


class Job(models.Model):
    """One job as the projection of its queue has it. Times are Unix seconds, offsets bytes in the live log."""

    key = JobKey("job", max_length=300, primary_key=True, db_column="id")
    seq = models.BigIntegerField(unique=True)
    state = models.IntegerField(choices=State)
    priority = models.IntegerField()
    rank = models.FloatField()
    available_at = models.FloatField()
    waits = models.IntegerField()
    enqueued_at = models.FloatField()
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    lease_deadline = models.FloatField(null=True)
    lease_token = models.TextField(null=True)  # noqa: DJ001
    holder = models.TextField(null=True)  # noqa: DJ001
    started_at = models.FloatField(null=True)
    extensions = models.IntegerField()
    deaths = models.IntegerField()
    visibility_timeout = models.FloatField(null=True)
    payload_offset = models.BigIntegerField()
    result_offset = models.BigIntegerField()
    failures = models.IntegerField()
    finished_at = models.FloatField(null=True)
    keep_until = models.FloatField(null=True)
    task = models.TextField(null=True)  # noqa: DJ001
    error_class = models.TextField(null=True)  # noqa: DJ001
    last_error = models.TextField(null=True)  # noqa: DJ001

    objects: ClassVar[ProjectionManager[Any]] = ProjectionManager()

    class Meta:
        managed = False
        db_table = "nobroker_django_job"
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name = "job"
        verbose_name_plural = "jobs"

    def __str__(self) -> str:
        return printable(self.job_id)

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused.

        Raises:
            ReadOnlyError: always.
        """
        raise ReadOnlyError(self.queue)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused.

        Raises:
            ReadOnlyError: always.
        """
        raise ReadOnlyError(self.queue)

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return self.key.partition(":")[0]

    @property
    def job_id(self) -> str:
        """The id that the queue knows the job by."""
        return self.key.partition(":")[2]

    def row(self) -> Row:
        """The same for the engine."""
        values: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS if name != "id"}
        return Row(id=self.job_id, **values)


class DeadLetter(Job):
    """A job that is out of attempts."""

    objects: ClassVar[ProjectionManager[Any]] = DeadLetterManager()

    class Meta:
        proxy = True
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name = "dead letter"
        verbose_name_plural = "dead letters"
