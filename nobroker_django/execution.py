"""One delivery of one job: decode the payload, find the task, call it, say what the queue is to be told.

Invariant: whatever the task does, raising ``BaseException`` included, becomes an ``Ended``, never an exception for the
caller. Time limits, leases, threads and the recording belong to ``worker``.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import inspect
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, async_to_sync, sync_to_async
from django.core.cache import caches
from django.db import close_old_connections, connections
from msgspec.structs import replace

from . import announcing, compat, conf, payloads, registry
from .current import CurrentJob, running, this_worker
from .decorators import Task
from .discovery import find_or_import
from .engine.endings import Ended
from .engine.errors import NobrokerError, SerializationError
from .engine.failures import describe, in_one_line
from .engine.job import Job, JobError, JobState, TakenBack
from .engine.payload import decode_payload
from .engine.worker_queue import Settled, WorkerQueue
from .limits import Limits, limits_of
from .memory import Memory
from .results import JobResult, name_in, result_of
from .worker.soft_limits import SoftLimits, run_limited

soft_limits = SoftLimits()
"""The watchdog of this process."""


class Outcome(enum.Enum):
    """What became of a delivery."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # another attempt will follow
    DEAD = "dead"  # now a dead letter
    LOST = "lost"  # the lease had ended before the outcome could be recorded
    UNRECORDED = "unrecorded"  # the queue could not be written; the lease will end


@dataclass(frozen=True, slots=True)
class Report:
    """A delivery in the words of the worker's log; ``seconds`` since its start (None: nobody knows), ``retry_in`` in
    seconds."""

    job_id: str
    task: str
    attempt: int
    max_attempts: int
    outcome: Outcome
    seconds: float | None
    error: str = ""
    retry_in: float | None = None


class UnknownTaskError(NobrokerError):
    """No task of that name is known in this worker; the job is kept and tried again later."""

    stored = True

    def __init__(self, name: str, delay: float) -> None:
        super().__init__(
            f"no task {name!r} is known here. Is its module imported (a tasks module of an installed app, or "
            f"NOBROKER['IMPORTS'])? A renamed task needs its old name in aliases. Tried again in {delay:g} s."
        )
        self.name = name


class ArgumentsChangedError(NobrokerError, TypeError):
    """The task does not take the stored arguments (any more); the job is kept with them."""

    stored = True


class ReturnValueError(SerializationError):
    """What the task returned cannot be stored. The task has run, and this counts as a failed attempt."""

    def __init__(self, task: str, error: SerializationError) -> None:
        Exception.__init__(
            self,
            f"{task} ran, but its return value cannot be stored: {error.path}: {error.reason} "
            "Return JSON values, at most 1 MiB, or None; of other types, what the return annotation names.",
        )
        self.path = error.path
        self.reason = error.reason


Guard = Callable[[Task[Any, Any]], AbstractContextManager[object]]
"""What stands around the call of a task: time limits."""
AsyncGuard = Callable[[Task[Any, Any], Coroutine[Any, Any, Any]], Awaitable[Any]]
"""The same for a coroutine task: awaited in its place."""


@dataclass(frozen=True, slots=True)
class Performed:
    """A task that has run (or could not), and what the queue has to be told of it.

    ``interrupted``: it raised ``KeyboardInterrupt``. In a worker that is its failure; where a person's Ctrl-C reaches
    the thread of the task, it is for the program.
    """

    job: Job
    task: str
    seconds: float
    ended: Ended
    interrupted: bool


def perform(queue: str, job: Job, guard: Guard | None = None, memory: Memory | None = None) -> Performed:
    """Run a job that was leased from a queue in this thread. Only an interpreter that goes down makes this raise.

    Args:
        memory: has the job in the place of the queue.
    """
    run = _Run(queue, job, memory)
    context = contextvars.Context()
    _close_connections_safely()
    try:
        task, call = run.resolve()
        context.run(running.set, CurrentJob(job.id, task.name, queue, job.attempts))
        context.run(run.announce_start)
        try:
            with guard(task) if guard is not None else nullcontext():
                run.value = context.run(_call, task, call, run.context)
        finally:
            context.run(caches.close_all)  # Django keeps its cache connections in context variables too
    except BaseException as error:
        run.failure = error
        context.run(run.end)  # in here, so that receivers find the exception in ``sys.exc_info()``
    else:
        context.run(run.end)
    _close_connections_safely()
    return run.performed()


async def perform_async(
    queue: str, job: Job, guard: AsyncGuard | None = None, memory: Memory | None = None
) -> Performed:
    """Run a leased job of a coroutine function on the running event loop, as a task with a context of its own.

    Args:
        guard: awaited with the task and its coroutine in place of the coroutine alone.
        memory: has the job in the place of the queue.
    """
    run = _Run(queue, job, memory)
    try:
        task, call = run.resolve()
        running.set(CurrentJob(job.id, task.name, queue, job.attempts))
        async with ThreadSensitiveContext() as threads:
            try:
                await announcing.off_the_loop(run.announce_start)
                try:
                    coroutine = task.function(*run.context, *call.args, **call.kwargs)
                    value = await (coroutine if guard is None else guard(task, coroutine))
                    run.value = task.return_values.to_json(value)
                except BaseException as error:
                    run.failure = error
                    await run.end_off_the_loop()  # in here: see ``perform``
                else:
                    await run.end_off_the_loop()
            finally:
                caches.close_all()
                if threads in SyncToAsync.context_to_thread_executor:  # it has called what is not asynchronous
                    await sync_to_async(_close_all_connections)()
    except BaseException as error:
        run.failure = error if run.failure is None else run.failure
    run.end_if_forked()
    return run.performed()


def failed(queue: str, job: Job, error: BaseException) -> Performed:
    """A delivery that did not come to its task."""
    run = _Run(queue, job)
    run.failure = error
    return run.performed()


class _Run:
    """One delivery on its way."""

    def __init__(self, queue: str, job: Job, memory: Memory | None = None) -> None:
        self._queue = queue
        self._job = job
        self._memory = memory
        self._started = time.monotonic()
        self._process = os.getpid()
        self._task: Task[Any, Any] | None = None
        self._announced: JobResult[Any] | None = None
        self.context: tuple[Any, ...] = ()
        self.value: Any = None
        self.failure: BaseException | None = None

    def resolve(self) -> tuple[Task[Any, Any], payloads.StoredCall]:
        """The task and the call; see ``_resolve``."""
        self._task, call = _resolve(self._job)
        if self._task.takes_context:
            self.context = (compat.TaskContext(task_result=self._result(self._task, self._job)),)
        return self._task, call

    def end_if_forked(self) -> None:
        """A process that the task has forked and that came back here ends: the delivery is its parent's to record."""
        if os.getpid() != self._process:
            _end_forked_process(self.failure)

    def announce_start(self) -> None:
        """Tell Django's receivers that the attempt begins."""
        if self._task is not None and announcing.senders():
            self._announced = self._result(self._task, self._job)
            announcing.started(self._announced)

    def end(self) -> None:
        """The task has returned or raised."""
        self.end_if_forked()
        self._announce_end()

    async def end_off_the_loop(self) -> None:
        """As ``end``, on an event loop that receivers must not block."""
        self.end_if_forked()
        await announcing.off_the_loop(self._announce_end)

    def _announce_end(self) -> None:
        """Tell them that the job has ended, if it has: another attempt may follow."""
        if self._announced is None or self._task is None:
            return
        try:
            ended = as_ended(self._job, self.ended)
            if ended is not None:
                announcing.finished(self._result(self._task, ended))
            caches.close_all()
        except BaseException:  # a receiver may raise KeyboardInterrupt; how the task has ended stands
            announcing.logger.exception("the end of job %s could not be announced", self._job.id)

    def _result(self, task: Task[Any, Any], job: Job) -> JobResult[Any]:
        result = result_of(task, self._queue, job, self._memory)
        if self._memory is not None and self._memory.backend is not None:
            result.backend = self._memory.backend
        result._running_here = job.attempts, this_worker()
        return result

    def performed(self) -> Performed:
        """What is to be told."""
        interrupted = issubclass(type(self.failure), KeyboardInterrupt)
        return Performed(self._job, self._name, time.monotonic() - self._started, self.ended, interrupted)

    @property
    def _name(self) -> str:
        name = name_in(self._job) if self._task is None else self._task.name
        return "(not a task)" if name is None else name

    @cached_property
    def ended(self) -> Ended:
        """How it went, once it has."""
        try:
            ended = self._judge()
        except BaseException as error:  # of what the task returned or raised, when it was looked at
            ended = Ended.failed(self._job, error)
        ended.worker = this_worker()
        return ended

    def _judge(self) -> Ended:
        job, failure = self._job, self.failure
        if failure is None:
            try:
                return Ended.succeeded(job, self.value)
            except SerializationError as error:
                failure = ReturnValueError(self._name, error)
        # Not isinstance(): that asks the object, too, and an error of the project may answer anything.
        if issubclass(type(failure), payloads.NotATaskError):
            return Ended.failed(job, failure, final=True)
        if issubclass(type(failure), UnknownTaskError):
            return Ended.failed(job, failure, delay=conf.get_settings().unknown_task_delay)
        task = self._task
        # Counted from the deliveries so far, as the engine does for the queue's own policy.
        delay = task.backoff.delay_for(job.attempts) if task is not None and task.backoff is not None else None
        return Ended.failed(job, failure, delay=delay)


def as_ended(job: Job, ended: Ended) -> Job | None:
    """The job as it will be once its outcome is recorded; None: another attempt will follow."""
    now = time.time()
    if ended.result is not None:
        value = decode_payload(ended.result)
        return replace(
            job, state=JobState.DONE, outcome="succeeded", result=value, finished_at=now, worker=ended.worker
        )
    if ended.failure is None or not (ended.final or job.attempts >= job.max_attempts):
        return None
    failure = ended.failure
    error = JobError(job.attempts, now, failure.error_class, failure.message, failure.traceback, worker=ended.worker)
    return replace(job, state=JobState.DEAD, finished_at=now, errors=[*job.errors, error], last_error=error.text)


def is_coroutine(job: Job) -> bool:
    """Whether the job's task is a coroutine function."""
    name = name_in(job)
    task = None if name is None else registry.find(name)
    return task is not None and inspect.iscoroutinefunction(task.function)


def report_of(performed: Performed, settled: Settled) -> Report:
    """A delivery whose outcome the queue has taken, or refused."""
    failure, retry_in, error = performed.ended.failure, None, ""
    if settled.lost is not None:
        outcome, error = Outcome.LOST, str(settled.lost)
    elif failure is None:
        outcome = Outcome.SUCCEEDED
    else:
        outcome = Outcome.DEAD if settled.state is JobState.DEAD else Outcome.FAILED
        error = in_one_line(failure.error_class, failure.message) or "unknown"
        if outcome is Outcome.FAILED:
            retry_in = max(0.0, settled.available_at - time.time())
    return _report(performed, outcome, error, retry_in)


def report_of_taken_back(one: TakenBack, seconds: float | None = None) -> Report:
    """A delivery of which the process that had it cannot tell; how long it took, if that is known."""
    dead = one.state is JobState.DEAD
    return Report(
        job_id=one.job_id,
        task=one.task or "(not a task)",
        attempt=one.attempts,
        max_attempts=one.max_attempts,
        outcome=Outcome.DEAD if dead else Outcome.FAILED,
        seconds=seconds,
        error=one.error,
        retry_in=None if dead else max(0.0, one.available_at - time.time()),
    )


def unrecorded(performed: Performed, error: NobrokerError) -> Report:
    """A delivery whose outcome the queue could not take."""
    return _report(performed, Outcome.UNRECORDED, str(error), None)


def _report(performed: Performed, outcome: Outcome, error: str, retry_in: float | None) -> Report:
    job = performed.job
    return Report(
        job_id=job.id,
        task=performed.task,
        attempt=job.attempts,
        max_attempts=job.max_attempts,
        outcome=outcome,
        seconds=performed.seconds,
        error=error,
        retry_in=retry_in,
    )


def limits_in(task: Task[Any, Any], queue: str) -> Limits:
    """The time limits of a task in a queue, also in one that the settings do not name."""
    return limits_of(task, conf.get_settings().queues.get(queue, conf.QueueSettings()))


def perform_here(queue: str, job: Job, memory: Memory | None = None) -> Performed:
    """Run a job of a queue in this thread, under its soft time limit; a coroutine function on a loop of its own.

    Args:
        memory: has the job in the place of the queue.
    """
    if not is_coroutine(job):
        return perform(queue, job, lambda task: soft_limits.running(limits_in(task, queue).soft), memory)

    def guard(task: Task[Any, Any], coroutine: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        return run_limited(coroutine, limits_in(task, queue).soft)

    def run() -> Performed:
        return contextvars.Context().run(async_to_sync(perform_async), queue, job, guard, memory)

    if not _is_on_a_loop():
        return run()
    # Called from a coroutine: that loop cannot run another one in this thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False  # and not the job's turn in here: its errors would seem to follow from this one
    return True


def execute(queue: WorkerQueue, job: Job) -> Report:
    """Run a leased job under its soft time limit and record what became of it, durably.

    Raises:
        NobrokerError: the outcome could not be recorded.
    """
    return record(queue, perform_here(queue.name, job))


def record(queue: WorkerQueue, performed: Performed) -> Report:
    """Record what became of a job, durably.

    Raises:
        NobrokerError: the outcome could not be recorded.
    """
    answer = queue.exchange([performed.ended])
    answer.confirm()
    return report_of(performed, answer.settled[0])


def _resolve(job: Job) -> tuple[Task[Any, Any], payloads.StoredCall]:
    """The task and the call of a job, with the arguments in their types.

    Raises:
        NotATaskError: the payload is no call.
        UnknownTaskError: no such task here.
        ArgumentsChangedError: the function takes other arguments.
    """
    call = payloads.parse(job.payload)
    task = find_or_import(call.task)
    if task is None:
        raise UnknownTaskError(call.task, conf.get_settings().unknown_task_delay)
    try:
        args, kwargs = task.arguments.from_json(call.args, call.kwargs)
    except TypeError as error:
        raise ArgumentsChangedError(
            f"{task.name}{task.signature} does not take the arguments of this job: {error}. The job keeps them; "
            "requeue it once the task takes them again."
        ) from None
    return task, payloads.StoredCall(call.task, args, kwargs)


def _call(task: Task[Any, Any], call: payloads.StoredCall, context: tuple[Any, ...]) -> Any:
    function: Any = task.function
    if inspect.iscoroutinefunction(function):  # it was not known yet when the job was put into this thread
        function = async_to_sync(function)
    return task.return_values.to_json(function(*context, *call.args, **call.kwargs))


def _end_forked_process(failure: BaseException | None) -> NoReturn:
    """End a process that the task has forked and that came back here: the delivery is its parent's to record."""
    code = int(failure is not None)
    try:
        if failure is not None and issubclass(type(failure), SystemExit):
            left = failure.args[0] if failure.args else None
            code = left & 0xFF if isinstance(left, int) else int(left is not None)
        elif failure is not None:
            sys.stderr.write(describe(failure).traceback or "")
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        pass  # closed or gone: the exit code is what is left to give
    finally:
        os._exit(code)


def _close_connections_safely() -> None:
    """What Django does around a request: drop connections that are old or broken. That never fails a job."""
    try:
        close_old_connections()
    except Exception:
        pass


def _close_all_connections() -> None:
    try:
        connections.close_all()  # of a thread that ends with the job
    except Exception:
        pass
