"""What a row of the outbox holds: one enqueue call with everything that was settled at it.

Invariant: what is read back is what was put in, to the last byte of each payload, so that the digest of a job is the
same whichever way it gets into the log. A row is one write: its jobs are there together or not at all. A release that
does not know everything that a row says refuses it, rather than run a job otherwise than it was called.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import msgspec

from nobroker_django.engine import options as checks
from nobroker_django.engine.once import Entry
from nobroker_django.engine.payload import decode_payload, encode_payload

SWEEP_SECONDS = 7 * 86_400.0
"""How much longer than its retention a row may be swept, and how much longer the log knows its jobs."""

_lock = threading.Lock()
_last = 0


class Options(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Those of a job; ``due`` in Unix seconds."""

    priority: int = 0
    due: float | None = None
    max_attempts: int | None = None
    visibility_timeout: float | None = None
    unique: bool = False


class Stored(Options, frozen=True, omit_defaults=True, kw_only=True):
    """The jobs of a call: ``jobs`` (id and payload) with its options, or ``each`` with its own where they differ.

    Not both: a release that knows no ``each`` misses ``jobs`` and refuses the row.
    """

    jobs: list[tuple[str, msgspec.Raw]] = []
    each: list[tuple[str, msgspec.Raw, Options]] = []


_decoder = msgspec.json.Decoder(Stored)


def known_until(called_at: float, retention: float) -> float:
    """Until when a row of this moment may be swept (Unix seconds)."""
    return checks.latest(called_at, retention + SWEEP_SECONDS)


def pack(entries: Sequence[Entry]) -> bytes:
    """The entries of one call as bytes for the database."""
    options = [
        Options(
            priority=entry.priority,
            due=entry.due,
            max_attempts=entry.max_attempts,
            visibility_timeout=entry.visibility_timeout,
            unique=entry.unique,
        )
        for entry in entries
    ]
    jobs = [(entry.job_id, msgspec.Raw(encode_payload(entry.payload))) for entry in entries]
    if all(one == options[0] for one in options):
        return msgspec.json.encode(Stored(jobs=jobs, **msgspec.structs.asdict(options[0])))
    return msgspec.json.encode(Stored(each=[(*job, own) for job, own in zip(jobs, options, strict=True)]))


def unpack(content: bytes, known_until: float) -> list[Entry]:
    """The entries again.

    Raises:
        ValueError: these bytes were not made by ``pack``, or by that of a later release.
    """
    try:
        stored = _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise ValueError(f"the content of the row is not that of an outbox: {error}") from None
    if bool(stored.jobs) == bool(stored.each):
        raise ValueError("the content of the row is not that of an outbox: it has to have either jobs or each")
    return [
        Entry(
            job_id=job_id,
            payload=decode_payload(payload),
            known_until=known_until,
            due=options.due,
            priority=options.priority,
            max_attempts=options.max_attempts,
            visibility_timeout=options.visibility_timeout,
            unique=options.unique,
        )
        for job_id, payload, options in stored.each or [(*job, stored) for job in stored.jobs]
    ]


def new_key() -> str:
    """A key for a row, greater than all that this process has made before, whatever became of its clock."""
    global _last
    with _lock:
        _last = max(time.time_ns(), _last + 1)
        return f"{_last:016x}{os.urandom(8).hex()}"


def _unlock_in_child() -> None:
    # Another thread of the parent may have held the lock at the fork; it does not exist in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)
