"""What a row of the outbox holds: one enqueue call with everything that was settled at it.

Invariant: what is read back is what was put in, to the last byte of each payload, so that the digest of a job is the
same whichever way it gets into the log. A row is one write: its jobs are there together or not at all.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import msgspec

from nobroker_django.engine import options
from nobroker_django.engine.once import Entry
from nobroker_django.engine.payload import decode_payload, encode_payload

SWEEP_SECONDS = 7 * 86_400.0
"""How much longer than its retention a row may be swept, and how much longer the log knows its jobs."""

_lock = threading.Lock()
_last = 0


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The jobs (id and payload) and options of a call; ``due`` in Unix seconds."""

    jobs: list[tuple[str, msgspec.Raw]]
    priority: int = 0
    due: float | None = None
    max_attempts: int | None = None
    visibility_timeout: float | None = None
    unique: bool = False


_decoder = msgspec.json.Decoder(Stored)


def known_until(called_at: float, retention: float) -> float:
    """Until when a row of this moment may be swept (Unix seconds)."""
    return options.latest(called_at, retention + SWEEP_SECONDS)


def pack(entries: Sequence[Entry]) -> bytes:
    """The entries of one call, which share their options, as bytes for the database."""
    first = entries[0]
    stored = Stored(
        [(entry.job_id, msgspec.Raw(encode_payload(entry.payload))) for entry in entries],
        priority=first.priority,
        due=first.due,
        max_attempts=first.max_attempts,
        visibility_timeout=first.visibility_timeout,
        unique=first.unique,
    )
    return msgspec.json.encode(stored)


def unpack(content: bytes, known_until: float) -> list[Entry]:
    """The entries again.

    Raises:
        ValueError: these bytes were not made by ``pack``.
    """
    try:
        stored = _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise ValueError(f"the content of the row is not that of an outbox: {error}") from None
    return [
        Entry(
            job_id=job_id,
            payload=decode_payload(payload),
            known_until=known_until,
            due=stored.due,
            priority=stored.priority,
            max_attempts=stored.max_attempts,
            visibility_timeout=stored.visibility_timeout,
            unique=stored.unique,
        )
        for job_id, payload in stored.jobs
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
