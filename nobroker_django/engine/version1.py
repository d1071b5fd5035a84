"""What the records of format version 1 mean: those of the PyPI package ``nobroker`` 0.1. They are read, never written.

They differ from ours in this: no SNAPSHOT, no OPEN, and no batches, every record counts for itself; a job that a
compaction copied is an ENQUEUE with its state and its last error; the JSON is the standard library's, so payloads may
hold NaN, infinities and lone surrogates. Payloads are kept as their bytes stand there; the other fields are brought
into the ranges that ours have.

Invariant: ``decode`` and ``apply`` make of the records what version 1 made of them. A second ENQUEUE of an id replaces
the first; a RECLAIM leaves the last error as it was. ``seq`` of a job is the offset of its record, in the same order.

Frames and the file are the business of ``old_log``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from . import lax
from .failures import describe
from .framing import Frame, FrameDamage
from .options import LAST_MOMENT
from .payload import task_name
from .records import NULL, Ack, Dead, Enqueue, Extend, Lease, Nack, Purge, Reclaim, Record, RecordType, Requeue
from .transitions import DEAD, DONE, LEASED, PREVIEW_CHARACTERS, WAITING, Row, State

_INT32 = 1 << 31
_STATES = {"ready": WAITING, "leased": LEASED, "dead": DEAD}


class OldEnqueue(Enqueue, kw_only=True):
    """A job, new or copied. ``number`` counts the jobs of the queue from 1 on."""

    number: int = 0
    last_error: str | None = None


class OldRequeue(Requeue, kw_only=True):
    """A dead letter becomes ready again."""

    available_at: float
    max_attempts: int | None = None


# -- decoding


def decode(frame: Frame) -> Record:
    """The record of an intact frame.

    Raises:
        FrameDamage: it is malformed, or of a type that version 1 does not have.
    """
    make = _DECODERS.get(frame.type)
    if make is None:
        raise FrameDamage(frame.offset, f"record type {frame.type} is unknown in format version 1")
    try:
        return make(frame.body)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        name = RecordType(frame.type).name
        raise FrameDamage(frame.offset, f"the {name} record is malformed: {error!r}") from None


class _Written(Struct):
    """The members of an ENQUEUE, before their types are looked at."""

    id: Any
    payload: Raw = NULL
    priority: Any = 0
    state: Any = "ready"
    attempts: Any = 0
    max_attempts: Any = 5
    available_at: Any = 0.0
    enqueued_at: Any = 0.0
    lease_deadline: Any = None
    lease_token: Any = None
    last_error: Any = None
    seq: Any = 0


_written_decoder = msgspec.json.Decoder(_Written)


def _written(body: bytes) -> _Written:
    try:
        return _written_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = lax.members(body)
    raw = members.pop("payload", b"null")
    known = {name: json.loads(value) for name, value in members.items() if name in _Written.__struct_fields__}
    return _Written(payload=Raw(raw), **known)


def _fields(body: bytes) -> dict[str, Any]:
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    return fields


def _text(value: Any) -> str:
    """An id or a token. What is no text that can be stored is shown as its JSON, so that it equals nothing else."""
    if isinstance(value, str):
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            pass
    return f"json:{json.dumps(value)}"


def _moment(value: Any) -> float:
    """A time between 1970 and 9999; what is no number at all becomes the first of them."""
    try:
        number = float(value)
    except OverflowError:
        return LAST_MOMENT
    return 0.0 if math.isnan(number) else min(max(number, 0.0), LAST_MOMENT)


def _integer(value: Any) -> int:
    """An integer of 32 bits."""
    try:
        number = int(value)
    except OverflowError:  # an infinity
        number = _INT32 if value > 0 else -_INT32
    return min(max(number, -_INT32), _INT32 - 1)


def _error(value: Any) -> str | None:
    """The text of a failure, cut as every such text."""
    return describe(value if value is None or isinstance(value, str) else json.dumps(value)).message


def _enqueue(body: bytes) -> OldEnqueue:
    written = _written(body)
    if written.state not in _STATES:
        raise ValueError(f"state {written.state!r}")
    leased = written.state == "leased"
    return OldEnqueue(
        id=_text(written.id),
        payload=written.payload,
        enqueued_at=_moment(written.enqueued_at),
        max_attempts=_integer(written.max_attempts),
        priority=_integer(written.priority),
        available_at=_moment(written.available_at),
        state=written.state,
        attempts=_integer(written.attempts),
        lease_deadline=_moment(written.lease_deadline or 0.0) if leased else None,
        lease_token=_text(written.lease_token) if leased else None,
        number=_integer(written.seq),
        last_error=_error(written.last_error),
    )


def _lease(body: bytes) -> Lease:
    fields = _fields(body)
    return Lease(
        id=_text(fields["id"]),
        at=_moment(fields.get("at", 0.0)),
        deadline=_moment(fields["deadline"]),
        attempts=_integer(fields["attempts"]),
        token=_text(fields.get("token")),
    )


def _extend(body: bytes) -> Extend:
    fields = _fields(body)
    return Extend(id=_text(fields["id"]), at=_moment(fields.get("at", 0.0)), deadline=_moment(fields["deadline"]))


def _ack(body: bytes) -> Ack:
    fields = _fields(body)
    at = _moment(fields.get("at", 0.0))
    return Ack(id=_text(fields["id"]), at=at, keep_until=at)


def _nack(body: bytes) -> Nack:
    fields = _fields(body)
    return Nack(
        id=_text(fields["id"]),
        at=_moment(fields.get("at", 0.0)),
        attempts=_integer(fields.get("attempts", 0)),
        error=_error(fields.get("error")),
        available_at=_moment(fields["available_at"]),
    )


def _reclaim(body: bytes) -> Reclaim:
    fields = _fields(body)
    when = fields.get("available_at")
    return Reclaim(
        id=_text(fields["id"]),
        at=_moment(fields.get("at", 0.0)),
        available_at=None if when is None else _moment(when),
    )


def _dead(body: bytes) -> Dead:
    fields = _fields(body)
    return Dead(id=_text(fields["id"]), at=_moment(fields.get("at", 0.0)), error=_error(fields.get("error")))


def _requeue(body: bytes) -> OldRequeue:
    fields = _fields(body)
    limit = fields.get("max_attempts")
    return OldRequeue(
        id=_text(fields["id"]),
        at=_moment(fields.get("at", 0.0)),
        available_at=_moment(fields.get("available_at", 0.0)),
        max_attempts=None if limit is None else _integer(limit),
    )


def _purge(body: bytes) -> Purge:
    return Purge(at=_moment(_fields(body).get("at", 0.0)))


_DECODERS: dict[int, Callable[[bytes], Record]] = {
    1: _enqueue, 2: _lease, 3: _ack, 4: _nack, 5: _reclaim, 6: _dead, 7: _requeue, 8: _purge, 9: _extend
}  # fmt: skip


# -- transitions


def apply(state: State, record: Record, offset: int) -> None:
    """Fold the record at ``offset`` (bytes in its log) into the state."""
    _TABLE[type(record)](state, record, offset)


def _found(state: State, record: Any) -> Row | None:
    row = state.find(record.id)
    if row is None:
        state.ignored += 1
    return row


def _end_lease(row: Row, state: State, number: int) -> None:
    row.lease_deadline = None
    if number != DONE:  # an ack that is tried again is known by its token
        row.lease_token = None
    state.change(row, number)


def _failed(state: State, row: Row, error: str | None, offset: int) -> None:
    row.last_error = None if error is None else error[:PREVIEW_CHARACTERS]
    state.add_failure(row, offset)


def _wait_until(row: Row, when: float) -> None:
    row.rank = row.available_at = when
    row.waits = 1


def _apply_enqueue(state: State, record: OldEnqueue, offset: int) -> None:
    state.find(record.id)  # so that the row which this one replaces is known
    state.enqueued_total = max(state.enqueued_total + 1, record.number)
    state.clock = max(state.clock, record.enqueued_at)
    when = record.available_at or 0.0
    row = Row(
        seq=offset,
        id=record.id,
        state=_STATES[record.state],
        priority=record.priority,
        rank=when,
        available_at=when,
        waits=1,
        enqueued_at=record.enqueued_at,
        attempts=record.attempts,
        max_attempts=record.max_attempts,
        lease_deadline=record.lease_deadline,
        lease_token=record.lease_token,
        holder=None,
        started_at=None,
        extensions=0,
        deaths=0,
        visibility_timeout=None,
        payload_offset=offset,
        result_offset=0,
        failures=0,
        finished_at=record.enqueued_at if record.state == "dead" else None,
        keep_until=None,
        task=task_name(record.payload),
        error_class=None,
        last_error=None,
    )
    state.add(row)
    if record.last_error is not None:
        _failed(state, row, record.last_error, offset)


def _apply_lease(state: State, record: Lease, offset: int) -> None:
    row = _found(state, record)
    if row is not None:
        row.attempts = record.attempts
        row.lease_deadline = record.deadline
        row.lease_token = record.token
        state.change(row, LEASED)


def _apply_extend(state: State, record: Extend, offset: int) -> None:
    row = _found(state, record)
    if row is not None and row.state == LEASED:
        row.lease_deadline = record.deadline
        state.change(row, LEASED)


def _apply_ack(state: State, record: Ack, offset: int) -> None:
    row = _found(state, record)
    if row is not None:
        row.finished_at = record.at
        row.keep_until = record.keep_until
        row.result_offset = offset
        _end_lease(row, state, DONE)


def _apply_nack(state: State, record: Nack, offset: int) -> None:
    row = _found(state, record)
    if row is not None:
        row.attempts = record.attempts or row.attempts
        _wait_until(row, record.available_at or 0.0)
        _failed(state, row, record.error, offset)
        _end_lease(row, state, WAITING)


def _apply_reclaim(state: State, record: Reclaim, offset: int) -> None:
    row = _found(state, record)
    if row is not None:
        _wait_until(row, row.available_at if record.available_at is None else record.available_at)
        _end_lease(row, state, WAITING)


def _apply_dead(state: State, record: Dead, offset: int) -> None:
    row = _found(state, record)
    if row is not None:
        row.finished_at = record.at
        _failed(state, row, record.error, offset)
        _end_lease(row, state, DEAD)


def _apply_requeue(state: State, record: OldRequeue, offset: int) -> None:
    row = _found(state, record)
    if row is not None:
        row.attempts = 0
        row.finished_at = None
        if record.max_attempts is not None:
            row.max_attempts = record.max_attempts
        _wait_until(row, record.available_at)
        _end_lease(row, state, WAITING)


def _apply_purge(state: State, record: Purge, offset: int) -> None:
    state.clear()


_TABLE: dict[type[Record], Callable[[State, Any, int], None]] = {
    OldEnqueue: _apply_enqueue,
    Lease: _apply_lease,
    Extend: _apply_extend,
    Ack: _apply_ack,
    Nack: _apply_nack,
    Reclaim: _apply_reclaim,
    Dead: _apply_dead,
    OldRequeue: _apply_requeue,
    Purge: _apply_purge,
}
