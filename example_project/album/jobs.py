"""What the pages show of the queue: numbers, dead letters, and the job of one photograph."""

from __future__ import annotations

from nobroker_django import Job, JobNotFoundError, JobState, QueueStats
from nobroker_django.queues import get_queue


def find_job(job_id: str) -> Job | None:
    """The job of that id, or None if there is none or the queue does not know it (any more)."""
    if not job_id:
        return None
    try:
        return get_queue().get(job_id)
    except JobNotFoundError:
        return None


def dead_job(job_id: str) -> Job | None:
    """The job of that id if it is a dead letter."""
    job = find_job(job_id)
    return job if job is not None and job.state is JobState.DEAD else None


def stats() -> QueueStats:
    """How many jobs are in which state."""
    return get_queue().stats()


def dead_letters(limit: int) -> list[Job]:
    """The jobs that ran out of attempts."""
    return get_queue().dlq(limit=limit)
