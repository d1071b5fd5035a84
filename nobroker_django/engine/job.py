"""What callers see of a job: a detached snapshot, its states, and the counts of a queue.

Nothing in here touches a file. A ``Job`` is a copy: changing it changes nothing in the queue.
"""

from __future__ import annotations

import enum
import os
import time
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import msgspec

from .failures import in_one_line


class JobState(str, enum.Enum):
    """Where a job is. A delayed job is ``READY`` with ``available_at`` in the future."""

    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class JobError:
    """One failed attempt: number of the attempt, time (Unix seconds), class name, message and traceback (cut).

    ``worker`` is the host and the process id of the worker that has told of it; None for attempts of which their
    worker could not tell (it died, or its lease ran out), and those of other callers than a worker of tasks.
    """

    attempt: int
    at: float
    error_class: str | None
    message: str | None
    traceback: str | None = None
    worker: str | None = None

    @property
    def text(self) -> str | None:
        """Class and message, as far as they are known: ``ValueError: no such address``."""
        return in_one_line(self.error_class, self.message)


class Job(msgspec.Struct):
    """One enqueued call and what is known of its delivery.

    Times are Unix seconds. ``attempts`` counts deliveries; ``lease_token`` is the fencing token of the current lease;
    ``last_error`` is the text of the last failed attempt, of an exception with its class;
    ``seq`` is the insertion order; ``created`` is False when ``enqueue`` found the id already there; ``outcome`` is
    "succeeded" once the job is ``DONE``; ``started_at`` is when the last delivery began to run, if that is recorded;
    ``extensions`` tells how often the lease of a leased job was extended; ``worker`` who has finished a job that is
    ``DONE``, as in ``JobError``; ``meta`` and ``visibility_timeout`` are what
    the enqueuer put beside the payload.
    """

    id: str
    payload: Any
    priority: int = 0
    state: JobState = JobState.READY
    attempts: int = 0
    max_attempts: int = 5
    available_at: float = 0.0
    enqueued_at: float = 0.0
    lease_deadline: float | None = None
    lease_token: str | None = None
    last_error: str | None = None
    seq: int = 0
    created: bool = True
    result: Any = None
    outcome: str | None = None
    finished_at: float | None = None
    errors: list[JobError] = msgspec.field(default_factory=list)
    meta: dict[str, Any] | None = None
    visibility_timeout: float | None = None
    started_at: float | None = None
    extensions: int = 0
    worker: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The job as a dictionary of JSON values (``state`` as its name)."""
        data = msgspec.structs.asdict(self)
        data["state"] = self.state.value
        data["errors"] = [asdict(error) for error in self.errors]
        return data

    def is_eligible(self, now: float) -> bool:
        """Whether the job may be leased at the moment ``now``."""
        return self.state is JobState.READY and self.available_at <= now


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A delivery that has failed without a word of whoever had it: its lease ran out, or its process has ended.

    ``state`` is that of the job now, ``available_at`` when it can be had again (Unix seconds).
    """

    job_id: str
    task: str | None
    attempts: int
    max_attempts: int
    error: str
    state: JobState
    available_at: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Jobs by state at one moment.

    ``total`` is the sum of the five states; ``enqueued_total`` counts every job ever enqueued and never decreases;
    ``oldest_ready_age`` is how long (seconds) the job that has waited longest has been eligible, None when none is;
    ``oldest_running_age`` how long the one that runs longest has been running, and ``most_extensions`` how often a
    lease that is held now was extended: a task that hangs shows there.
    ``behind_bytes`` is how much of the log a read-only look could not take into account: 0 means that the figures are
    those of this moment.
    """

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    total: int = 0
    enqueued_total: int = 0
    oldest_ready_age: float | None = None
    oldest_running_age: float | None = None
    most_extensions: int = 0
    behind_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The counts as a dictionary of JSON values."""
        return asdict(self)


_FRACTIONS = [f"{number:03x}" for number in range(4096)]


def new_job_ids(count: int) -> list[str]:
    """New ids, ascending: 32 hex digits in the layout of a version 7 UUID (RFC 9562, section 5.7, method 3).

    Time order keeps the projection's index of ids cheap; the random bits come from the system, so a forked child never
    repeats its parent's.
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    # 48 bits of milliseconds, version, 12 bits of fraction (counted up within a call), variant, 60 random bits.
    stamp = (milliseconds & 0xFFFF_FFFF_FFFF) << 12 | rest * 4096 // 1_000_000
    random = os.urandom(8 * count).hex()
    ids: list[str] = []
    while len(ids) < count:
        head, fraction = f"{stamp >> 12:012x}7", stamp & 0xFFF
        starts = range(16 * len(ids), 16 * count, 16)
        pairs = zip(islice(_FRACTIONS, fraction, None), starts, strict=False)
        ids += [f"{head}{digits}8{random[start : start + 15]}" for digits, start in pairs]
        stamp = (stamp >> 12) + 1 << 12
    return ids


def new_job_id() -> str:
    """One new id; see ``new_job_ids``."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    head = f"{milliseconds & 0xFFFF_FFFF_FFFF:012x}7{_FRACTIONS[rest * 4096 // 1_000_000]}8"
    return head + os.urandom(8).hex()[:15]
