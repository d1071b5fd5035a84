"""Which processes of one ``nobroker_work`` wait at which queue, for the supervisor, which looks for all of them.

Invariant: a process says that it waits before it looks for the last time, and the supervisor looks before it asks who
waits. So what was written unheard is seen by one of the two, and a process that only waits need not wake up to look.

It is a piece of memory that the forked processes have inherited, a byte for each process and queue.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence


class Waiting:
    """Made by the supervisor before it forks. Processes are numbered from 1."""

    def __init__(self, processes: int, queues: Sequence[str]) -> None:
        self._processes = processes
        self._rows = {name: row * processes for row, name in enumerate(queues)}
        self._bytes = mmap.mmap(-1, max(1, processes * len(queues)))

    def say(self, process: int, queue: str, waits: bool) -> None:
        """The process waits there from now on, or does not any more."""
        self._bytes[self._rows[queue] + process - 1] = waits

    def anybody(self, queue: str) -> bool:
        """Whether a process waits there."""
        row = self._rows[queue]
        return any(self._bytes[row : row + self._processes])

    def take(self, queue: str) -> list[int]:
        """The processes that wait there. They are going to be told, and do not wait until they say so again."""
        row = self._rows[queue]
        found = [number + 1 for number, waits in enumerate(self._bytes[row : row + self._processes]) if waits]
        for number in found:
            self.say(number, queue, False)
        return found

    def forget(self, process: int) -> None:
        """The process has ended."""
        for queue in self._rows:
            self.say(process, queue, False)
