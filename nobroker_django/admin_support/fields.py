"""The key of a job among all queues: ``QUEUE:ID``. The projection of a queue knows ids alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    StringField = models.CharField[str, str]
else:
    StringField = models.CharField


class JobKey(StringField):
    """A job's id in the file; in Python with the name of its queue and a colon before it."""

    def from_db_value(self, value: str, expression: Any, connection: Any) -> str:
        """The name of the queue comes from the connection."""
        return f"{connection.queue_name}:{value}"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """The id alone; of a key of another queue nothing, which no job has as its id."""
        value = super().get_db_prep_value(value, connection, prepared)
        if not isinstance(value, str):
            return value
        queue, _, job_id = value.partition(":")
        return job_id if queue == connection.queue_name else ""
