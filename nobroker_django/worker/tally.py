"""How the deliveries of one process have ended: counted, and told to the console."""

from __future__ import annotations

from nobroker_django.execution import Outcome, Report

from .console import Console


class Tally:
    """Used by the clerk's thread; read by others."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.counts = dict.fromkeys(Outcome, 0)

    @property
    def ended(self) -> int:
        """How many deliveries have ended."""
        return sum(self.counts.values())

    def job(self, queue: str, report: Report) -> None:
        """One delivery has ended: told first, so that whoever sees the count finds it told."""
        self._console.job(queue, report)
        self.counts[report.outcome] += 1

    def text(self) -> str:
        """The counts for the last line of the process."""
        return ", ".join(f"{count} {outcome.value}" for outcome, count in self.counts.items() if count) or "no jobs"
