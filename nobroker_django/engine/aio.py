"""``AsyncQueue``: the verbs of ``Queue`` as coroutines, which block no event loop.

Each verb runs in a thread of a small pool (``offloop``); waiting for a job takes no thread. The object belongs to no
event loop: it may be used by several, one after the other or at once, each in a thread of its own. A forked child uses
it with threads of its own.

Cancellation never leaves a call half done. When ``asyncio.CancelledError`` leaves a verb, its outcome is settled:

* it had not begun in its thread: then it never begins. Only what ends a lease, or lengthens it, is carried out all the
  same (``ack``, ``ack_many``, ``nack``, ``bury``, ``release``, ``extend``);
* it had begun: then the cancellation waits until it is over. A cancelled ``lease`` has given its jobs back, the
  attempt not counted; any other verb has happened, or failed with the error that is the ``__cause__``. A note on the
  error tells what became of an ``enqueue``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from . import options as checks
from .backoff import BackoffPolicy
from .clock import Clock, Deadline
from .compaction import CompactionResult
from .coroutines import settle
from .errors import NotLeasedError
from .files import Files
from .job import Job, JobState, QueueStats
from .line import give_back
from .locks import fork_guard
from .offloop import Threads
from .queue import Queue
from .recovery import RecoveryReport

logger = logging.getLogger("nobroker_django")

T = TypeVar("T")


class QueueOptions(TypedDict, total=False):
    """The options of a ``Queue``, as its constructor takes them."""

    fsync: bool
    visibility_timeout: float
    max_attempts: int
    backoff: BackoffPolicy | None
    lock_timeout: float
    retention: float
    file_mode: int
    dir_mode: int
    read_only: bool
    clock: Clock
    files: Files | None


class AsyncQueue:
    """A ``Queue`` for coroutines. Takes the arguments of ``Queue``; creating one opens nothing and never blocks.

    It is opened by ``async with AsyncQueue(...)``, by ``await AsyncQueue.open(...)``, or by the first verb; that is
    where the errors of opening come from, ``InvalidOptionError`` included. Close it with ``await queue.close()``, or
    by leaving the ``async with``.

    A payload must not be changed until ``enqueue`` has returned: it is encoded in another thread.

    Raises:
        TypeError: ``Queue`` has no such option.
    """

    def __init__(self, path: str | os.PathLike[str], name: str = "default", **options: Unpack[QueueOptions]) -> None:
        inspect.signature(Queue).bind(path, name, **options)
        self.name = name
        self._path = path
        self._options = options
        self._queue: Queue | None = None
        self._closed = False
        self._begin()
        fork_guard.add(self)

    def _begin(self) -> None:
        """Nothing is under way. Threads start when they are needed."""
        self._opening = threading.Lock()
        self._threads = Threads(self.name, self._opened, closed=self._closed)

    @classmethod
    async def open(cls, path: str | os.PathLike[str], name: str = "default", **options: Unpack[QueueOptions]) -> Self:
        """A queue that is open.

        Raises:
            As ``Queue``.
        """
        return await cls(path, name, **options).__aenter__()

    async def __aenter__(self) -> Self:
        try:
            await self._run(lambda queue: None)
        except (Exception, asyncio.CancelledError):
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, GeneratorExit):
            await self.close()
        else:
            self._begin_closing()  # nothing may be awaited any more

    async def close(self) -> None:
        """Wait for the calls under way, end the threads, close the files. Closing again does nothing.

        Coroutines that wait in ``lease(timeout=...)`` get ``QueueClosedError``. A job that is still leased stays so
        until its deadline.

        Raises:
            StorageError, CorruptLogError, LockTimeoutError: the files are closed all the same.
        """
        again = self._closed
        call = self._begin_closing()
        cancelled = await settle(call, droppable=False)
        if cancelled is not None:
            raise cancelled from call.exception()
        if not again:
            call.result()

    def _begin_closing(self) -> Future[None]:
        self._closed = True
        return self._threads.close(self._close_files)

    def _close_files(self) -> None:
        with self._opening:
            if self._queue is not None:
                self._queue.close()

    def __repr__(self) -> str:
        return f"AsyncQueue({os.fspath(self._path)!r}, {self.name!r})"

    # -- properties

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found at the end of the log; an empty report before that."""
        return self._queue.recovery if self._queue is not None else RecoveryReport()

    async def path(self) -> Path:
        """The live log file."""
        return await self._run(lambda queue: queue.path)

    # -- adding

    async def enqueue(
        self,
        payload: Any,
        *,
        priority: int = 0,
        delay: float = 0.0,
        max_attempts: int | None = None,
        job_id: str | None = None,
        meta: dict[str, Any] | None = None,
        visibility_timeout: float | None = None,
        unique: bool = False,
    ) -> Job:
        """As ``Queue.enqueue``: the job is on the disk when this returns.

        Whether a cancelled call has stored its job is settled when ``CancelledError`` comes, and a note on it says so.
        A program that has to know passes a ``job_id`` of its own, and enqueues again under it.
        """
        return await self._add(
            lambda queue: queue.enqueue(
                payload, priority=priority, delay=delay, max_attempts=max_attempts, job_id=job_id, meta=meta,
                visibility_timeout=visibility_timeout, unique=unique,
            ),
            adding=job_id is None,
        )  # fmt: skip

    async def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int | Sequence[int] = 0,
        delay: float | Sequence[float] = 0.0,
        max_attempts: int | Sequence[int | None] | None = None,
        job_ids: Sequence[str | None] | None = None,
        metas: Sequence[dict[str, Any] | None] | None = None,
        visibility_timeout: float | Sequence[float | None] | None = None,
        unique: bool | Sequence[bool] = False,
    ) -> list[Job]:
        """As ``Queue.enqueue_many``: all are on the disk, or none. Cancelled, it is like ``enqueue``."""
        values = list(payloads) if isinstance(payloads, Iterable) else payloads  # not iterated in a foreign thread
        return await self._add(
            lambda queue: queue.enqueue_many(
                values, priority=priority, delay=delay, max_attempts=max_attempts, job_ids=job_ids, metas=metas,
                visibility_timeout=visibility_timeout, unique=unique,
            ),
            adding=job_ids is None,
        )  # fmt: skip

    # -- leases

    async def lease(
        self,
        count: int = 1,
        *,
        visibility_timeout: float | None = None,
        timeout: float = 0.0,  # noqa: ASYNC109  (as in Queue: running out of time is no error)
    ) -> list[Job]:
        """As ``Queue.lease``. Those who wait for a job get one in the order in which they came.

        Cancelled, it has given back what it leased: the attempt is not counted, the job returns to its place.

        Args:
            timeout: seconds to wait for the first job when none is eligible.

        Raises:
            InvalidOptionError, LockTimeoutError, CorruptLogError, StorageError: no lease was taken.
            QueueClosedError: the queue was closed, perhaps while this call waited.
        """
        checks.integer("count", count, least=1)
        if visibility_timeout is not None:
            checks.seconds("visibility_timeout", visibility_timeout, zero=False)
        seconds = checks.seconds("timeout", timeout)
        threads = self._threads
        with threads.in_use():
            if seconds:
                jobs = await self._wait_in_line(threads, count, visibility_timeout, Deadline(seconds))
                if jobs:
                    return jobs
            return await self._lease_now(threads, count, visibility_timeout)

    async def lease_one(
        self,
        *,
        visibility_timeout: float | None = None,
        timeout: float = 0.0,  # noqa: ASYNC109  (as lease)
    ) -> Job | None:
        """As ``lease``, for one job; ``None`` when there is none."""
        jobs = await self.lease(1, visibility_timeout=visibility_timeout, timeout=timeout)
        return jobs[0] if jobs else None

    async def _lease_now(self, threads: Threads, count: int, visibility_timeout: float | None) -> list[Job]:
        call = threads.submit(lambda: self._opened().lease(count, visibility_timeout=visibility_timeout))
        try:
            cancelled = await settle(call, droppable=True)
        except GeneratorExit:
            call.add_done_callback(lambda call: self._give_back_later(threads, _jobs_of(call)))
            raise
        if cancelled is None:
            return call.result()
        await self._give_back(threads, _jobs_of(call))
        raise cancelled from call.exception()

    async def _wait_in_line(
        self, threads: Threads, count: int, visibility_timeout: float | None, deadline: Deadline
    ) -> list[Job]:
        """Wait for a turn that finds something, until the deadline."""
        place = threads.line.enter(count, visibility_timeout)
        cancelled: asyncio.CancelledError | None = None
        try:
            try:
                await place.signal.wait(deadline.left())
            except asyncio.CancelledError as error:
                cancelled = error
            if not threads.line.leave(place):
                cancelled = await place.signal.wait_through() or cancelled
        except GeneratorExit:
            self._give_back_later(threads, threads.line.drop(place))
            raise
        if cancelled is not None:
            await self._give_back(threads, place.jobs)
            raise cancelled from place.error
        if place.error is not None:
            raise place.error
        return place.jobs

    async def _give_back(self, threads: Threads, jobs: list[Job]) -> None:
        """Release leases on the way out of a cancelled call: nothing more can stop it."""
        if jobs:
            await settle(threads.submit(lambda: give_back(self._opened(), jobs)), droppable=False)

    def _give_back_later(self, threads: Threads, jobs: list[Job]) -> None:
        """Release leases of a coroutine that was thrown away, and can wait for nothing."""
        if jobs:
            try:
                threads.submit(lambda: give_back(self._opened(), jobs))
            except RuntimeError as error:  # the threads have ended
                logger.warning("%d leases of a forsaken call end at their deadline: %s", len(jobs), error)

    def processing(self, *, timeout: float = 0.0, visibility_timeout: float | None = None) -> Processing:
        """Lease one job for an ``async with`` block, as ``Queue.processing`` does.

        Acked when the block ends; nacked with the exception when it raises, which goes on to the caller; ``None`` when
        there was no job. The lease is not extended here. When the *task is cancelled* in the block, the lease is given
        back: the attempt is not counted and the job is ready at once. So put a limit of time inside the block
        (``asyncio.timeout`` raises ``TimeoutError`` there: a failed attempt), not around it, where a job that always
        takes too long would be tried for ever.

        Args:
            timeout: seconds to wait for a job.
            visibility_timeout: seconds that the lease lasts.
        """
        return Processing(self, timeout, visibility_timeout)

    async def ack(self, job: Job | str, *, result: Any = None) -> None:
        """As ``Queue.ack``: the job is done; durable when this returns."""
        await self._run(lambda queue: queue.ack(job, result=result), droppable=False)

    async def ack_many(self, jobs: Iterable[Job]) -> list[Job]:
        """As ``Queue.ack_many``; returns those whose lease was lost."""
        given = list(jobs)
        return await self._run(lambda queue: queue.ack_many(given), droppable=False)

    async def nack(
        self, job: Job | str, *, error: str | BaseException | None = None, delay: float | None = None
    ) -> Job:
        """As ``Queue.nack``: the attempt failed."""
        return await self._run(lambda queue: queue.nack(job, error=error, delay=delay), droppable=False)

    async def bury(self, job: Job | str, *, error: str | BaseException | None = None) -> Job:
        """As ``Queue.bury``: the job becomes a dead letter at once."""
        return await self._run(lambda queue: queue.bury(job, error=error), droppable=False)

    async def release(self, jobs: Iterable[Job]) -> list[Job]:
        """As ``Queue.release``: give leases back unused. Returns the lost ones."""
        given = list(jobs)
        return await self._run(lambda queue: queue.release(given), droppable=False)

    async def extend(self, job: Job | str, seconds: float) -> Job:
        """As ``Queue.extend``: the lease lasts ``seconds`` longer."""
        return await self._run(lambda queue: queue.extend(job, seconds), droppable=False)

    # -- looking

    async def get(self, job_id: str) -> Job:
        """As ``Queue.get``: one job, with its error history."""
        return await self._run(lambda queue: queue.get(job_id))

    async def stats(self) -> QueueStats:
        """As ``Queue.stats``: the jobs by state, now."""
        return await self._run(lambda queue: queue.stats())

    async def list_jobs(
        self,
        state: JobState | str | None = None,
        *,
        limit: int | None = None,
        after: int = -1,
        task: str | None = None,
        error_class: str | None = None,
        since: float | None = None,
        delayed: bool | None = None,
    ) -> list[Job]:
        """As ``Queue.list_jobs``: jobs in insertion order."""
        return await self._run(
            lambda queue: queue.list_jobs(
                state, limit=limit, after=after, task=task, error_class=error_class, since=since, delayed=delayed
            )
        )

    async def dlq(
        self, *, limit: int | None = None, task: str | None = None, error_class: str | None = None
    ) -> list[Job]:
        """As ``Queue.dlq``: the dead letters in insertion order."""
        return await self._run(lambda queue: queue.dlq(limit=limit, task=task, error_class=error_class))

    # -- dead letters, maintenance

    async def requeue_dead(self, job_id: str | Iterable[str] | None = None) -> int:
        """As ``Queue.requeue_dead``; how many."""
        given = job_id if job_id is None or isinstance(job_id, str) else list(job_id)
        return await self._run(lambda queue: queue.requeue_dead(given))

    async def discard_dead(self, job_ids: Iterable[str]) -> list[str]:
        """As ``Queue.discard_dead``: forget these dead letters; returns the ids that are none."""
        given = job_ids if isinstance(job_ids, str) else list(job_ids)
        return await self._run(lambda queue: queue.discard_dead(given))

    async def purge(self) -> int:
        """As ``Queue.purge``: forget every job; how many there were."""
        return await self._run(lambda queue: queue.purge())

    async def compact(self) -> CompactionResult:
        """As ``Queue.compact``."""
        return await self._run(lambda queue: queue.compact())

    # -- calls

    def _opened(self) -> Queue:
        """The queue, opened if it is not. May block: never in the thread of an event loop."""
        with self._opening:
            if self._queue is None:
                self._queue = Queue(self._path, self.name, **self._options)
            return self._queue

    async def _run(self, verb: Callable[[Queue], T], *, droppable: bool = True) -> T:
        """A verb in a thread, to its end."""
        threads = self._threads
        with threads.in_use():
            call = threads.submit(lambda: verb(self._opened()))
            cancelled = await settle(call, droppable=droppable)
        if cancelled is not None:
            raise cancelled from call.exception()
        return call.result()

    async def _add(self, verb: Callable[[Queue], T], *, adding: bool) -> T:
        """As ``_run``; a cancellation says what became of the jobs."""
        threads = self._threads
        with threads.in_use():
            call = threads.submit(lambda: verb(self._opened()), adding=adding)
            try:
                cancelled = await settle(call, droppable=True)
            except asyncio.CancelledError as dropped:
                dropped.add_note("nobroker_django: the enqueue had not begun; nothing was stored")
                raise
        if cancelled is None:
            return call.result()
        cancelled.add_note(f"nobroker_django: {_what_became(call)}")
        raise cancelled from call.exception()

    # -- fork

    def before_fork(self) -> None:
        """Nothing to hold still: the queue's own session sees to that."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """The parent's threads do not exist here, and its locks may be held for ever: begin with new ones."""
        self._begin()


class Processing:
    """One job for the length of an ``async with`` block; see ``AsyncQueue.processing``. Good for one block."""

    def __init__(self, queue: AsyncQueue, timeout: float, visibility_timeout: float | None) -> None:
        self._queue = queue
        self._timeout = timeout
        self._visibility_timeout = visibility_timeout
        self._job: Job | None = None

    async def __aenter__(self) -> Job | None:
        self._job = await self._queue.lease_one(visibility_timeout=self._visibility_timeout, timeout=self._timeout)
        return self._job

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        queue, job = self._queue, self._job
        if job is None:
            return
        if error is None:
            await queue.ack(job)
        elif issubclass(type(error), GeneratorExit):  # isinstance() would ask the object as well
            queue._give_back_later(queue._threads, [job])
        elif issubclass(type(error), asyncio.CancelledError) and _is_cancelled():
            await queue.release([job])
        else:
            try:
                await queue.nack(job, error=error)
            except NotLeasedError as lost:
                logger.warning("job %s failed too late: %s", job.id, lost)


def _is_cancelled() -> bool:
    """Whether somebody asked this task to stop (and not its own code raised ``CancelledError``)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _jobs_of(call: Future[list[Job]]) -> list[Job]:
    """What a lease that is over has leased."""
    return [] if call.cancelled() or call.exception() is not None else call.result()


def _what_became(call: Future[Any]) -> str:
    error = call.exception()
    if error is not None:
        return f"the enqueue was under way, and failed: {error}"
    result = call.result()
    jobs = result if isinstance(result, list) else [result]
    ids = ", ".join(job.id for job in jobs[:3]) + (", ..." if len(jobs) > 3 else "")
    return f"the enqueue was under way, and ended well; stored: {ids}"
