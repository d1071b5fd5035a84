"""What a caller holds of an enqueued job: its id, whether it was new, how it stands, what it returned.

Shaped like ``TaskResult`` of Django's task framework: ``status`` has its four values and changes only on
``refresh()``. Invariant: the id never changes; everything else is a snapshot of the last look into the queue.
"""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from asgiref.sync import sync_to_async

from .engine.errors import InvalidOptionError, JobConflictError, NobrokerError
from .engine.job import Job, JobError, JobState
from .queues import get_queue

if TYPE_CHECKING:
    from .decorators import Task

R = TypeVar("R")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25


class JobStatus(str, enum.Enum):
    """The values of Django's ``TaskResultStatus``. A job that waits for another attempt is ``READY``."""

    READY = "READY"
    RUNNING = "RUNNING"
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"

    def __str__(self) -> str:
        return self.value


class ResultNotAvailableError(NobrokerError, ValueError):
    """The job has not returned a value: it is not finished, or it failed."""

    stored = True


class WaitTimeoutError(NobrokerError, TimeoutError):
    """The job did not finish in the time that the caller wanted to wait; it stays in the queue."""

    stored = True


class JobResult(Generic[R]):
    """One enqueued call of a task that returns ``R``.

    ``id`` is known at once. ``created`` is True for a new job, False where the id was known already, and None
    while the job waits for the commit of its transaction. ``conflict`` is the error, found at that commit, of an
    id that is taken by other work.
    """

    def __init__(self, task: Task[Any, R], queue_name: str, job_id: str, job: Job | None = None) -> None:
        self.id = job_id
        self.task_name = task.name
        self._return_values = task.return_values
        self.queue_name = queue_name
        self.created: bool | None = job.created if job is not None else None
        self.conflict: JobConflictError | None = None
        self._job = job

    def __repr__(self) -> str:
        return f"<JobResult {self.id} of {self.task_name} in {self.queue_name}: {self.status}>"

    @property
    def status(self) -> JobStatus:
        """How the job stood at the last look."""
        if self.conflict is not None:
            return JobStatus.FAILED
        job = self._job
        if job is None or job.state is JobState.READY:
            return JobStatus.READY
        if job.state is JobState.LEASED:
            return JobStatus.RUNNING
        return JobStatus.SUCCESSFUL if _succeeded(job) else JobStatus.FAILED

    @property
    def is_finished(self) -> bool:
        """Whether no further attempt will be made, unless a dead letter is requeued."""
        return self.status in (JobStatus.SUCCESSFUL, JobStatus.FAILED)

    @property
    def attempts(self) -> int:
        """Deliveries to a worker so far."""
        return self._job.attempts if self._job is not None else 0

    @property
    def errors(self) -> list[JobError]:
        """The failed attempts, oldest first."""
        return list(self._job.errors) if self._job is not None else []

    @property
    def return_value(self) -> R:
        """What the task returned, in the type of its return annotation where that is one that arguments may have.

        Raises:
            ResultNotAvailableError: the job is not finished or failed.
        """
        if self.status is not JobStatus.SUCCESSFUL or self._job is None:
            what = "failed" if self.is_finished else "has not finished"
            raise ResultNotAvailableError(f"job {self.id} {what} ({self.status}): there is no return value")
        value: R = self._return_values.from_json(self._job.result)
        return value

    def refresh(self) -> None:
        """Look into the queue again.

        Raises:
            JobNotFoundError: not written yet (or rolled back), or finished and compacted away.
            JobConflictError: the id belongs to other work (found at the commit).
        """
        if self.conflict is not None:
            raise self.conflict
        self._job = get_queue(self.queue_name).get(self.id)

    async def arefresh(self) -> None:
        """``refresh()`` without blocking the event loop."""
        await sync_to_async(self.refresh)()

    def wait(self, timeout: float | None = None) -> Self:
        """Refresh until the job is finished.

        Args:
            timeout: seconds to wait at most; None waits for ever, 0 looks once.

        Raises:
            WaitTimeoutError: not finished in time.
            JobNotFoundError: as ``refresh()``; in the transaction that enqueued the job it is not there yet.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            self.refresh()
            if self.is_finished:
                return self
            if end is not None:
                left = end - time.monotonic()
                if left <= 0:
                    raise WaitTimeoutError(
                        f"job {self.id} is {self.status} after {timeout:g} s; it stays in queue {self.queue_name!r}"
                    )
                pause = min(pause, left)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _written(self, job: Job) -> None:
        """The job is in the queue now (called after the commit)."""
        self.created = job.created
        self._job = job

    def _refused(self, error: JobConflictError) -> None:
        """The job was not stored (called after the commit)."""
        self.created = False
        self.conflict = error


def load_result(task: Task[Any, R], queue_name: str, job_id: str) -> JobResult[R]:
    """The result of a job that was enqueued before, perhaps by another process.

    Raises:
        JobNotFoundError: the queue knows no such job.
        InvalidOptionError: the job belongs to another task, or there is no such queue.
    """
    job = get_queue(queue_name).get(job_id)
    name = job.payload.get("task") if isinstance(job.payload, dict) else None
    if name not in (task.name, *task.aliases):
        raise InvalidOptionError("job_id", f"job {job_id!r} of queue {queue_name!r} is no call of {task.name}")
    result: JobResult[R] = JobResult(task, queue_name, job_id, job)
    return result


def _succeeded(job: Job) -> bool:
    return job.state is JobState.DONE and job.outcome in (None, "succeeded")
