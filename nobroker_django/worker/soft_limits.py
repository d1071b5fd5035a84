"""Soft time limits: an exception in the running task once its time is over.

Invariant: a block with a limit gets ``SoftTimeLimitExceeded`` at most once, and never after it has ended: neither what
the thread does next nor its next job sees it. Ending what does not react is left to the hard limit.

How: the thread and the watchdog both try to take the block's ``turn``, and only one of them gets it. Got by the
thread, the block has ended in time and the watchdog keeps off. Got by the watchdog, the thread waits at the end of its
block until the exception has been sent, and takes it back if it has not arrived yet. No lock is held by the thread
meanwhile: an exception that arrives at any instruction would leave it locked.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from nobroker_django.limits import SoftTimeLimitExceeded, of_this_thread

T = TypeVar("T")
LONGEST_PAUSE = 3600.0
"""Seconds: what a condition can wait for is limited by the platform."""

# A library object of our own: the argument types of ctypes.pythonapi belong to everybody in the process.
_set_exception = ctypes.PyDLL(None).PyThreadState_SetAsyncExc
_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)
_set_exception.restype = ctypes.c_int


def send(thread: int) -> None:
    """Have the exception raised in that thread, when it executes its next instruction of Python."""
    _set_exception(thread, ctypes.py_object(SoftTimeLimitExceeded))


def take_back(thread: int) -> None:
    """Forget an exception that was sent and has not been raised yet."""
    _set_exception(thread, ctypes.py_object())


class SoftLimits:
    """The watchdog of one process. Its thread starts with the first block that has a limit.

    Args:
        send: how an exception gets into a thread, by its identifier.
    """

    def __init__(self, send: Callable[[int], None] = send) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._blocks: dict[int, _Block] = {}
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def running(self, seconds: float | None) -> _Block:
        """A ``with`` block in which ``SoftTimeLimitExceeded`` is raised after so many seconds; None: never.

        One at a time in a thread. If the time is over in the moment in which the block ends, either happens.
        """
        return _Block(self, seconds)

    @property
    def alive(self) -> bool:
        """Whether the thread runs (in a process that a task has forked it does not)."""
        return self._thread is not None and self._thread.is_alive()

    def watch(self, block: _Block) -> None:
        """Look after the block from now on."""
        with self._changed:
            if not self.alive:
                self._wakes_at = math.inf
                self._thread = threading.Thread(target=self._run, name="nobroker-soft-limits", daemon=True)
                self._thread.start()
            if block.deadline < self._wakes_at:
                # Otherwise it wakes early enough: thousands of short jobs a second need not wake it each.
                self._wakes_at = block.deadline
                self._changed.notify()
            self._blocks[block.thread] = block

    def forget(self, block: _Block) -> None:
        """The block has ended in time."""
        self._blocks.pop(block.thread, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                # A copy in one step of the interpreter: forget() takes no lock.
                blocks = list(self._blocks.values())
                now = time.monotonic()
                due = [block for block in blocks if block.deadline <= now]
                if not due:
                    self._wakes_at = min((block.deadline for block in blocks), default=math.inf)
                    self._changed.wait(min(self._wakes_at - now, LONGEST_PAUSE))
                    continue
                for block in due:
                    self._blocks.pop(block.thread, None)
            for block in due:
                block.exceeded(self._send)


class _Block:
    """One task in its thread. Times are monotonic seconds."""

    __slots__ = ("_limits", "_seconds", "_sent", "_turn", "deadline", "thread")

    def __init__(self, limits: SoftLimits, seconds: float | None) -> None:
        self._limits = limits
        self._seconds = seconds
        self._turn = threading.Lock()
        self._sent = threading.Lock()
        self._sent.acquire()
        self.thread = threading.get_ident()
        self.deadline = math.inf

    def __enter__(self) -> None:
        of_this_thread.seconds = self._seconds
        if self._seconds is not None:
            self.deadline = time.monotonic() + self._seconds
            self._limits.watch(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._seconds is None:
            return
        # No loop in here: some versions of the interpreter leave the jump of a loop out of its try.
        try:
            if self._turn.acquire(blocking=False):
                self._limits.forget(self)
                return
            if self._limits.alive:
                self._sent.acquire()
            take_back(self.thread)
        except SoftTimeLimitExceeded:
            pass  # it arrived here: the task had already ended, in whatever way

    def exceeded(self, send: Callable[[int], None]) -> None:
        """The time is over; called by the watchdog, once."""
        if self._turn.acquire(blocking=False):
            send(self.thread)
            self._sent.release()


async def run_limited(coroutine: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """Await a coroutine, in the current task of the event loop, for so many seconds.

    When they are over, it is cancelled, once. If it ends by that, ``SoftTimeLimitExceeded`` comes out; who cancels the
    task for another reason, before, after or at the same time, gets ``CancelledError`` as ever.
    """
    if seconds is None:
        return await coroutine
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    exceeded = False

    def cancel() -> None:
        nonlocal exceeded
        exceeded = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, cancel)
    try:
        return await coroutine
    except asyncio.CancelledError as error:
        if exceeded and task.cancelling() <= cancellations + 1:
            raise SoftTimeLimitExceeded(seconds) from error
        raise
    finally:
        timer.cancel()
        if exceeded:
            task.uncancel()
