"""The one transition table: how each record changes the state of a queue.

``apply`` is the only code that changes state, live and in replay, and a pure function of the records: it reads no
clock, draws no random number, makes no id. A record that does not fit the state it meets (a duplicate ack, a job that
is not there) changes nothing and is counted as ignored; no writer of this package makes such a record.

Where the rows are kept is the business of ``State``'s implementation, ``projection``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .payload import task_name
from .records import (
    Ack,
    Dead,
    Enqueue,
    Extend,
    Failure,
    Lease,
    Nack,
    Note,
    Open,
    Purge,
    Reclaim,
    Record,
    Release,
    Requeue,
    Snapshot,
    Started,
)

# WAITING and DUE are both JobState.READY: not yet seen to be eligible, and eligible. Only the passing of time, never a
# record, moves a row from the first to the second (projection.promote); replay leaves it to the next lease.
WAITING, DUE, LEASED, DONE, DEAD = range(5)
MAX_FAILURES = 20
PREVIEW_CHARACTERS = 500


@dataclass(slots=True)
class Row:
    """What the projection holds of one job. Offsets are bytes in the live log; 0 means none.

    ``waits`` tells a job that is eligible from ``available_at`` on from one that is eligible at once, whatever the
    clock says. ``keep_until`` is until when the job is kept if it is finished, as far as that is known. ``holder`` and
    ``extensions`` (how often it was extended) are those of the current lease, ``started_at`` that of the last one;
    ``deaths`` counts the workers that died while they ran the job. ``task`` is the name in a task's payload;
    ``error_class`` and ``last_error`` (the beginning of it) are those of the last failed attempt: for filters, lists.
    """

    seq: int
    id: str
    state: int
    priority: int
    rank: float
    available_at: float
    waits: int
    enqueued_at: float
    attempts: int
    max_attempts: int
    lease_deadline: float | None
    lease_token: str | None
    holder: str | None
    started_at: float | None
    extensions: int
    deaths: int
    visibility_timeout: float | None
    payload_offset: int
    result_offset: int = 0
    failures: int = 0
    finished_at: float | None = None
    keep_until: float | None = None
    task: str | None = None
    error_class: str | None = None
    last_error: str | None = None


class State(Protocol):
    """The replayed state, as the transitions see it.

    ``promoted`` is the moment (Unix seconds) up to which jobs that wait for a time may have been made due.
    """

    base: int
    open_seq: int
    clock: float
    promoted: float
    enqueued_total: int
    ignored: int

    def find(self, job_id: str) -> Row | None:
        """The row of a job."""

    def add(self, row: Row) -> None:
        """A new row; one with the same id is replaced."""

    def remove(self, row: Row) -> None:
        """Forget one row."""

    def change(self, row: Row, state: int) -> None:
        """The row was changed; ``state`` is its new state."""

    def add_failure(self, row: Row, offset: int) -> None:
        """The record at ``offset`` tells of a failed attempt of this job."""

    def clear(self) -> None:
        """Forget all rows."""


def apply(state: State, record: Record, offset: int) -> None:
    """Fold the record at ``offset`` (bytes in the live log) into the state."""
    _TABLE[type(record)](state, record, offset)


def _rank_now(state: State, at: float) -> float:
    """Rank of a job that is eligible at once: it never falls behind an earlier one, whatever the clock did."""
    if at > state.clock:
        state.clock = at
    return state.clock


_COPIED_STATES = {"leased": LEASED, "dead": DEAD, "due": DUE}


def _enqueue(state: State, record: Enqueue, offset: int) -> None:
    existing = state.find(record.id)
    if existing is not None and existing.state != DONE:
        state.ignored += 1
        return
    seq, at_once, waits, rank = record.seq, record.available_at is None, record.waits, record.rank
    if seq is None:
        state.enqueued_total += 1
        seq, waits = state.base + offset if record.carried is None else record.carried, not at_once
    if rank is None:
        rank = _rank_now(state, record.enqueued_at) if record.available_at is None else record.available_at
    state.add(
        Row(
            seq,
            record.id,
            _COPIED_STATES.get(record.state, DUE if at_once else WAITING),
            record.priority,
            rank,
            rank if record.available_at is None else record.available_at,
            int(waits),
            record.enqueued_at,
            record.attempts,
            record.max_attempts,
            record.lease_deadline,
            record.lease_token,
            record.holder,
            record.started_at,
            record.extensions,
            record.deaths,
            record.visibility_timeout,
            offset,
            task=task_name(record.payload),
            finished_at=record.finished_at,
            keep_until=record.known_until,
        )
    )


def _leased(state: State, record: Any) -> Row | None:
    """The row of a record that speaks of a lease, if that lease is the current one."""
    row = state.find(record.id)
    token = getattr(record, "token", None)
    if row is None or row.state != LEASED or (token is not None and token != row.lease_token):
        state.ignored += 1
        return None
    return row


def _end_lease(row: Row) -> None:
    row.lease_deadline = None
    row.lease_token = None
    _nobody_has(row)


def _nobody_has(row: Row) -> None:
    row.holder = None  # ``started_at`` stays, until the next lease
    row.extensions = 0


def _lease(state: State, record: Lease, offset: int) -> None:
    row = state.find(record.id)
    if row is None or row.state not in (WAITING, DUE):
        state.ignored += 1
        return
    row.attempts = record.attempts
    row.lease_deadline = record.deadline
    row.lease_token = record.token
    row.holder = record.holder
    row.started_at = record.at if record.begins else None
    row.extensions = 0
    state.change(row, LEASED)


def _extend(state: State, record: Extend, offset: int) -> None:
    row = _leased(state, record)
    if row is not None:
        row.lease_deadline = record.deadline
        row.extensions += 1
        state.change(row, LEASED)


def _started(state: State, record: Started, offset: int) -> None:
    row = _leased(state, record)
    if row is not None:
        row.started_at = record.at
        state.change(row, LEASED)


def _release(state: State, record: Release, offset: int) -> None:
    row = _leased(state, record)
    if row is not None:
        row.attempts -= 1
        row.started_at = None
        _end_lease(row)
        if row.waits:  # its time had come, by a clock that may have been set back
            state.promoted = max(state.promoted, row.available_at)
        state.change(row, DUE)


def _ack(state: State, record: Ack, offset: int) -> None:
    row = _leased(state, record)
    if row is not None:
        # The token stays: a retried ack of the same delivery is told apart from somebody else's.
        row.lease_deadline = None
        _nobody_has(row)
        row.finished_at = record.at
        row.keep_until = max(record.keep_until, row.keep_until or 0.0)
        row.result_offset = offset
        state.change(row, DONE)


def _failed(state: State, row: Row, record: Failure, offset: int) -> None:
    row.error_class = record.error_class
    row.last_error = None if record.error is None else record.error[:PREVIEW_CHARACTERS]
    row.deaths += getattr(record, "died", False)
    state.add_failure(row, offset)


def _retry(state: State, record: Nack | Reclaim, offset: int) -> None:
    row = _leased(state, record)
    if row is None:
        return
    _end_lease(row)
    if record.available_at is None:
        row.rank = row.available_at = _rank_now(state, record.at)
    else:
        row.rank = row.available_at = record.available_at
    row.waits = int(record.available_at is not None)
    _failed(state, row, record, offset)
    state.change(row, DUE if record.available_at is None else WAITING)


def _dead(state: State, record: Dead, offset: int) -> None:
    row = _leased(state, record)
    if row is not None:
        _end_lease(row)
        row.finished_at = record.at
        _failed(state, row, record, offset)
        state.change(row, DEAD)


def _requeue(state: State, record: Requeue, offset: int) -> None:
    row = state.find(record.id)
    if row is None or row.state != DEAD:
        state.ignored += 1
        return
    row.attempts = row.deaths = 0
    row.started_at = row.finished_at = None
    row.rank = row.available_at = _rank_now(state, record.at)
    row.waits = 0
    state.change(row, DUE)


def _note(state: State, record: Failure, offset: int) -> None:
    row = state.find(record.id)
    if row is None:
        state.ignored += 1
    else:
        _failed(state, row, record, offset)
        state.change(row, row.state)


def _purge(state: State, record: Purge, offset: int) -> None:
    if record.ids is None:
        state.clear()
        return
    for job_id in record.ids:
        row = state.find(job_id)
        if row is None:
            state.ignored += 1
        else:
            state.remove(row)


def _open(state: State, record: Open, offset: int) -> None:
    state.open_seq = state.base + offset


def _snapshot(state: State, record: Snapshot, offset: int) -> None:
    state.base = record.base
    state.open_seq = record.open
    state.clock = record.clock
    state.enqueued_total = record.enqueued_total
    state.ignored = record.ignored


_TABLE: dict[type[Record], Callable[[State, Any, int], None]] = {
    Enqueue: _enqueue,
    Lease: _lease,
    Extend: _extend,
    Started: _started,
    Release: _release,
    Ack: _ack,
    Nack: _retry,
    Reclaim: _retry,
    Dead: _dead,
    Requeue: _requeue,
    Note: _note,
    Purge: _purge,
    Open: _open,
    Snapshot: _snapshot,
}
