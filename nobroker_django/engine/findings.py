"""What a check of a queue may find, and what kind of thing each finding is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from .errors import CorruptLogError, UnsupportedVersionError
from .records import Record
from .transitions import DONE, DUE, LEASED, WAITING

MOST_FINDINGS = 1000  # that are listed; the others are counted


class Kind(StrEnum):
    """What a finding is about. The first three are damage: acknowledged data are concerned."""

    DAMAGE = "damage"
    TRANSITION = "transition"
    POINTER = "pointer"
    UNSUPPORTED = "unsupported"
    TORN_TAIL = "torn tail"
    WORDS = "control words"
    PROJECTION = "projection"


DAMAGING = frozenset((Kind.DAMAGE, Kind.TRANSITION, Kind.POINTER))


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be: in which file, where (bytes), of which job, as far as known."""

    kind: Kind
    reason: str
    path: str
    offset: int | None = None
    job_id: str | None = None


@dataclass(slots=True)
class Verification:
    """What was checked, and what was found: see ``verify_queue``.

    ``end`` is up to where (bytes) the log was checked. ``projection`` is ``equal``, ``differs``, ``none`` (no shared
    one that could be compared) or ``skipped`` (the log itself is damaged); ``behind_bytes`` is how much of the log it
    has still to be told, which is no fault. ``notes`` are remarks that are no findings.
    """

    queue: str
    directory: Path
    generation: int | None = None
    version: int | None = None
    log_path: Path | None = None
    end: int = 0
    records: int = 0
    writes: int = 0
    jobs: dict[str, int] = field(default_factory=dict)
    projection: str = "none"
    behind_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether acknowledged data are damaged, or nobody can say which log is the live one."""
        return any(finding.kind in DAMAGING for finding in self.findings)

    @property
    def unsupported(self) -> bool:
        """Whether the log is of a format version that this release does not know."""
        return any(finding.kind is Kind.UNSUPPORTED for finding in self.findings)

    @property
    def whole(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def add(self, finding: Finding) -> None:
        """One finding more."""
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)
        else:
            self.unlisted += 1


def problem_finding(problem: CorruptLogError) -> Finding:
    """Why a queue cannot be opened."""
    kind = Kind.DAMAGE if problem.path.endswith(".log") else Kind.POINTER
    if isinstance(problem, UnsupportedVersionError):
        kind = Kind.UNSUPPORTED
    return Finding(kind, problem.reason, problem.path, problem.offset if kind is Kind.DAMAGE else None)


def why_not(record: Record, state: int | None, token: str | None) -> str:
    """Why a record does not fit a job in this state."""
    if state is None:
        return "is not there"
    if state == LEASED and getattr(record, "token", None) not in (None, token):
        return f"is leased under the token {token!r}, not {getattr(record, 'token', None)!r}"
    names = {WAITING: "ready", DUE: "ready", LEASED: "leased", DONE: "done"}
    return f"is {names.get(state, 'dead')} at that moment"
