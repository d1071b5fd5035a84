"""From calls of a task to jobs in a queue: every check at the call, the write now or after the commit.

Invariant: once a call returns inside a transaction, nothing but a full disk, a damaged log or a taken id can keep
the job from being stored at the commit; and the arguments stored are those of the moment of the call.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from . import conf, payloads, transactions
from .engine.errors import InvalidOptionError, JobConflictError, SerializationError
from .engine.job import Job, new_job_id
from .options import CallOptions
from .queues import get_queue
from .results import JobResult

if TYPE_CHECKING:
    from .decorators import Task

R = TypeVar("R")


def enqueue_one(task: Task[Any, R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobResult[R]:
    """Enqueue one call with the options of ``task``.

    Raises:
        NobrokerError: see ``Task.enqueue``.
    """
    options = task.options
    payload = payloads.build(task.name, task.arguments, args, kwargs)
    write = _Write(options)
    if not write.deferred:
        try:
            job = write.one(payload, options.job_id)
        except SerializationError as error:
            raise payloads.explain(error, payload, task.arguments) from None
        return JobResult(task, options.queue_name, job.id, job)

    frozen = payloads.freeze(payload, task.arguments)
    job_id = options.job_id if options.job_id is not None else new_job_id()
    result: JobResult[R] = JobResult(task, options.queue_name, job_id)
    transactions.write_after_commit(
        lambda: result._written(write.one(frozen, job_id)),
        result._refused,
        job_ids=(job_id,),
        database=write.database,
    )
    return result


def enqueue_all(task: Task[Any, R], many: list[payloads.Payload]) -> list[JobResult[R]]:
    """Enqueue the calls that the payloads stand for with the options of ``task``, all or none.

    Raises:
        NobrokerError: see ``Task.enqueue_many``.
    """
    options = task.options
    if options.job_id is not None:
        raise InvalidOptionError("job_id", "one id cannot stand for several jobs. Nothing was stored.")
    write = _Write(options)
    # Frozen here in both cases: the engine would name the element, not the parameter.
    many = [payloads.freeze(payload, task.arguments) for payload in many]
    if not many:
        return []
    if not write.deferred:
        return [JobResult(task, options.queue_name, job.id, job) for job in write.all(many, None)]

    job_ids = [new_job_id() for _ in many]
    results: list[JobResult[R]] = [JobResult(task, options.queue_name, job_id) for job_id in job_ids]

    def write_all() -> None:
        for result, job in zip(results, write.all(many, job_ids), strict=True):
            result._written(job)

    def refuse_all(error: JobConflictError) -> None:
        for result in results:
            result._refused(error)

    transactions.write_after_commit(write_all, refuse_all, job_ids=tuple(job_ids), database=write.database)
    return list(results)  # the caller may change its list; the commit needs ours


class _Write:
    """One write with its options settled at the call: which queue, when due, now or after which commit."""

    def __init__(self, options: CallOptions) -> None:
        settings = conf.get_settings()
        self.options = options
        self.due = options.due(time.time())
        self.database = options.database if options.database is not None else settings.database
        # Opened at the call, so that a directory that cannot be used is an error here and not at the commit.
        get_queue(options.queue_name)
        self.deferred = transactions.must_wait(
            self.database, on_commit=settings.on_commit if options.on_commit is None else options.on_commit
        )

    def one(self, payload: payloads.Payload, job_id: str | None) -> Job:
        return get_queue(self.options.queue_name).enqueue(payload, job_id=job_id, **self._details())

    def all(self, many: list[payloads.Payload], job_ids: list[str] | None) -> list[Job]:
        return get_queue(self.options.queue_name).enqueue_many(many, job_ids=job_ids, **self._details())

    def _details(self) -> dict[str, Any]:
        return {
            "priority": self.options.priority,
            "delay": 0.0 if self.due is None else max(0.0, self.due - time.time()),
            "max_attempts": self.options.max_attempts,
            "visibility_timeout": self.options.visibility_timeout,
        }
