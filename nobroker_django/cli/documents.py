"""Jobs and counts as JSON documents and as lines of text.

Invariant: a document loses nothing that the queue holds; a line shows enough to recognise the thing, and is cut.
Nothing is escaped in here: ``Output`` does that.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from nobroker_django.engine.compaction import CompactionResult
from nobroker_django.engine.job import Job, JobState, QueueStats
from nobroker_django.engine.wording import count_of

from .text import duration, iso, shorten

PAYLOAD_PREVIEW, ERROR_PREVIEW = 120, 200
_CALL = {"task", "args", "kwargs"}


# -- jobs


def job_document(job: Job, queue: str) -> dict[str, Any]:
    """A job for ``--json``: its fields, the queue, and every time in both forms."""
    document = {"queue": queue, **job.to_dict()}
    for name in ("available_at", "enqueued_at", "lease_deadline", "started_at", "finished_at"):
        document[f"{name}_iso"] = iso(document[name])
    for error in document["errors"]:
        error["at_iso"] = iso(error["at"])
    return document


def job_line(queue: str, job: Job, now: float | None = None) -> str:
    """A job on one line: when it came, where, which, its state, how often tried, and what it is."""
    words = [
        iso(job.enqueued_at) or "-",
        queue,
        job.id,
        f"{state_name(job, now):7}",
        f"{job.attempts}/{job.max_attempts}",
        payload_text(job.payload),
    ]
    if job.state is JobState.LEASED:
        words.append(_lease_text(job, now))
    elif state_name(job, now) == "delayed":
        words.append(f"not before {iso(job.available_at)}")
    if job.state is JobState.DEAD:
        words.append(shorten(error_text(job), ERROR_PREVIEW))
    return "  ".join(words)


def _lease_text(job: Job, now: float | None) -> str:
    """For how long a worker has been running a leased job, how often the lease was extended, and when it ends."""
    parts = []
    if job.started_at is not None:
        now = time.time() if now is None else now
        parts.append(f"running for {duration(max(0.0, now - job.started_at))}")
    if job.extensions:
        parts.append(f"extended {count_of(job.extensions, 'time')}")
    return ", ".join((*parts, f"until {iso(job.lease_deadline)}"))


def dead_letter_line(queue: str, job: Job) -> str:
    """A dead letter on one line: when, where, which job, how often tried, why, and its payload."""
    return "  ".join(
        (
            iso(died_at(job)) or "-",
            queue,
            job.id,
            f"{job.attempts}/{job.max_attempts}",
            shorten(error_text(job), ERROR_PREVIEW),
            payload_text(job.payload),
        )
    )


def lease_line(job: Job) -> str:
    """A job that has just been leased: id, token, attempt, deadline and payload."""
    return "  ".join(
        (
            job.id,
            job.lease_token or "-",
            f"{job.attempts}/{job.max_attempts}",
            f"until {iso(job.lease_deadline)}",
            payload_text(job.payload),
        )
    )


def state_name(job: Job, now: float | None = None) -> str:
    """The job's state; ``delayed`` for a ready one whose time has not come."""
    if job.state is JobState.READY and job.available_at > (time.time() if now is None else now):
        return "delayed"
    return job.state.value


def died_at(job: Job) -> float | None:
    """When the job became a dead letter (Unix seconds)."""
    if job.finished_at is not None:
        return job.finished_at
    return job.errors[-1].at if job.errors else None


def error_text(job: Job) -> str:
    """Class and message of the job's last failure, as far as they are known."""
    return job.last_error or "unknown"


def payload_text(payload: Any) -> str:
    """A payload for people: a call of a task as such, anything else as JSON; cut."""
    if isinstance(payload, dict) and set(payload) == _CALL:
        return f"{payload['task']} args={short_json(payload['args'])} kwargs={short_json(payload['kwargs'])}"
    return short_json(payload)


def short_json(value: Any) -> str:
    """Any value as JSON for people; cut."""
    try:
        return shorten(json.dumps(value, ensure_ascii=False), PAYLOAD_PREVIEW)
    except (ValueError, RecursionError):  # an integer without end, or endless nesting: version 1 allowed both
        return f"({type(value).__name__} that cannot be shown)"


# -- counts


@dataclass(frozen=True, slots=True)
class StatsReport:
    """The counts of one queue; ``known`` is whether the settings name it."""

    HEADINGS: ClassVar[tuple[str, ...]] = (
        *("QUEUE", "READY", "DELAYED", "LEASED", "DONE", "DEAD", "ENQUEUED", "OLDEST READY", "LONGEST RUN"),
    )
    name: str
    stats: QueueStats
    known: bool = True

    def row(self) -> tuple[str, ...]:
        """The cells below ``HEADINGS``."""
        stats = self.stats
        ages = ("-" if age is None else duration(age) for age in (stats.oldest_ready_age, stats.oldest_running_age))
        counts = (stats.ready, stats.delayed, stats.leased, stats.done, stats.dead, stats.enqueued_total)
        return (self.name, *(str(count) for count in counts), *ages)

    def document(self) -> dict[str, Any]:
        """The counts for ``--json``."""
        return {"queue": self.name, "in_settings": self.known, **self.stats.to_dict()}


def compaction_document(queue: str, result: CompactionResult) -> dict[str, Any]:
    """What a compaction did, for ``--json``; sizes in bytes."""
    return {
        "queue": queue,
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
        "bytes_reclaimed": result.bytes_reclaimed,
        "jobs_kept": result.jobs_kept,
        "jobs_dropped": result.jobs_dropped,
    }
