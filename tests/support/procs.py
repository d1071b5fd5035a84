"""Child processes that are killed, and what they wrote down before: events to wait for, never the clock.

A child is a fork that runs one function and leaves without clean-up. It writes a line per event to a ``Diary``, one
``O_APPEND`` write each, so that what was written survives its death and stays whole.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds until a wait for an event is a failure; nothing is ever decided by it


class Diary:
    """Lines that any number of processes append to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        """Append one line of words."""
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())

    def lines(self) -> list[list[str]]:
        """The words of each line so far."""
        return [line.split() for line in self.path.read_text().splitlines()]

    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size

    def close(self) -> None:
        os.close(self._fd)


class Child:
    """One forked process; ``function`` gets ``arguments``. A failure is written to ``errors``."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, errors: Diary) -> None:
        self.name = function.__name__
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                function(*arguments)
                code = 0
            except BaseException:
                errors.write(self.name, repr(traceback.format_exc()))
            finally:
                os._exit(code)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def running(self) -> bool:
        """Whether it has not ended yet."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def wait(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


def run_all(children: Iterable[Child]) -> None:
    """Wait for all of them to end well, within ``PATIENCE``.

    Raises:
        AssertionError: one ended otherwise, or not at all.
    """
    everyone = list(children)
    try:
        wait_until(lambda: not any(child.running() for child in everyone), "the end of the children")
        assert [child.code for child in everyone] == [0] * len(everyone)
    finally:
        for child in everyone:
            child.kill()


def wait_until(happened: Callable[[], bool], what: str, look: float = 0.002) -> None:
    """Wait for an event.

    Raises:
        AssertionError: it did not come.
    """
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(look)
