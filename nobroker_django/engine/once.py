"""Writes that may come again: the caller does not know whether an earlier one of the same jobs was made.

Invariant: however often a write comes, in whatever order with what else is done to its jobs, they are there once; and
where that cannot be guaranteed any more, the write is refused. For this each write says until when it may come
(``known_until``): its jobs are kept until then, also when they are finished and their retention is over, and a write
that comes later is refused, both by the clock of whoever holds the log's lock.

The window in which a caller's ``job_id`` is not accepted as new stays what the retention says: a job that is kept
only for the sake of its write does not stand in the way of other work under its id. A purge forgets everything.
``tests/concurrency/outbox_model.py`` is a model of all this, which shows what goes wrong without each of the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .adding import Adding
from .errors import TooLateError
from .job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One job of a write that may come again.

    ``due`` is when it may run, ``None`` at once; ``known_until`` until when the write may come. Unix seconds.
    ``unique`` is that of ``enqueue``.
    """

    job_id: str
    payload: Any
    known_until: float
    due: float | None = None
    priority: int = 0
    max_attempts: int | None = None
    visibility_timeout: float | None = None
    unique: bool = False


class Once(Adding):
    """The verb ``enqueue_once``."""

    def enqueue_once(self, entries: Sequence[Entry]) -> list[Job]:
        """Add the jobs that are not there yet, all with one write; they are on the disk when this returns.

        ``created`` is True for the jobs that this write has made, now or when it came before.

        Raises:
            TooLateError: it is later than a ``known_until``; nothing was stored.
            JobConflictError: an id is known with another payload; nothing was stored.
            NobrokerError: as ``enqueue_many``.
        """
        if not entries:
            return []
        now = self._clock()
        records = []
        for index, entry in enumerate(entries):
            record = self._record(
                f"payloads[{index}]", entry.payload, entry.job_id, now, priority=entry.priority, delay=0,
                max_attempts=entry.max_attempts, meta=None, visibility_timeout=entry.visibility_timeout,
            )  # fmt: skip
            record.available_at = entry.due if entry.due is not None and entry.due > now else None
            record.known_until = entry.known_until
            records.append(record)

        def in_time(now: float) -> None:
            for entry in entries:
                if entry.known_until <= now:
                    raise TooLateError(entry.job_id, self.name)

        return self._enqueue_known(
            records, [True] * len(records), unique=[entry.unique for entry in entries], check=in_time
        )
