"""One delivery of one job: decode the payload, find the task, call it, record the outcome.

Invariant: whatever the task does, raising ``BaseException`` included, becomes a record in the queue or a line in
the log, never an exception for the caller. Hard time limits, leases and threads belong to ``worker``.
"""

from __future__ import annotations

import contextvars
import enum
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from asgiref.sync import async_to_sync
from django.core.cache import caches
from django.db import close_old_connections

from . import conf, payloads, registry
from .cli.documents import error_text
from .current import CurrentJob, running
from .decorators import Task
from .engine.errors import (
    CorruptLogError,
    JobNotFoundError,
    NobrokerError,
    NotLeasedError,
    QueueClosedError,
    SerializationError,
)
from .engine.job import Job, JobState
from .engine.queue import Queue
from .limits import limits_of
from .worker.soft_limits import SoftLimits, run_limited


class Outcome(enum.Enum):
    """What became of a delivery."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # another attempt will follow
    DEAD = "dead"  # now a dead letter
    LOST = "lost"  # the lease had ended before the outcome could be recorded
    UNRECORDED = "unrecorded"  # the queue could not be written; the lease will end


_Recorded = tuple[Outcome, Job | None, str]
RECORDING_PAUSES = (0.2, 1.0, 3.0)
"""Seconds between the tries to record an outcome that the queue could not take (full disk, busy lock)."""
_soft_limits = SoftLimits()


@dataclass(frozen=True, slots=True)
class Report:
    """A delivery in the words of the worker's log; ``seconds`` since its start, ``retry_in`` in seconds."""

    job_id: str
    task: str
    attempt: int
    max_attempts: int
    outcome: Outcome
    seconds: float
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
            "Return JSON values, at most 1 MiB, or None.",
        )
        self.path = error.path
        self.reason = error.reason


def execute(queue: Queue, job: Job, *, before_recording: Callable[[], object] | None = None) -> Report:
    """Run a leased job and record what became of it.

    Args:
        queue: where it was leased.
        job: the delivery.
        before_recording: called once the task has ended and before the queue is told.

    Returns:
        What happened. Only an interpreter that is going down makes this raise.
    """
    started = time.monotonic()
    process = os.getpid()
    name = _shown_name(job)
    value: Any = None
    failure: BaseException | None = None
    delay: float | None = None
    _close_connections_safely()
    try:
        task, call = _resolve(job)
        name = task.name
        # Counted from the deliveries so far, as the engine does for the queue's own policy.
        delay = task.backoff.delay_for(job.attempts) if task.backoff is not None else None
        here = CurrentJob(job.id, name, queue.name, job.attempts)
        value = _run(task, call, here, _soft_limit(task, queue))
    except UnknownTaskError as error:
        failure, delay = error, conf.get_settings().unknown_task_delay
    except BaseException as error:
        failure = error
    if os.getpid() != process:
        _end_forked_process(failure)
    _close_connections_safely()
    if before_recording is not None:
        before_recording()
    outcome, settled, message = _record_patiently(queue, job, name, value, failure, delay)
    retry_in = None
    if settled is not None and outcome is Outcome.FAILED:
        retry_in = max(0.0, settled.available_at - time.time())
    return Report(
        job_id=job.id,
        task=name,
        attempt=job.attempts,
        max_attempts=job.max_attempts,
        outcome=outcome,
        seconds=time.monotonic() - started,
        error=message,
        retry_in=retry_in,
    )


def _resolve(job: Job) -> tuple[Task[Any, Any], payloads.StoredCall]:
    """The task and the call of a job.

    Raises:
        NotATaskError: the payload is no call.
        UnknownTaskError: no such task here.
        ArgumentsChangedError: the function takes other arguments.
    """
    call = payloads.parse(job.payload)
    task = registry.find(call.task)
    if task is None:
        raise UnknownTaskError(call.task, conf.get_settings().unknown_task_delay)
    try:
        task.signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise ArgumentsChangedError(
            f"{task.name}{task.signature} does not take the arguments of this job: {error}. The job keeps them; "
            "requeue it once the task takes them again."
        ) from None
    return task, call


def _soft_limit(task: Task[Any, Any], queue: Queue) -> float | None:
    return limits_of(task, conf.get_settings().queues.get(queue.name, conf.QueueSettings())).soft


def _run(task: Task[Any, Any], call: payloads.StoredCall, here: CurrentJob, soft_limit: float | None) -> Any:
    """Call the function, in context variables of its own: language, time zone and the like end with the job."""
    context = contextvars.Context()
    context.run(running.set, here)
    try:
        return context.run(_call, task, call, soft_limit)
    finally:
        context.run(caches.close_all)  # Django keeps its cache connections in context variables too


def _call(task: Task[Any, Any], call: payloads.StoredCall, soft_limit: float | None) -> Any:
    if inspect.iscoroutinefunction(task.function):
        return async_to_sync(run_limited)(task.function(*call.args, **call.kwargs), soft_limit)
    with _soft_limits.running(soft_limit):
        return task.function(*call.args, **call.kwargs)


def _record_patiently(queue: Queue, *facts: Any) -> _Recorded:
    """``_record``, again after a pause while nothing could be written: the task has run, and would run again."""
    for pause in (*RECORDING_PAUSES, None):
        try:
            return _record(queue, *facts)
        except NobrokerError as error:
            if pause is None or error.stored is not False or isinstance(error, QueueClosedError | CorruptLogError):
                return Outcome.UNRECORDED, None, str(error)
            time.sleep(pause)
    raise AssertionError


def _record(
    queue: Queue, job: Job, name: str, value: Any, failure: BaseException | None, delay: float | None
) -> _Recorded:
    """Tell the queue; returns the outcome, the job as it is then (of a failure), and the text for the log."""
    try:
        if failure is None:
            try:
                queue.ack(job, result=value)
                return Outcome.SUCCEEDED, None, ""
            except SerializationError as error:
                failure = ReturnValueError(name, error)
        if isinstance(failure, payloads.NotATaskError):
            settled = queue.bury(job, error=failure)
        else:
            settled = queue.nack(job, error=failure, delay=delay)
    except (NotLeasedError, JobNotFoundError) as error:
        return Outcome.LOST, None, str(error)
    outcome = Outcome.DEAD if settled.state is JobState.DEAD else Outcome.FAILED
    return outcome, settled, error_text(settled)


def _end_forked_process(failure: BaseException | None) -> NoReturn:
    """End a process that the task has forked and that came back here: the delivery is its parent's to record."""
    code = 0
    if isinstance(failure, SystemExit):
        code = failure.code if isinstance(failure.code, int) else int(failure.code is not None)
    elif failure is not None:
        code = 1
        traceback.print_exception(failure)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # closed or gone: the exit code is what is left to give
    os._exit(code & 0xFF)


def _close_connections_safely() -> None:
    """What Django does around a request: drop connections that are old or broken. That never fails a job."""
    try:
        close_old_connections()
    except Exception:
        pass


def _shown_name(job: Job) -> str:
    payload = job.payload
    return payload["task"] if isinstance(payload, dict) and isinstance(payload.get("task"), str) else "(not a task)"
