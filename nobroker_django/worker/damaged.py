"""Which queues the processes of one ``nobroker_work`` have found damaged, for its last words and its exit code.

Invariant: a name is written before the process goes on without that queue, so a process that dies later has said it.
It stands in a nameless file that the forked processes have inherited, with one position for all: nobody writes over
another's.
"""

from __future__ import annotations

import os
import tempfile


class Damaged:
    """Made by the supervisor before it forks."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115

    def add(self, queue: str) -> None:
        """One process has met damage in this queue."""
        os.write(
            self._file.fileno(), queue.encode() + b"\n"
        )  # the position is shared: whoever comes next writes behind

    def names(self) -> list[str]:
        """Each queue once, in the order of the alphabet."""
        size = os.fstat(self._file.fileno()).st_size
        return sorted(set(os.pread(self._file.fileno(), size, 0).decode().split()))

    def close(self) -> None:
        """Give the file back to the system."""
        self._file.close()
