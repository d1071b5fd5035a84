"""From calls of a task to jobs in a queue: every check at the call, the write now or after the commit.

Invariant: once a call returns inside a transaction, nothing but a full disk, a damaged log or a taken id can keep
the job from being stored at the commit; and the arguments stored are those of the moment of the call.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    from .options import CallOptions

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
    write = _Write(task, memory or of_settings(), [options])
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
    """Enqueue the calls, each with the options that were chosen for it, the others from ``task``: all or none.

    Raises:
        NobrokerError: see ``Task.enqueue_many``.
    """
    if task.options.job_id is not None:
        raise InvalidOptionError(
            "job_id", "one id cannot stand for several jobs; give it to the call: t.using(...).s()"
        )
    if not calls:
        return []
    tasks = [_of_call(task, call.task) for call in calls]
    _refuse_several(tasks)
    write = _Write(tasks[0], of_settings(), [each.options for each in tasks])
    # Frozen here in both cases: the engine would name the element, not the parameter.
    many = [payloads.freeze(call.payload, task.arguments) for call in calls]
    job_ids = [each.options.job_id for each in tasks]
    if task.unique is not None:
        unique = task.unique
        job_ids = [
            unique.job_id(call.args, call.kwargs, frozen) if job_id is None else job_id
            for job_id, call, frozen in zip(job_ids, calls, many, strict=True)
        ]
    queue_name = write.options.queue_name
    if not write.deferred:
        jobs = write.all(many, job_ids)
        stored = [
            JobResult(each, queue_name, job.id, job, memory=write.memory)
            for each, job in zip(tasks, jobs, strict=True)
        ]
        write.announce(stored)
        return list(stored)

    ids = [new_job_id() if job_id is None else job_id for job_id in job_ids]
    results: list[JobResult[R]] = [
        JobResult(each, queue_name, job_id, payload=frozen, memory=write.memory)
        for each, job_id, frozen in zip(tasks, ids, many, strict=True)
    ]
    write.later(many, ids, results)
    return list(results)  # the caller may change its list; the commit needs ours


def _of_call(task: Task[Any, R], called: Task[Any, R]) -> Task[Any, R]:
    """``task`` with what ``using()`` chose for the call."""
    if not called.chosen:
        return task
    made = copy.copy(task)
    made.options = replace(task.options, **{name: getattr(called.options, name) for name in called.chosen})
    return made


def _refuse_several(tasks: Sequence[Task[Any, Any]]) -> None:
    """Refuse what cannot be one write: it goes to one queue, now or after the commit of one database."""
    first = tasks[0].options
    for number, each in enumerate(tasks):
        for name in ("queue_name", "database", "on_commit"):
            own, other = getattr(each.options, name), getattr(first, name)
            if own != other:
                raise InvalidOptionError(
                    name,
                    f"calls[{number}] has {own!r} and calls[0] has {other!r}; the calls of one enqueue_many are one "
                    f"write. Call enqueue_many once for each {name}.",
                )


class _Write:
    """One write with its options settled at the call: which queue, when due, now or after which commit.

    Args:
        memory: what takes the place of the queue, if anything does.
        chosen: the options of each job; their queue, database and ``on_commit`` are those of ``task``.
    """

    def __init__(self, task: Task[Any, Any], memory: Memory | None, chosen: Sequence[CallOptions]) -> None:
        settings = conf.get_settings()
        self.options = options = task.options
        self.memory = memory
        self.called_at = time.time()
        made = {id(each): _Details(each, task.unique is not None, self.called_at) for each in chosen}
        self._details = [made[id(each)] for each in chosen]
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
        given = self._details[0].given(time.time())
        return get_queue(self.options.queue_name).enqueue(payload, job_id=job_id, **given)

    def all(self, many: list[payloads.Payload], job_ids: Sequence[str | None]) -> list[Job]:
        if self.memory is not None:
            return self._keep(self.memory, many, job_ids)
        now = time.time()  # one for all: jobs of the same delay become due together, in their order
        made = {details: details.given(now) for details in dict.fromkeys(self._details)}
        given = made[self._details[0]]
        if len(made) > 1:
            given = {name: [made[details][name] for details in self._details] for name in given}
        queue = get_queue(self.options.queue_name)
        return queue.enqueue_many(many, job_ids=job_ids if any(job_ids) else None, **given)

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

    def _entries(self, many: list[payloads.Payload], job_ids: Sequence[str]) -> list[Entry]:
        retention = conf.queue_settings(self.options.queue_name).retention
        until = known_until(self.called_at, retention)
        return [
            Entry(
                job_id=job_id,
                payload=payload,
                known_until=until,
                due=details.due,
                unique=details.unique,
                **details.plain(),
            )
            for job_id, payload, details in zip(job_ids, many, self._details, strict=True)
        ]

    def _keep(self, memory: Memory, many: list[payloads.Payload], job_ids: Sequence[str | None]) -> list[Job]:
        ids = [new_job_id() if job_id is None else job_id for job_id in job_ids]
        return memory.add(self.options.queue_name, self._entries(many, ids))


class _Details:
    """The options of one job, its time settled. ``due`` is Unix time, ``None`` for at once."""

    __slots__ = ("_options", "due", "unique")

    def __init__(self, options: CallOptions, has_key: bool, called_at: float) -> None:
        self._options = options
        self.due = options.due(called_at)
        self.unique = has_key and options.job_id is None

    def given(self, now: float) -> dict[str, Any]:
        """What an enqueue at this moment (Unix seconds) is given."""
        delay = 0.0 if self.due is None else max(0.0, self.due - now)
        return {"delay": delay, "unique": self.unique, **self.plain()}

    def plain(self) -> dict[str, Any]:
        """What goes into the queue as it is, now or later."""
        return {
            "priority": self._options.priority,
            "max_attempts": self._options.max_attempts,
            "visibility_timeout": self._options.visibility_timeout,
        }
