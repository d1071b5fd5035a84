"""Replaying a log that lacks records: what must have happened in between is presumed, and everything of it noted.

Invariant: the intact records are believed, in their order. Where one does not fit the state that it meets, the job is
first brought into the state that the record presupposes; then the one transition table applies. A job whose
``ENQUEUE`` is gone is not made up, only named. A finished job stays finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import transitions
from .records import Ack, Dead, Enqueue, Extend, Lease, Nack, Note, Purge, Reclaim, Record, Release, Requeue, Started
from .transitions import DEAD, DONE, DUE, LEASED, WAITING, Row, State


class Lost(NamedTuple):
    """A job of which later records speak, but whose own is gone: the last of them is a ``kind``, at ``offset``."""

    job_id: str
    offset: int
    kind: str


class Changed(NamedTuple):
    """A job in whose history something is missing before the record at ``offset``."""

    job_id: str
    offset: int
    what: str


@dataclass(slots=True)
class Losses:
    """What a lenient replay noted. ``touched`` collects the ids of the records behind ``watched_from`` (bytes)."""

    lost: dict[str, Lost] = field(default_factory=dict)
    changed: list[Changed] = field(default_factory=list)
    watched_from: int = 0
    touched: list[str] = field(default_factory=list)

    def apply(self, state: State, record: Record, offset: int) -> None:
        """Fold the record at ``offset`` (bytes in its log) into the state."""
        prepare = _TABLE.get(type(record))
        job_id: str | None = getattr(record, "id", None)
        if job_id is not None and offset >= self.watched_from:
            self.touched.append(job_id)
        if prepare is None or prepare(self, state, record, offset):
            transitions.apply(state, record, offset)

    def note(self, row: Row, offset: int, what: str) -> None:
        """Something is missing before this record of the job."""
        self.changed.append(Changed(row.id, offset, what))

    def find(self, state: State, record: Any, offset: int) -> Row | None:
        """The job of a record; ``None``, and noted, if its own record is gone.

        That of a finished job can only be meant for a later job of the same id.
        """
        row = state.find(record.id)
        if row is not None and row.state != DONE:
            return row
        self.lost[record.id] = Lost(record.id, offset, record.TYPE.name)
        return None


def _enqueue(losses: Losses, state: State, record: Enqueue, offset: int) -> bool:
    losses.lost.pop(record.id, None)
    existing = state.find(record.id)
    if existing is not None and existing.state != DONE:
        losses.note(existing, offset, "its id was used again: the job before it was finished or purged")
        state.remove(existing)
    return True


def _lease(losses: Losses, state: State, record: Lease, offset: int) -> bool:
    row = losses.find(state, record, offset)
    if row is None:
        return False
    if row.state not in (WAITING, DUE):
        losses.note(row, offset, "delivered again: how the delivery before it ended is not known")
        _revive(row)
        state.change(row, DUE)
    return True


def _of_a_lease(losses: Losses, state: State, record: Any, offset: int) -> bool:
    """For a record that presupposes a certain delivery."""
    row = losses.find(state, record, offset)
    if row is None:
        return False
    token = getattr(record, "token", None)
    if row.state == LEASED and token in (None, row.lease_token):
        return True
    losses.note(row, offset, f"{record.TYPE.name} of a delivery that is not recorded")
    _revive(row)
    row.attempts = getattr(record, "attempts", 0) or row.attempts + 1
    row.lease_token = token
    row.lease_deadline = record.at
    row.holder = row.started_at = None
    state.change(row, LEASED)
    return True


def _started(losses: Losses, state: State, record: Started, offset: int) -> bool:
    """Until when such a delivery would last is not known, and nobody has the queue open: it counts, and is over."""
    row = losses.find(state, record, offset)
    if row is None:
        return False
    if row.state == LEASED and row.lease_token == record.token:
        return True
    losses.note(row, offset, "STARTED of a delivery that is not recorded")
    _revive(row)
    row.attempts += 1
    row.lease_token = row.lease_deadline = row.holder = row.started_at = None
    state.change(row, DUE)
    return False


def _requeue(losses: Losses, state: State, record: Requeue, offset: int) -> bool:
    row = losses.find(state, record, offset)
    if row is None:
        return False
    if row.state != DEAD:
        losses.note(row, offset, "requeued, but how it became a dead letter is not recorded")
        row.lease_token = row.lease_deadline = row.holder = row.started_at = None
        state.change(row, DEAD)
    return True


def _noted(losses: Losses, state: State, record: Note, offset: int) -> bool:
    return losses.find(state, record, offset) is not None


def _purge(losses: Losses, state: State, record: Purge, offset: int) -> bool:
    if record.ids is None:
        losses.lost.clear()
        return True
    for job_id in record.ids:
        losses.lost.pop(job_id, None)
        row = state.find(job_id)
        if row is not None:
            state.remove(row)
    return False


def _revive(row: Row) -> None:
    """A dead letter must have been requeued."""
    if row.state == DEAD:
        row.attempts = 0
        row.finished_at = None


_TABLE: dict[type[Record], Callable[[Losses, State, Any, int], bool]] = {
    Enqueue: _enqueue,
    Lease: _lease,
    Extend: _of_a_lease,
    Started: _started,
    Release: _of_a_lease,
    Ack: _of_a_lease,
    Nack: _of_a_lease,
    Reclaim: _of_a_lease,
    Dead: _of_a_lease,
    Requeue: _requeue,
    Note: _noted,
    Purge: _purge,
}
