"""The running job in the project's log records: a filter for ``LOGGING``. Nothing is installed unasked."""

from __future__ import annotations

import logging

from .current import current_job

NO_JOB = "-"


class JobFilter(logging.Filter):
    """Gives each record the attributes ``job_id``, ``task``, ``queue`` and ``attempt``; ``"-"`` outside of a job.

    A record that has one of them keeps it (the worker's own lines about a job are written outside of it).
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Never leaves a record out."""
        job = current_job()
        for name in ("job_id", "task", "queue", "attempt"):
            if not hasattr(record, name):
                setattr(record, name, NO_JOB if job is None else getattr(job, name))
        return True
