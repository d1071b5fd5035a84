"""A projection held against a replay of the same log, up to the same record: row by row.

What may differ is told by the passing of time alone: a job whose time has come is moved from waiting to due by the
next lease, never by a record, and back when the clock was set back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from .schema import COLUMNS, STATES
from .transitions import DUE, WAITING

_JOBS = f"SELECT {', '.join(COLUMNS)} FROM jobs ORDER BY seq"
_FAILURES = "SELECT CAST(job AS INTEGER), CAST(at_offset AS INTEGER) FROM failures ORDER BY 1, 2"
_MARKS = ("applied", "head_offset", "head", "base", "open_seq", "clock", "enqueued_total", "ignored")
_META = f"SELECT {', '.join((*_MARKS, *STATES, 'promoted'))} FROM meta"
_SEQ, _ID, _STATE, _AVAILABLE_AT, _WAITS = map(COLUMNS.index, ("seq", "id", "state", "available_at", "waits"))
_LONGEST_VALUE = 60


class Difference(NamedTuple):
    """Something that a projection holds otherwise than the log says; of one job, if ``job_id`` is set."""

    job_id: str | None
    text: str


def differences(projection: sqlite3.Connection, replayed: sqlite3.Connection) -> Iterator[Difference]:
    """What ``projection`` has wrong. Both have been folded up to the same record, and are only read.

    Raises:
        sqlite3.DatabaseError: a file is damaged.
    """
    for (text,) in projection.execute("PRAGMA integrity_check(10)"):
        if text != "ok":
            yield Difference(None, f"SQLite finds it damaged: {text}")
    mine, theirs = (
        dict(zip((*_MARKS, *STATES, "promoted"), connection.execute(_META).fetchone(), strict=True))
        for connection in (projection, replayed)
    )
    for name in _MARKS:
        if mine[name] != theirs[name]:
            yield _wrong(None, name, mine[name], theirs[name])
    counted = dict.fromkeys(STATES, 0)
    for state, count in projection.execute("SELECT state, count(*) FROM jobs GROUP BY state"):
        counted[_state_name(state)] = count
    for name, count in counted.items():
        if mine.get(name) != count:
            yield Difference(None, f"{name}: it counts {mine.get(name)} of the jobs, and holds {count}")
    yield from _jobs(projection, replayed, mine["promoted"])
    yield from _failures(projection, replayed)


def _jobs(projection: sqlite3.Connection, replayed: sqlite3.Connection, promoted: object) -> Iterator[Difference]:
    mine, theirs = projection.execute(_JOBS), replayed.execute(_JOBS)
    one, other = next(mine, None), next(theirs, None)
    while one is not None or other is not None:
        if one == other:
            one, other = next(mine, None), next(theirs, None)
        elif other is None or (one is not None and one[_SEQ] < other[_SEQ]):
            assert one is not None
            yield Difference(one[_ID], "it is there, but the log does not say so")
            one = next(mine, None)
        elif one is None or one[_SEQ] > other[_SEQ]:
            yield Difference(other[_ID], f"it is missing; by the log it is {STATES[other[_STATE]]}")
            other = next(theirs, None)
        else:
            yield from _columns(one, other, promoted)
            one, other = next(mine, None), next(theirs, None)


def _columns(one: tuple[Any, ...], other: tuple[Any, ...], promoted: object) -> Iterator[Difference]:
    for place, name in enumerate(COLUMNS):
        if one[place] == other[place]:
            continue
        if place != _STATE:
            yield _wrong(other[_ID], name, one[place], other[place])
        elif not _is_time_alone(one, other, promoted):
            yield _wrong(other[_ID], name, _state_name(one[place]), _state_name(other[place]))


def _is_time_alone(one: tuple[Any, ...], other: tuple[Any, ...], promoted: object) -> bool:
    """Whether the row is in another state because it was made due in time, or waits again by a clock set back."""
    if (one[_STATE], other[_STATE]) == (DUE, WAITING):
        moment = one[_AVAILABLE_AT]
        return isinstance(promoted, float) and isinstance(moment, float) and moment <= promoted
    return (one[_STATE], other[_STATE]) == (WAITING, DUE) and bool(one[_WAITS])


def _state_name(state: Any) -> str:
    return STATES[state] if isinstance(state, int) and 0 <= state < len(STATES) else repr(state)


def _failures(projection: sqlite3.Connection, replayed: sqlite3.Connection) -> Iterator[Difference]:
    mine, theirs = projection.execute(_FAILURES), replayed.execute(_FAILURES)
    one, other = next(mine, None), next(theirs, None)
    while one is not None or other is not None:
        if one == other:
            one, other = next(mine, None), next(theirs, None)
        elif other is None or (one is not None and one < other):
            assert one is not None
            yield Difference(_id_of(projection, one[0]), f"a failure at byte {one[1]} that the log does not tell of")
            one = next(mine, None)
        else:
            yield Difference(_id_of(replayed, other[0]), f"the failure at byte {other[1]} is missing")
            other = next(theirs, None)


def _id_of(connection: sqlite3.Connection, seq: int) -> str | None:
    found = connection.execute("SELECT id FROM jobs WHERE seq = ?", (seq,)).fetchone()
    return None if found is None else str(found[0])


def _wrong(job_id: str | None, name: str, value: Any, wanted: Any) -> Difference:
    return Difference(job_id, f"{name}: it says {_shown(value)}, by the log it is {_shown(wanted)}")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
