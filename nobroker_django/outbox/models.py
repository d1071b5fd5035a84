"""The outbox's one table, in each database whose transactions enqueue jobs."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class OutboxRow(models.Model):
    """One enqueue call that may not be in the log yet. Keys rise in the order of the calls of a process.

    ``job_id`` and ``task`` are those of its first job, for people. Times are Unix seconds: ``called_at`` the call,
    ``known_until`` until when the row may be swept. ``problem`` says why it never can be; then it is left alone.
    """

    key = models.CharField(max_length=32, primary_key=True)
    queue = models.CharField(max_length=64)
    job_id = models.CharField(max_length=200)
    task = models.CharField(max_length=200)
    jobs = models.IntegerField()
    size_bytes = models.BigIntegerField()
    called_at = models.FloatField()
    known_until = models.FloatField()
    problem = models.TextField(default="", blank=True)
    content = models.BinaryField()

    objects: ClassVar[models.Manager[OutboxRow]] = models.Manager()

    class Meta:
        db_table = "nobroker_outbox"
        default_permissions = ("view",)
        verbose_name = "outbox row"
        verbose_name_plural = "outbox rows"

    def __str__(self) -> str:
        return f"{self.key} ({self.queue} {self.job_id})"
