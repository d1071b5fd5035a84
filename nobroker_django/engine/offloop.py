"""Calls that may block, made for coroutines: in threads, and waited for without blocking an event loop.

Owns the threads behind one ``AsyncQueue``: a pool for adding work, a pool for the verbs that decide (they may wait for
a long backlog to be folded; adding work never waits behind them), and the thread of ``line``, which leases for all who
wait for a job, so that a hundred waiting coroutines take no thread of the pools.

Invariant: what may block never runs in the thread of an event loop; the locks that are taken there protect a few
instructions, never a system call. Nothing belongs to one event loop: coroutines of several may share a queue.
What the verbs mean is left to ``queue``, what a cancellation means to ``aio``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from .line import Line, closed_error
from .queue import Queue

POOL_THREADS = 8
LEAVING_SECONDS = 10.0

T = TypeVar("T")


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
