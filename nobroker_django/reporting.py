"""What ``nobroker_stats`` and ``nobroker_dlq`` show and do, as functions.

Invariant: reading changes no job. Jobs of a queue that is no longer in the settings are shown, not hidden.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from . import conf
from .commandline import iso, shorten
from .engine.errors import JobNotFoundError, NotLeasedError
from .engine.job import Job, JobState, QueueStats
from .execution import error_text
from .queues import get_queue, open_queue

PAYLOAD_PREVIEW, ERROR_PREVIEW = 120, 200


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The counts of one queue; ``known`` is whether the settings name it."""

    HEADINGS: ClassVar[tuple[str, ...]] = (
        *("QUEUE", "READY", "DELAYED", "LEASED", "DONE", "DEAD", "ENQUEUED", "OLDEST READY"),
    )
    name: str
    stats: QueueStats
    known: bool = True

    def row(self) -> tuple[str, ...]:
        """The cells below ``HEADINGS``."""
        stats = self.stats
        age = "-" if stats.oldest_ready_age is None else duration(stats.oldest_ready_age)
        counts = (stats.ready, stats.delayed, stats.leased, stats.done, stats.dead, stats.enqueued_total)
        return (self.name, *(str(count) for count in counts), age)

    def document(self) -> dict[str, Any]:
        """The counts for ``--json``."""
        return {"queue": self.name, "in_settings": self.known, **self.stats.to_dict()}


def report_queue(name: str) -> QueueReport:
    """The counts of a queue of the settings."""
    return QueueReport(name, get_queue(name).stats())


def forgotten_queues() -> list[QueueReport]:
    """The counts of the queues that have a log below ``NOBROKER["DIR"]`` but are not in the settings."""
    settings = conf.get_settings()
    reports = []
    for pointer in sorted(settings.dir.glob("*.current")):
        name = pointer.name.removesuffix(".current")
        if name in settings.queues or not conf.QUEUE_NAME.fullmatch(name):
            continue
        with open_queue(name, conf.QueueSettings()) as queue:
            reports.append(QueueReport(name, queue.stats(), known=False))
    return reports


def dead_letters(name: str, limit: int) -> list[Job]:
    """The dead letters of a queue, at most ``limit``."""
    return get_queue(name).dlq(limit=limit)


def dead_letter_line(name: str, job: Job) -> str:
    """A dead letter on one line: when, where, which job, how often tried, why, and its payload."""
    last = job.errors[-1] if job.errors else None
    payload = job.payload
    if isinstance(payload, dict) and set(payload) == {"task", "args", "kwargs"}:
        what = f"{payload['task']} args={_text(payload['args'])} kwargs={_text(payload['kwargs'])}"
    else:
        what = _text(payload)
    return "  ".join(
        (
            iso(last.at if last is not None else job.finished_at) or "-",
            name,
            job.id,
            f"{job.attempts}/{job.max_attempts}",
            shorten(error_text(job), ERROR_PREVIEW),
            what,
        )
    )


def requeue_all(queues: list[str]) -> int:
    """Give every dead letter of the queues new attempts; returns how many."""
    return sum(get_queue(name).requeue_dead() for name in queues)


def requeue_some(queues: list[str], job_ids: list[str]) -> tuple[int, list[str]]:
    """Give these dead letters new attempts; returns how many, and the ids that no queue has among its dead letters."""
    count = 0
    missing = []
    for job_id in job_ids:
        requeued = 0
        for name in queues:
            queue = get_queue(name)
            try:
                if queue.get(job_id).state is JobState.DEAD:
                    requeued += queue.requeue_dead(job_id)
            except (JobNotFoundError, NotLeasedError):
                continue
        count += requeued
        if not requeued:
            missing.append(job_id)
    return count, missing


def duration(seconds: float) -> str:
    """Seconds for people: ``4.2s``, ``3m05s``, ``2h10m``, ``5d03h``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for unit, below, size, part in (("m", "s", 60, 1), ("h", "m", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if unit == "m" else 24) or unit == "d":
            return f"{whole // size}{unit}{whole % size // part:02d}{below}"
    raise AssertionError


def _text(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), PAYLOAD_PREVIEW)
