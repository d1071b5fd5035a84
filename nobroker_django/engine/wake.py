"""A thread that sleeps at descriptors, and how other threads of its process wake it.

Invariant: a call of ``set`` that comes before, during or after the beginning of a ``wait`` ends that ``wait``.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from .files import Files


class Wake:
    """One sleeper. Belongs to one process; a forgotten one closes itself."""

    def __init__(self) -> None:
        self._files = Files()
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)

    @property
    def fd(self) -> int:
        """Readable after ``set``."""
        return self._here.fileno()

    def set(self) -> None:
        """Wake the sleeper. Never waits."""
        try:
            self._there.send(b"\0")
        except OSError:
            pass  # full: it has been set often enough; or closed: nobody sleeps any more

    def wait(self, fds: Sequence[int], seconds: float) -> list[int]:
        """Sleep until one of ``fds`` (``fd`` among them) is readable, ``seconds`` at the most; those that are."""
        ready = self._files.wait_readable(fds, seconds)
        if self.fd in ready:
            try:
                self._here.recv(4096)
            except OSError:
                pass  # somebody else has taken it out
        return ready

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Nobody sleeps here any more."""
        self._here.close()
        self._there.close()
