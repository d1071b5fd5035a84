"""From calls of a task to jobs in a queue: every check at the call, the write now or after the commit.

Invariant: once a call returns inside a transaction, nothing but a full disk, a damaged log or a taken id can keep
the job from being stored at the commit; and the arguments stored are those of the moment of the call.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from . import announcing, conf, payloads, transactions
from .engine.errors import InvalidOptionError, JobConflictError, SerializationError
from .engine.job import Job, new_job_id
from .engine.once import Entry
from .memory import Memory, of_settings
from .outbox import holding
from .outbox.rows import known_until
from .queues import get_queue
from .results import JobResult

if TYPE_CHECKING:
    from .decorators import Call, Task

R = TypeVar("R")


def enqueue_one(
    task: Task[Any, R], args: Sequence[Any], kwargs: Mapping[str, Any], memory: Memory | None = None
) -> JobResult[R]:
    """Enqueue one call with the options of ``task``.

    Args:
        memory: what takes the place of the queues; that of the settings is used if there is one.

    Raises:
        NobrokerError: see ``Task.enqueue``.
    """
    options = task.options
    payload = payloads.build(task.name, task.arguments, args, kwargs)
    write = _Write(task, memory or of_settings())
    try:
        chosen = options.job_id
        if chosen is None and task.unique is not None:
            chosen = task.unique.job_id(args, kwargs, payload)
        job = None if write.deferred else write.one(payload, chosen)
    except SerializationError as error:
        raise payloads.explain(error, payload, task.arguments) from None
    if job is not None:
        done: JobResult[R] = JobResult(task, options.queue_name, job.id, job, memory=write.memory)
        write.announce([done])
        return done

    frozen = payloads.freeze(payload, task.arguments)
    job_id = chosen if chosen is not None else new_job_id()
    result: JobResult[R] = JobResult(task, options.queue_name, job_id, payload=frozen, memory=write.memory)
    write.later([frozen], [job_id], [result])
    return result


def enqueue_all(task: Task[Any, R], calls: Sequence[Call[Any, R]]) -> list[JobResult[R]]:
    """Enqueue the calls with the options of ``task``, all or none.

    Raises:
        NobrokerError: see ``Task.enqueue_many``.
    """
    options = task.options
    if options.job_id is not None:
        raise InvalidOptionError("job_id", "one id cannot stand for several jobs. Nothing was stored.")
    write = _Write(task, of_settings())
    # Frozen here in both cases: the engine would name the element, not the parameter.
    many = [payloads.freeze(call.payload, task.arguments) for call in calls]
    if not many:
        return []
    job_ids = None
    if task.unique is not None:
        unique = task.unique
        job_ids = [unique.job_id(call.args, call.kwargs, frozen) for call, frozen in zip(calls, many, strict=True)]
    if not write.deferred:
        jobs = write.all(many, job_ids)
        stored = [JobResult(task, options.queue_name, job.id, job, memory=write.memory) for job in jobs]
        write.announce(stored)
        return list(stored)

    job_ids = job_ids or [new_job_id() for _ in many]
    results: list[JobResult[R]] = [
        JobResult(task, options.queue_name, job_id, payload=frozen, memory=write.memory)
        for job_id, frozen in zip(job_ids, many, strict=True)
    ]
    write.later(many, job_ids, results)
    return list(results)  # the caller may change its list; the commit needs ours


class _Write:
    """One write with its options settled at the call: which queue, when due, now or after which commit.

    Args:
        memory: what takes the place of the queue, if anything does.
    """

    def __init__(self, task: Task[Any, Any], memory: Memory | None) -> None:
        settings = conf.get_settings()
        self.options = options = task.options
        self.memory = memory
        self.unique = task.unique is not None and options.job_id is None
        self.called_at = time.time()
        self.due = options.due(self.called_at)
        self.outbox = settings.outbox and memory is None
        self.database = options.database if options.database is not None else settings.database
        if memory is None:
            # Opened at the call, so that a directory that cannot be used is an error here and not at the commit.
            get_queue(options.queue_name)
        else:
            conf.queue_settings(options.queue_name)
        self.deferred = transactions.must_wait(
            self.database, on_commit=settings.on_commit if options.on_commit is None else options.on_commit
        )

    def one(self, payload: payloads.Payload, job_id: str | None) -> Job:
        if self.memory is not None:
            return self._keep(self.memory, [payload], [job_id])[0]
        return get_queue(self.options.queue_name).enqueue(
            payload, job_id=job_id, delay=self._delay(), **self._details()
        )

    def all(self, many: list[payloads.Payload], job_ids: list[str] | None) -> list[Job]:
        if self.memory is not None:
            return self._keep(self.memory, many, job_ids or [None] * len(many))
        return get_queue(self.options.queue_name).enqueue_many(
            many, job_ids=job_ids, delay=self._delay(), **self._details()
        )

    def announce(self, results: Sequence[JobResult[Any]]) -> None:
        """What follows the write: the signals, and where there is no queue the jobs themselves."""
        for result in results:
            announcing.enqueued(result)
        if self.memory is not None and self.memory.runs:
            for result in results:
                if result.created:
                    result._written(self.memory.run(result.queue_name, result.id))

    def later(self, many: list[payloads.Payload], job_ids: list[str], results: Sequence[JobResult[Any]]) -> None:
        """After the commit; ``results`` are told."""

        def written(jobs: Sequence[Job]) -> None:
            for result, job in zip(results, jobs, strict=True):
                result._written(job)
            self.announce(results)

        def refused(error: JobConflictError) -> None:
            for result in results:
                result._refused(error)

        ids = tuple(job_ids)
        if not self.outbox:

            def write() -> None:
                written([self.one(many[0], ids[0])] if len(many) == 1 else self.all(many, job_ids))

            transactions.write_after_commit(write, refused, job_ids=ids, database=self.database)
            return
        entries = self._entries(many, job_ids)
        key = holding.hold(
            self.database, self.options.queue_name, entries, task=many[0]["task"], called_at=self.called_at
        )
        transactions.write_through_outbox(
            lambda: written(get_queue(self.options.queue_name).enqueue_once(entries)),
            refused,
            job_ids=ids,
            database=self.database,
            key=key,
        )

    def _entries(self, many: list[payloads.Payload], job_ids: list[str]) -> list[Entry]:
        retention = conf.queue_settings(self.options.queue_name).retention
        until = known_until(self.called_at, retention)
        return [
            Entry(
                job_id=job_id,
                payload=payload,
                known_until=until,
                due=self.due,
                **self._details(),
            )
            for job_id, payload in zip(job_ids, many, strict=True)
        ]

    def _keep(self, memory: Memory, many: list[payloads.Payload], job_ids: Sequence[str | None]) -> list[Job]:
        return memory.add(self.options.queue_name, many, job_ids, due=self.due, **self._details())

    def _delay(self) -> float:
        return 0.0 if self.due is None else max(0.0, self.due - time.time())

    def _details(self) -> dict[str, Any]:
        return {
            "priority": self.options.priority,
            "max_attempts": self.options.max_attempts,
            "visibility_timeout": self.options.visibility_timeout,
            "unique": self.unique,
        }
