"""Signals as bytes in a pipe, and the supervisor's orders to a child.

Invariant: a handler does nothing; the signal's number arrives through ``signal.set_wakeup_fd`` in a pipe that the main
thread selects on, so no lock is taken in a handler and no signal is lost between two looks.

Who means what: a signal to the supervisor is counted there (the second one ends at once). A signal to a child only
ever means "stop gracefully", however often it comes, because a terminal or a process manager may signal the whole
group and the supervisor as well. What ends a child at once is the order ``NOW`` through its own pipe. When that
pipe closes, the supervisor is gone and the child stops gracefully. ``LOOK``: something was written to a queue at which
the child waits.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

STOP, NOW, LOOK = b"s", b"n", b"l"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalPipe:
    """While it is open, the given signals of this process only write their number into the pipe ``fd``."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._former_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._former: dict[signal.Signals, Any] = {number: signal.signal(number, _nothing) for number in signals}
        _open.append(self)

    def read(self) -> list[int]:
        """The signals since the last look; does not wait."""
        return list(read_available(self.fd))

    def close(self) -> None:
        """Put the former handlers back."""
        self._restore(self._former_fd)

    def leave(self) -> None:
        """In a forked process: signals mean again what they meant before, and write into nobody's pipe."""
        self._restore(-1)

    def _restore(self, wakeup_fd: int) -> None:
        _open.remove(self)
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in self._former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(self.fd)
        os.close(self._write_fd)


LONGEST_POLL_MS = 86_400_000
"""poll(2) takes an int of milliseconds; callers look again anyway."""


def wait_readable(descriptors: Iterable[int], timeout: float | None) -> set[int]:
    """The descriptors that can be read, after at most ``timeout`` seconds (None: for ever), a day at the most."""
    # poll() and not select(): a process with more than 1,024 descriptors has numbers that select() refuses.
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    milliseconds = None if timeout is None else min(max(0.0, timeout) * 1000, LONGEST_POLL_MS)
    return {fd for fd, _ in poll.poll(milliseconds)}


def read_available(fd: int) -> bytes:
    """What is in a non-blocking pipe now."""
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


_open: list[SignalPipe] = []
_forking = threading.local()  # ``mask``: the signals that this thread had blocked before it began to fork


def _before_fork() -> None:
    # A signal that comes at once, before the new process has left our pipes, would be told to us, and lost to it.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS if _open else ())


def _forked() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _born() -> None:
    # A process that a task forks (multiprocessing does) must die of SIGTERM, and must not pass its signals on to us.
    for pipe in reversed(tuple(_open)):
        pipe.leave()
    _forked()


os.register_at_fork(before=_before_fork, after_in_parent=_forked, after_in_child=_born)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The handler: without one Python would not write to the wakeup descriptor."""
