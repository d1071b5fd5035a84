"""What a caller holds of an enqueued job: its id, whether it was new, how it stands, what it returned.

Where the project has Django's task framework, a ``JobResult`` is one of its ``TaskResult`` objects, with all of their
attributes; elsewhere it has the same ones. Invariant: the id never changes; everything else is a snapshot of the last
look into the queue, which ``refresh()`` repeats.
"""

from __future__ import annotations

import asyncio
import builtins
import enum
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from asgiref.sync import sync_to_async
from django.utils.module_loading import import_string

from . import compat, conf
from .datetimes import moment
from .engine import options as checks
from .engine.errors import InvalidOptionError, JobConflictError, JobNotFoundError, NobrokerError, storing_nothing
from .engine.inspection import queue_exists
from .engine.job import Job, JobError, JobState
from .memory import Memory, of_settings
from .queues import get_queue

if TYPE_CHECKING:
    from .decorators import Task

R = TypeVar("R")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25


if TYPE_CHECKING:
    # To a type checker the result is ours alone: its types are narrower than those of Django's frozen dataclass.
    class _TaskResult: ...

    class _TaskError: ...

    class _DoesNotExist(Exception): ...

else:
    _TaskResult, _TaskError, _DoesNotExist = compat.TaskResult, compat.TaskError, compat.TaskResultDoesNotExist

if compat.AVAILABLE and not TYPE_CHECKING:
    JobStatus = compat.TaskResultStatus
else:

    class JobStatus(str, enum.Enum):
        """The values of Django's ``TaskResultStatus``. A job that waits for another attempt is ``READY``."""

        READY = "READY"
        RUNNING = "RUNNING"
        SUCCESSFUL = "SUCCESSFUL"
        FAILED = "FAILED"

        def __str__(self) -> str:
            return self.value


class NoException(Exception):
    """In ``AttemptError.exception_class``: the attempt ended otherwise, its worker died or its lease was over."""


@dataclass(frozen=True, kw_only=True)
class AttemptError(_TaskError):
    """One failed attempt: a ``TaskError`` of Django's, and what is known beyond it.

    ``at`` is Unix time; ``error_class``, ``message`` and ``traceback`` are cut as the log has them.
    """

    exception_class_path: str
    traceback: str
    attempt: int
    at: float
    error_class: str | None
    message: str | None

    @property
    def exception_class(self) -> type[BaseException]:
        """The class, imported.

        Raises:
            ImportError: it is not there (any more), or not at the top of a module.
            ValueError: something else has that name.
        """
        found = import_string(self.exception_class_path)
        if not (isinstance(found, type) and issubclass(found, BaseException)):
            raise ValueError(f"{self.exception_class_path!r} is no exception class.")
        return found

    @classmethod
    def of(cls, error: JobError) -> Self:
        """The failed attempt of a job."""
        name = error.error_class or ""
        if "." not in name:
            known = isinstance(getattr(builtins, name, None), type)
            name = f"builtins.{name}" if known else f"{NoException.__module__}.{NoException.__qualname__}"
        return cls(
            exception_class_path=name,
            traceback=error.traceback or error.text or "",
            attempt=error.attempt,
            at=error.at,
            error_class=error.error_class,
            message=error.message,
        )


class ResultNotAvailableError(NobrokerError, ValueError):
    """The job has not returned a value: it is not finished, or it failed."""

    stored = True


class ResultNotFoundError(JobNotFoundError, _DoesNotExist):
    """The queue knows no such job (yet, or any more); also Django's ``TaskResultDoesNotExist``, where that is."""


class WaitTimeoutError(NobrokerError, TimeoutError):
    """The job did not finish in the time that the caller wanted to wait; it stays in the queue."""

    stored = True


class JobResult(_TaskResult, Generic[R]):
    """One enqueued call of a task that returns ``R``.

    ``id`` is known at once. ``created`` is True for a new job, False where the id was known already, and None
    while the job waits for the commit of its transaction. ``conflict`` is the error, found at that commit, of an
    id that is taken by other work. ``task`` is what was enqueued: an object of our ``@task``, or of Django's.
    ``backend`` is the alias in ``TASKS`` of the backend that announces the job, empty if there is none.
    """

    if not TYPE_CHECKING:
        __setattr__ = object.__setattr__  # Django's is frozen
        __delattr__ = object.__delattr__

    def __init__(
        self,
        task: Task[Any, R],
        queue_name: str,
        job_id: str,
        job: Job | None = None,
        *,
        payload: Any = None,
        memory: Memory | None = None,
    ) -> None:
        """Args: ``memory`` has the job in the place of the queue."""
        self.id = job_id
        self.task: Any = _shown(task, job)
        self.task_name = task.name
        self._return_values = task.return_values
        self.queue_name = queue_name
        self.backend: str = task.backend
        self.created: bool | None = job.created if job is not None else None
        self.conflict: JobConflictError | None = None
        self._payload = payload if job is None else job.payload
        self._job = job
        self._memory = memory
        self._running_here: tuple[int, str] | None = None  # which attempt this process runs, and its name

    def __repr__(self) -> str:
        return f"<JobResult {self.id} of {self.task_name} in {self.queue_name}: {self.status}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobResult) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self.id)

    def _facts(self) -> tuple[Any, ...]:
        times = (self.enqueued_at, self.last_attempted_at, self.finished_at)
        return self.id, self.queue_name, self.task, self.status, self.args, self.kwargs, times, self.errors

    def __reduce__(self) -> tuple[Any, ...]:
        kept = self.__dict__ | {"id": self.id, "task": self.task, "backend": self.backend}
        del kept["_return_values"], kept["_memory"]
        return _restored, (kept,)

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
    def errors(self) -> list[AttemptError]:
        """The failed attempts, oldest first."""
        return [AttemptError.of(error) for error in self._job.errors] if self._job is not None else []

    @property
    def args(self) -> list[Any]:
        """The positional arguments, as JSON has them."""
        args = self._payload.get("args") if isinstance(self._payload, dict) else None
        return list(args) if isinstance(args, list) else []

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, as JSON has them."""
        kwargs = self._payload.get("kwargs") if isinstance(self._payload, dict) else None
        return dict(kwargs) if isinstance(kwargs, dict) else {}

    @property
    def enqueued_at(self) -> datetime | None:
        """When the job was written; None while it waits for the commit."""
        return _moment(self._job.enqueued_at) if self._job is not None else None

    @property
    def started_at(self) -> datetime | None:
        """When the last attempt began, as far as that is recorded."""
        return _moment(self._job.started_at) if self._job is not None else None

    @property
    def last_attempted_at(self) -> datetime | None:
        """The same as ``started_at``."""
        return self.started_at

    @property
    def finished_at(self) -> datetime | None:
        """When the job succeeded, or became a dead letter."""
        return _moment(self._job.finished_at) if self._job is not None else None

    @property
    def worker_ids(self) -> list[str]:
        """Host and process id of the workers that have had the job, in the order of its attempts.

        There is one for each attempt of which its worker has told the end, and in the running task itself one for
        that. Of an attempt whose worker died, or lost its lease, there is none.
        """
        job = self._job
        if job is None:
            return []
        found = [error.worker for error in job.errors] + [job.worker]
        if job.state is JobState.LEASED and self._running_here is not None and self._running_here[0] == job.attempts:
            found.append(self._running_here[1])
        return [worker for worker in found if worker is not None]

    @property
    def _return_value(self) -> Any:
        return self._job.result if self._job is not None else None

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
            ResultNotFoundError: not written yet (or rolled back), or finished and compacted away.
            JobConflictError: the id belongs to other work (found at the commit).
        """
        if self.conflict is not None:
            raise self.conflict
        self._job = look_up(self.queue_name, self.id, self._memory)

    async def arefresh(self) -> None:
        """``refresh()`` without blocking the event loop."""
        await sync_to_async(self.refresh)()

    def wait(self, timeout: float | None = None) -> Self:
        """Refresh until the job is finished.

        Args:
            timeout: seconds to wait at most; None waits for ever, 0 looks once.

        Raises:
            WaitTimeoutError: not finished in time.
            ResultNotFoundError: as ``refresh()``; in the transaction that enqueued the job it is not there yet.
        """
        pauses = self._pauses(timeout, time.monotonic())
        while True:
            self.refresh()
            if self.is_finished:
                return self
            time.sleep(next(pauses))

    async def await_(self, timeout: float | None = None) -> Self:  # noqa: ASYNC109 - that of ``wait``
        """``wait()`` without blocking the event loop; the underscore because ``await`` is a keyword."""
        pauses = self._pauses(timeout, time.monotonic())
        while True:
            await self.arefresh()
            if self.is_finished:
                return self
            await asyncio.sleep(next(pauses))

    def _pauses(self, timeout: float | None, since: float) -> Iterator[float]:
        """How long to sleep before each further look (s).

        Args:
            since: when the wait began, before the first look.

        Raises:
            WaitTimeoutError: the time is over.
        """
        end = None if timeout is None else since + timeout
        pause = _FIRST_PAUSE
        while True:
            left = pause if end is None else end - time.monotonic()
            if left <= 0:
                raise WaitTimeoutError(
                    f"job {self.id} is {self.status} after {timeout:g} s; it stays in queue {self.queue_name!r}"
                )
            yield min(pause, left)
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

    Args:
        queue_name: where it is looked for first.

    Raises:
        ResultNotFoundError: no queue knows such a job.
        InvalidOptionError: the job belongs to another task, or there is no such queue.
    """
    with storing_nothing():
        conf.queue_settings(queue_name)
        checks.job_id(job_id)
        other = None
        for queue, job in found_in_queues(job_id, first=queue_name):
            if name_in(job) in (task.name, *task.aliases):
                return result_of(task, queue, job)
            other = other or queue
        if other is not None:
            raise InvalidOptionError("job_id", f"job {job_id!r} of queue {other!r} is no call of {task.name}")
    raise ResultNotFoundError(job_id, *_from_first(queue_name))


def found_in_queues(job_id: str, *, first: str = "", memory: Memory | None = None) -> Iterator[tuple[str, Job]]:
    """The jobs of that id, at most one in a queue, each with its queue. An id of the caller's may be in several.

    Args:
        first: the queue that is asked first.
        memory: where it is if it is in no queue; that of the settings is used if there is one.
    """
    settings, memory = conf.get_settings(), memory or of_settings()
    for queue in _from_first(first):
        if memory is None and not queue_exists(settings.dir, queue):
            continue  # asking it would make it
        try:
            yield queue, look_up(queue, job_id, memory)
        except ResultNotFoundError:
            pass


def _from_first(first: str) -> list[str]:
    """The queues of the settings, this one before the others."""
    return sorted(conf.get_settings().queues, key=lambda name: name != first)


def _shown(task: Task[Any, Any], job: Job | None) -> Any:
    """What was enqueued; a delay as the moment that it meant, which is what Django's tasks have."""
    shown = task if task.source is None else task.source
    delay = task.options.delay
    if delay is None:
        return shown
    return shown.using(run_after=moment(job.available_at if job is not None else time.time() + delay))


def result_of(task: Task[Any, R], queue_name: str, job: Job, memory: Memory | None = None) -> JobResult[R]:
    """The result of a job as it is, with a ``task`` that has the job's queue and priority."""
    result: JobResult[R] = JobResult(task, queue_name, job.id, job, memory=memory)
    shown = result.task
    if (shown.queue_name, shown.priority) != (queue_name, job.priority):
        try:
            result.task = shown.using(queue_name=queue_name, priority=job.priority)
        except Exception:
            pass  # the queue is not in the settings any more, or the job was enqueued by other means
    return result


def look_up(queue_name: str, job_id: str, memory: Memory | None = None) -> Job:
    """A job by its id.

    Args:
        memory: where it is if it is in no queue; that of the settings is used if there is one.

    Raises:
        ResultNotFoundError: there is no such job.
    """
    memory = memory or of_settings()
    try:
        return get_queue(queue_name).get(job_id) if memory is None else memory.get(queue_name, job_id)
    except JobNotFoundError as error:
        raise ResultNotFoundError(error.job_id, error.queue) from None


def name_in(job: Job) -> str | None:
    """The name of the task in a job's payload; None: it is no call of a task."""
    name = job.payload.get("task") if isinstance(job.payload, dict) else None
    return name if isinstance(name, str) else None


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def _restored(state: dict[str, Any]) -> JobResult[Any]:
    result: JobResult[Any] = JobResult.__new__(JobResult)
    for name, value in state.items():
        setattr(result, name, value)
    task: Any = result.task
    if compat.is_django_task(task):
        task = task.get_backend().entry_of(task)
    result._return_values, result._memory = task.return_values, None
    return result


def _succeeded(job: Job) -> bool:
    return job.state is JobState.DONE and job.outcome in (None, "succeeded")
