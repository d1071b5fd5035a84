"""How many more jobs the processes of one ``nobroker_work --max-jobs`` may start together.

Invariant: never more than that are started. The count is the shared read position of a file without content: forked
processes that inherited the descriptor read on where another one stopped, and a killed process holds no lock.
"""

from __future__ import annotations

import os
import tempfile


class Budget:
    """Made by the supervisor before it forks; unlimited without ``max_jobs``."""

    def __init__(self, max_jobs: int | None) -> None:
        self._file = None
        if max_jobs is not None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            self._file.truncate(max_jobs)

    def take(self, count: int) -> int:
        """Take up to ``count`` from what is left; returns how many were had."""
        if self._file is None:
            return count
        return len(os.read(self._file.fileno(), count))

    def close(self) -> None:
        """Give the file back to the system."""
        if self._file is not None:
            self._file.close()
