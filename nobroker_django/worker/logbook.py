"""What the supervisor has to say to the project's logging, said by a process of its own.

Invariant: no handler of the project's runs in the supervisor while it has children: one that sends a mail may take
longer than a lease lasts. The lines on standard output do not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from .console import log
from .options import EXIT_STOPPED

MOST = 1000
"""So many records are kept for the next process; of more, the number alone is told."""

Entry = tuple[int, str, Mapping[str, object] | None]


class Logbook:
    """Records that are still to be told: level, text, and the attributes of a job."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._left_out = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    def note(self, level: int, text: str, facts: Mapping[str, object] | None = None) -> None:
        """One more record."""
        if len(self._entries) < MOST:
            self._entries.append((level, text, facts))
        else:
            self._left_out += 1

    def take(self) -> list[Entry]:
        """What there is, which is somebody else's to tell from now on."""
        entries, self._entries = self._entries, []
        if self._left_out:
            entries.append((logging.ERROR, f"{self._left_out} more records of the supervisor were left out", None))
            self._left_out = 0
        return entries


def tell(entries: list[Entry]) -> int:
    """Hand the records to the project's logging; returns the exit code of a process that has done nothing else."""
    for level, text, facts in entries:
        log(level, text, facts)
    logging.shutdown()
    return EXIT_STOPPED
