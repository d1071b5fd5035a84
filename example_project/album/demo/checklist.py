"""What was checked, and the table that says so."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Entry:
    """One check and its result."""

    claim: str
    held: bool
    detail: str


@dataclass(slots=True)
class Checklist:
    """The checks of one run, in order."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, claim: str, held: object, detail: str) -> bool:
        """Note one check; returns whether it held."""
        self.entries.append(Entry(claim, bool(held), detail))
        return bool(held)

    @property
    def all_held(self) -> bool:
        """Whether there were checks and all of them held."""
        return bool(self.entries) and all(entry.held for entry in self.entries)

    def table(self) -> str:
        """One line for each check: `ok` or `FAILED`, the claim, what was seen."""
        width = max((len(entry.claim) for entry in self.entries), default=0)
        return "\n".join(
            f"  {'ok    ' if entry.held else 'FAILED'}  {entry.claim:<{width}}  {entry.detail}".rstrip()
            for entry in self.entries
        )
