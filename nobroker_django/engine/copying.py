"""What of one log goes into the next: copies of the jobs that are kept, and what was written meanwhile.

Invariant: replaying the new records makes the state that replaying the old log makes, without the finished jobs whose
time is over. Every job keeps its ``seq``. All of the old log is read and checked: damage cannot vanish with it.

In every log ``seq`` rises with the offset, so one pass over the old log meets the jobs in their order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from msgspec import UNSET

from .errors import CorruptLogError
from .framing import FrameDamage
from .log import FIRST_OFFSET, Log
from .projection import Projection
from .records import Ack, Enqueue, Failure, Note, Record
from .schema import COLUMNS
from .transitions import DEAD, DONE, DUE, LEASED, WAITING, Row

_PIECE_FRAMES = 500
_NAMES = {WAITING: "ready", DUE: "due", LEASED: "leased", DEAD: "dead", DONE: "leased"}
_KEPT = f"(state != {DONE} OR keep_until > ?)"


def copies(projection: Projection, log: Log, end: int, now: float) -> Iterator[list[Record]]:
    """The records that tell a new log all about the jobs that are kept, some at a time, or none.

    Args:
        projection: the state of ``log`` at ``end`` (bytes), which nobody else uses.
        now: finished jobs whose time is over then are left out.

    Raises:
        CorruptLogError: a record is damaged, or is not what the projection says.
    """
    execute = projection.connection.execute
    jobs = ((row[_PAYLOAD], Row(*row)) for row in execute(f"{_SELECT} WHERE {_KEPT} ORDER BY seq", (now,)))
    failures = execute(
        f"SELECT at_offset, NULL FROM failures WHERE job IN (SELECT seq FROM jobs WHERE {_KEPT}) ORDER BY at_offset",
        (now,),
    )
    results = execute(
        f"SELECT result_offset, NULL FROM jobs WHERE state = {DONE} AND keep_until > ? ORDER BY result_offset", (now,)
    )
    wanted: Iterator[tuple[int, Row | None]] = heapq.merge(jobs, failures, results, key=itemgetter(0))
    frames = log.frames(FIRST_OFFSET, end)
    place, row = next(wanted, (end, None))
    try:
        while frames_now := list(islice(frames, _PIECE_FRAMES)):
            found: list[Record] = []
            for frame in frames_now:
                record = log.decode(frame)
                if frame.offset == place:
                    found.append(_copy(record, row, log, place))
                    place, row = next(wanted, (end, None))
            yield found
            if place < frames_now[-1].end:
                break
    except FrameDamage as damage:
        raise log.corrupt(damage) from None
    if place < end:
        raise _another(log, place)


_SELECT = f"SELECT {', '.join(COLUMNS)} FROM jobs"
_PAYLOAD = COLUMNS.index("payload_offset")


def _copy(record: Record, row: Row | None, log: Log, offset: int) -> Record:
    """One kept record: the job with its state, a failure as a note, the end of a finished job as it was."""
    record.n = record.u = UNSET
    if row is not None:
        if not isinstance(record, Enqueue) or record.id != row.id:
            raise _another(log, offset)
        return _with_state(record, row)
    if isinstance(record, Ack):
        record.token = None  # the job is copied as leased, under the token of the delivery that finished it
        return record
    if isinstance(record, Failure):
        return Note(
            id=record.id,
            at=record.at,
            attempts=record.attempts,
            error=record.error,
            error_class=record.error_class,
            traceback=record.traceback,
            worker=record.worker,
        )
    raise _another(log, offset)


def _with_state(record: Enqueue, row: Row) -> Enqueue:
    record.seq = row.seq
    # A job that time has made due waits again, for the next look: the clock may have been set back by then.
    record.state = _NAMES[WAITING if row.state == DUE and row.waits else row.state]
    record.attempts = row.attempts
    record.rank = row.rank
    record.waits = bool(row.waits)
    record.available_at = row.available_at
    record.lease_deadline = row.lease_deadline
    record.lease_token = row.lease_token
    record.holder = row.holder
    record.started_at = row.started_at
    record.extensions = row.extensions
    record.deaths = row.deaths
    record.finished_at = row.finished_at if row.state == DEAD else None
    return record


def _another(log: Log, offset: int) -> CorruptLogError:
    return CorruptLogError(log.path, offset, "the record that a job's state points to is not here")


def carried(log: Log, start: int, stop: int) -> Iterator[tuple[list[Record], int]]:
    """What was written between two offsets (bytes), some records at a time, and how far that reaches.

    The records go behind the copies as they stand; a job keeps the ``seq`` that its offset gave it.

    Raises:
        CorruptLogError: a record is damaged.
    """
    frames = log.frames(start, stop)
    try:
        while frames_now := list(islice(frames, _PIECE_FRAMES)):
            found = []
            for frame in frames_now:
                record = log.decode(frame)
                record.n = record.u = UNSET
                if type(record) is Enqueue:
                    record.carried = log.base + frame.offset
                found.append(record)
            yield found, frames_now[-1].end
    except FrameDamage as damage:
        raise log.corrupt(damage) from None
