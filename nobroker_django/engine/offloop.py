"""Calls that may block, made for coroutines: in threads, and waited for without blocking an event loop.

Owns the threads behind one ``AsyncQueue``: a pool for adding work, a pool for the verbs that decide (they may wait for
a long backlog to be folded; adding work never waits behind them), and one thread that leases for all who wait for a
job, in the order in which they came, so that a hundred waiting coroutines take no thread of the pools.

Invariant: what may block never runs in the thread of an event loop; the locks that are taken there protect a few
instructions, never a system call. Nothing belongs to one event loop: coroutines of several may share a queue.
What the verbs mean is left to ``queue``, what a cancellation means to ``aio``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from .clock import Deadline
from .errors import NobrokerError, QueueClosedError
from .job import Job
from .queue import Queue

logger = logging.getLogger("nobroker_django")

POOL_THREADS = 8
LOOK_SECONDS = 0.01
LONGEST_WAIT_SECONDS = 1.0
LINGER_SECONDS = 1.0
LEAVING_SECONDS = 10.0

T = TypeVar("T")


class Signal:
    """A flag that one coroutine waits for, and that any thread may set. Made inside the coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        """Let the coroutine go on."""
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            pass  # the loop was closed: nobody waits

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    @property
    def is_awaited(self) -> bool:
        """Whether the coroutine can go on at all: False while its event loop stands still."""
        return self._loop.is_running()

    @property
    def is_orphaned(self) -> bool:
        """Whether the coroutine will never go on: its event loop was closed."""
        return self._loop.is_closed()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it is set, or until ``seconds`` have passed."""
        await asyncio.wait([self._future], timeout=seconds)

    async def wait_through(self) -> asyncio.CancelledError | None:
        """Wait until it is set, whatever cancels the task meanwhile; the first cancellation, which is put off."""
        cancelled: asyncio.CancelledError | None = None
        while not self._future.done():
            try:
                await self.wait()
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        return cancelled


async def settle(call: Future[T], *, droppable: bool) -> asyncio.CancelledError | None:
    """Wait until a call in another thread is over, also when the task is cancelled meanwhile.

    Args:
        droppable: whether a cancellation may drop the call while it has not begun.

    Returns:
        The cancellation that came meanwhile; the call is over all the same.

    Raises:
        asyncio.CancelledError: the call was dropped and will never begin.
    """
    signal = Signal()
    call.add_done_callback(lambda _: signal.set())
    try:
        await signal.wait()
    except asyncio.CancelledError as cancelled:
        if droppable and call.cancel():
            raise
        await signal.wait_through()
        return cancelled
    return None


class Place:
    """One coroutine's place in the line: what it wants, and what it got."""

    def __init__(self, count: int, visibility_timeout: float | None) -> None:
        self.count = count
        self.visibility_timeout = visibility_timeout
        self.signal = Signal()
        self.jobs: list[Job] = []
        self.error: BaseException | None = None
        self.is_leaving = False  # served for the last time: it will not wait any longer
        self.is_dropped = False  # nobody will come for its jobs


class Line:
    """Those who wait for a job, first come, first served; one thread looks for all of them and leases for the first.

    It asks for a lease only when the log has grown since the last one found nothing, or a job's time has come.
    """

    def __init__(self, name: str, opened: Callable[[], Queue]) -> None:
        self._name = name
        self._opened = opened
        self._changed = threading.Condition()
        self._places: deque[Place] = deque()
        self._served: Place | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        # What the last lease that found nothing has seen: the log's end, and when the next job's time comes.
        self._hopeful = True
        self._seen: int | None = None
        self._next_change: float | None = None
        self._patience = Deadline(LONGEST_WAIT_SECONDS)

    def enter(self, count: int, visibility_timeout: float | None) -> Place:
        """Take the last place in the line."""
        place = Place(count, visibility_timeout)
        with self._changed:
            if self._closed:
                raise closed_error(self._name)
            self._hopeful = self._hopeful or not self._places
            self._places.append(place)
            if self._thread is None:
                # A daemon: who waits for ever in an event loop that has stopped must not keep the process alive.
                self._thread = threading.Thread(target=self._run, name="nobroker-line", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return place

    def leave(self, place: Place) -> bool:
        """Stop waiting. False: the place is being served at this moment; its signal is set when that is over."""
        with self._changed:
            if place is self._served:
                place.is_leaving = True
                return False
            if place in self._places:
                self._places.remove(place)
            return True

    def drop(self, place: Place) -> list[Job]:
        """Stop waiting without ever coming back. Returns jobs that were leased for it and have to be given back."""
        with self._changed:
            place.is_dropped = True
        return place.jobs if self.leave(place) else []

    def close(self) -> None:
        """Send everybody away who is not being served; wait for the one who is."""
        with self._changed:
            self._closed = True
            for place in [place for place in self._places if place is not self._served]:
                self._places.remove(place)
                place.error = closed_error(self._name)
                place.signal.set()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    # -- the thread

    def _run(self) -> None:
        while self._somebody_waits():
            if not (self._may_find_something() and self._serve_first()):
                with self._changed:
                    if not self._closed:
                        self._changed.wait(LOOK_SECONDS)

    def _somebody_waits(self) -> bool:
        """Wait a while for somebody; False: the thread ends."""
        with self._changed:
            if not self._places and not self._closed:
                self._changed.wait(LINGER_SECONDS)
            if not self._places:
                self._thread = None
            return bool(self._places)

    def _may_find_something(self) -> bool:
        if self._hopeful or self._patience.passed():
            return True
        try:
            queue = self._opened()
            if self._next_change is not None and queue.now() >= self._next_change:
                return True
            return queue._session.look() != self._seen
        except Exception:
            return True  # the lease meets the same error, and tells the first one in the line

    def _serve_first(self) -> bool:
        """Lease for the first one who can take a job; False: there is no such one, or nothing for him."""
        with self._changed:
            while self._places and self._places[0].signal.is_orphaned:
                self._places.popleft()
            place = self._served = next((place for place in self._places if place.signal.is_awaited), None)
            if place is None:
                return False
            self._hopeful = False
        error: BaseException | None = None
        jobs: list[Job] = []
        try:
            queue = self._opened()
            self._seen = queue._session.look()
            jobs, self._next_change = queue._lease_now(place.count, place.visibility_timeout)
        except BaseException as caught:
            error = caught
        self._patience = Deadline(LONGEST_WAIT_SECONDS)
        is_over = bool(jobs) or error is not None
        with self._changed:
            self._served = None
            self._hopeful = self._hopeful or is_over
            is_taken = place.signal.is_awaited and not place.is_dropped
            if is_over or self._closed or place.is_leaving:
                self._places.remove(place)
                place.jobs = jobs if is_taken else []
                place.error = error if is_over or not self._closed else closed_error(self._name)
                place.signal.set()
        if jobs and not is_taken:
            give_back(self._opened(), jobs)
        return is_over


def give_back(queue: Queue, jobs: list[Job]) -> None:
    """Release leases whose taker has gone, as well as that can be done."""
    try:
        queue.release(jobs)
    except NobrokerError as error:
        ids = ", ".join(job.id for job in jobs[:3])
        logger.warning("%d jobs (%s) not given back, their leases end at their deadline: %s", len(jobs), ids, error)


def closed_error(name: str) -> QueueClosedError:
    """The error of a call after closing."""
    return QueueClosedError(f"queue {name!r} is closed; the call did nothing")


class Threads:
    """The threads of one ``AsyncQueue`` in one process. A forked child makes its own, and leaves these alone."""

    def __init__(self, name: str, opened: Callable[[], Queue], *, closed: bool = False) -> None:
        self._name = name
        self._adding = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="nobroker-adding")
        self._deciding = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="nobroker-deciding")
        self.line = Line(name, opened)
        self._changed = threading.Condition()
        self._users = 0
        self._closing: Future[None] | None = None
        if closed:
            self._closing = Future()
            self._closing.set_result(None)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A coroutine's call, from its beginning to its end: closing waits for it.

        Raises:
            QueueClosedError: closing has begun.
        """
        with self._changed:
            if self._closing is not None:
                raise closed_error(self._name)
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def submit(self, call: Callable[[], T], *, adding: bool = False) -> Future[T]:
        """Run ``call`` in a thread of one of the pools."""
        return (self._adding if adding else self._deciding).submit(call)

    def close(self, then: Callable[[], None]) -> Future[None]:
        """Refuse new calls, wait for those under way, end the threads and run ``then``: all of it in another thread.

        Once begun, later calls return the same future.
        """
        with self._changed:
            if self._closing is not None:
                return self._closing
            future: Future[None] = Future()
            self._closing = future

        def finish() -> None:
            try:
                self._end()
                then()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        future.set_running_or_notify_cancel()
        threading.Thread(target=finish, name="nobroker-closing").start()
        return future

    def _end(self) -> None:
        self.line.close()
        with self._changed:
            # Bounded, for coroutines that were left behind in an event loop that has stopped.
            self._changed.wait_for(lambda: not self._users, LEAVING_SECONDS)
        self._adding.shutdown()
        self._deciding.shutdown()
