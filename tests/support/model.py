"""The queue as a plain dictionary: what each verb should do, without files, records or projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VISIBILITY = 30.0
RETENTION = 50.0
AT_ONCE = 0.0  # eligible whatever the clock says


def backoff(attempts: int) -> float:
    """The delays of ``BackoffPolicy(base=2, factor=2, max_delay=20, jitter=0)``."""
    return float(min(20.0, 2.0 * 2.0 ** (attempts - 1)))


@dataclass
class ModelJob:
    """One job. ``rank`` is its place among jobs of its priority."""

    id: str
    payload: Any
    priority: int
    max_attempts: int
    number: int
    rank: float
    available_at: float
    state: str = "ready"
    attempts: int = 0
    token: str | None = None
    deadline: float = 0.0
    keep_until: float = 0.0
    failures: int = 0

    def seen(self) -> tuple[Any, ...]:
        """What a caller can see of it."""
        return (
            self.id,
            self.payload,
            self.priority,
            self.state,
            self.attempts,
            self.max_attempts,
            min(self.failures, 20),
        )


class Model:
    """All jobs of a queue."""

    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        self.now = 1000.0
        self.clock = 0.0
        self.total = 0

    def listed(self) -> list[ModelJob]:
        """In insertion order."""
        return sorted(self.jobs.values(), key=lambda job: job.number)

    def _at_once(self) -> float:
        self.clock = max(self.clock, self.now)
        return self.clock

    def known(self, job_id: str) -> ModelJob | None:
        """The job under this id, unless it is finished and its retention has passed."""
        job = self.jobs.get(job_id)
        return None if job is None or (job.state == "done" and job.keep_until <= self.now) else job

    def enqueue(self, job_id: str, payload: Any, priority: int, delay: float, max_attempts: int) -> None:
        rank = self.now + delay if delay else self._at_once()
        self.total += 1
        when = rank if delay else AT_ONCE
        self.jobs[job_id] = ModelJob(job_id, payload, priority, max_attempts, self.total, rank, when)

    def lease(self, count: int) -> list[ModelJob]:
        """Take back what has run out, then take the first ``count``."""
        expired = [job for job in self.jobs.values() if job.state == "leased" and job.deadline <= self.now]
        for job in expired:
            self.fail(job, None)
        due = [job for job in self.jobs.values() if job.state == "ready" and job.available_at <= self.now]
        due.sort(key=lambda job: (-job.priority, job.rank, job.number))
        for job in due[:count]:
            job.state, job.attempts, job.deadline = "leased", job.attempts + 1, self.now + VISIBILITY
        return due[:count]

    def fail(self, job: ModelJob, delay: float | None) -> None:
        """The attempt failed; ``delay`` None: the backoff."""
        job.failures += 1
        job.token = None
        if job.attempts >= job.max_attempts:
            job.state = "dead"
            return
        pause = backoff(job.attempts) if delay is None else delay
        job.state = "ready"
        job.rank = self.now + pause if pause else self._at_once()
        job.available_at = job.rank if pause else AT_ONCE

    def ack(self, job: ModelJob) -> None:
        job.state, job.keep_until = "done", self.now + RETENTION

    def release(self, job: ModelJob) -> None:
        job.state, job.attempts, job.token = "ready", job.attempts - 1, None

    def bury(self, job: ModelJob) -> None:
        job.state, job.token = "dead", None
        job.failures += 1

    def requeue_dead(self) -> int:
        dead = [job for job in self.jobs.values() if job.state == "dead"]
        for job in dead:
            job.state, job.attempts = "ready", 0
            job.rank, job.available_at = self._at_once(), AT_ONCE
        return len(dead)

    def compact(self) -> None:
        gone = [job.id for job in self.jobs.values() if job.state == "done" and job.keep_until <= self.now]
        for job_id in gone:
            del self.jobs[job_id]
