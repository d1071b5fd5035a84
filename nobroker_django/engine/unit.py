"""One transaction on the projection: the state that the transitions change, and the questions that verbs ask of it.

Changes are collected in memory and written by ``flush``; questions flush first. Nothing in here opens a file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from . import transitions
from .framing import FRAME_BYTES, Frame
from .log import Log
from .records import Record
from .schema import COLUMNS, FIXED, SELECT_META, STATES, UPDATE_META, Stale
from .selection import Selection
from .transitions import DUE, LEASED, MAX_FAILURES, WAITING, Row

# Records are folded in chunks, about as many as the time allows: a row that several of them change is written once.
_RECORDS_PER_SECOND = 50_000
_FEWEST_RECORDS = 250
_MOST_RECORDS = 4000
_MOST_BYTES = 1024 * 1024
# So few rows of one state are found by its index and then put in order, instead of by a look at every row.
_FEW_ROWS = 10_000
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM jobs"
_INSERT = f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
# What no record changes after the job's first one is not written again.
_CHANGING = tuple(name for name in COLUMNS if name not in FIXED)
_UPDATE = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _CHANGING)} WHERE seq = ?"
_values = attrgetter(*COLUMNS)
_changing = attrgetter(*_CHANGING, "seq")


class Unit:
    """One transaction on the projection: the ``State`` of the transitions, and the questions that verbs ask.

    Changes are collected in memory and written by ``flush``; questions flush first.
    """

    def __init__(self, connection: sqlite3.Connection, log: Log) -> None:
        self._connection = connection
        self._log = log
        self._rows: dict[str, Row | None] = {}
        self._new: dict[str, Row] = {}
        self._changed: dict[int, Row] = {}
        self._removed: list[int] = []
        self._failures: list[tuple[int, int]] = []
        self._touched = False
        row = connection.execute(SELECT_META).fetchone()
        if row is None:
            raise Stale("no meta row")
        (
            _, self.generation, self.log_id, self.applied, self.head_offset, self._head,
            self.base, self.open_seq, self.clock, self.enqueued_total, self.ignored, self.promoted, *counts,
        ) = row  # fmt: skip
        self.counts: list[int] = counts

    # -- folding

    def fold(self, stop: int, seconds: float) -> bool:
        """Fold the log up to ``stop`` (bytes), for about ``seconds``; whether ``stop`` was reached.

        Raises:
            FrameDamage: the log is damaged there.
        """
        if self.applied >= stop:
            return True
        started = time.monotonic()
        decode, fold = self._log.decode, self._log.fold
        frames = self._log.frames(self.applied, stop)
        chunk: list[tuple[int, Record]] = []
        ids: list[str] = []
        most = min(max(int(_RECORDS_PER_SECOND * min(seconds, 1.0)), _FEWEST_RECORDS), _MOST_RECORDS)
        end_of_chunk = self.applied + _MOST_BYTES
        for frame in frames:
            record = decode(frame)
            chunk.append((frame.offset, record))
            job_id = getattr(record, "id", None)
            if job_id is not None:
                ids.append(job_id)
            if len(chunk) < most and frame.end < end_of_chunk and frame.end < stop:
                continue
            self._prefetch(ids)
            for offset, record in chunk:
                fold(self, record, offset)
            self.advance(frame)
            self.flush()
            chunk.clear()
            ids.clear()
            end_of_chunk = frame.end + _MOST_BYTES
            if time.monotonic() - started > seconds and frame.end < stop:
                return False
        return True

    def apply(self, record: Record, offset: int) -> None:
        """Fold one record that this process has just written at ``offset``."""
        transitions.apply(self, record, offset)

    def advance(self, frame: Frame) -> None:
        """Everything up to the end of ``frame`` is folded in."""
        self.applied = frame.end
        self.head_offset = frame.offset
        self._head = self._log.peek(frame.offset, FRAME_BYTES)
        self._touched = True

    def _prefetch(self, ids: Iterable[str]) -> None:
        wanted = [job_id for job_id in dict.fromkeys(ids) if job_id not in self._rows]
        for at in range(0, len(wanted), _FEWEST_RECORDS):
            some = wanted[at : at + _FEWEST_RECORDS]
            found = self._connection.execute(f"{_SELECT} WHERE id IN ({', '.join('?' * len(some))})", some)
            rows = {row[1]: Row(*row) for row in found}
            for job_id in some:
                self._rows[job_id] = rows.get(job_id)

    # -- State, for the transitions

    def find(self, job_id: str) -> Row | None:
        if job_id not in self._rows:
            found = self._connection.execute(f"{_SELECT} WHERE id = ?", (job_id,)).fetchone()
            self._rows[job_id] = None if found is None else Row(*found)
        return self._rows[job_id]

    def add(self, row: Row) -> None:
        old = self._rows.get(row.id)
        if old is not None:
            self._forget(old)
        self.counts[row.state] += 1
        self._rows[row.id] = self._new[row.id] = row
        self._touched = True

    def remove(self, row: Row) -> None:
        self._forget(row)
        self._rows[row.id] = None
        self._touched = True

    def _forget(self, row: Row) -> None:
        self.counts[row.state] -= 1
        self._changed.pop(row.seq, None)
        if self._new.pop(row.id, None) is None:
            self._removed.append(row.seq)
        self._failures = [failure for failure in self._failures if failure[0] != row.seq]

    def change(self, row: Row, state: int) -> None:
        self.counts[row.state] -= 1
        self.counts[state] += 1
        row.state = state
        if row.id not in self._new:
            self._changed[row.seq] = row
        self._touched = True

    def add_failure(self, row: Row, offset: int) -> None:
        row.failures += 1
        self._failures.append((row.seq, offset))

    def clear(self) -> None:
        self._rows.clear()
        self._new.clear()
        self._changed.clear()
        self._removed.clear()
        self._failures.clear()
        self._connection.execute("DELETE FROM jobs")
        self._connection.execute("DELETE FROM failures")
        self.counts = [0] * len(STATES)
        self._touched = True

    # -- writing

    def flush(self) -> None:
        """Write what has been collected into the transaction."""
        if not self._touched:
            return
        execute = self._connection.executemany
        if self._removed:
            gone = [(seq,) for seq in self._removed]
            execute("DELETE FROM jobs WHERE seq = ?", gone)
            execute("DELETE FROM failures WHERE job = ?", gone)
        if self._new:
            execute(_INSERT, map(_values, self._new.values()))
        if self._changed:
            execute(_UPDATE, map(_changing, self._changed.values()))
        if self._failures:
            execute("INSERT OR IGNORE INTO failures VALUES (?, ?)", self._failures)
            execute(
                "DELETE FROM failures WHERE job = ? AND at_offset NOT IN "
                f"(SELECT at_offset FROM failures WHERE job = ? ORDER BY at_offset DESC LIMIT {MAX_FAILURES})",
                [(seq, seq) for seq in dict.fromkeys(job for job, _ in self._failures)],
            )
        self._connection.execute(
            UPDATE_META,
            (
                self.generation, self.log_id, self.applied, self.head_offset, self._head, self.base, self.open_seq,
                self.clock, self.enqueued_total, self.ignored, self.promoted, *self.counts,
            ),
        )  # fmt: skip
        self._new.clear()
        self._changed.clear()
        self._removed.clear()
        self._failures.clear()
        self._rows.clear()
        self._touched = False

    def promote(self, now: float, limit: int) -> bool:
        """Make jobs due whose time has come, ``limit`` at the most; whether none is left.

        When the clock was set back, those whose time has not come yet after all wait again.
        """
        if not self.counts[WAITING] and now >= self.promoted:
            return True
        self.flush()
        if now < self.promoted:
            self._move(f"state = {DUE} AND waits AND available_at > ?", (now,), DUE, WAITING)
            self.promoted = now
        selected = f"SELECT seq FROM jobs WHERE state = {WAITING} AND available_at <= ? ORDER BY available_at LIMIT ?"
        moved = self._move(f"seq IN ({selected})", (now, limit), WAITING, DUE)
        if moved:
            self.promoted = max(now, self.promoted)
        return moved < limit

    def _move(self, condition: str, parameters: tuple[Any, ...], source: int, target: int) -> int:
        """Rows that only time has moved from one state to another; how many."""
        moved = self._connection.execute(f"UPDATE jobs SET state = {target} WHERE {condition}", parameters).rowcount
        if moved:
            self.counts[source] -= moved
            self.counts[target] += moved
            self._rows.clear()
            self._touched = True
        return moved

    # -- questions

    def due(self, count: int) -> list[Row]:
        """The next jobs in order: priority, rank, insertion."""
        return self._select(f"WHERE state = {DUE} ORDER BY priority DESC, rank, seq LIMIT ?", count)

    def expired(self, now: float, limit: int) -> list[Row]:
        """Jobs whose lease has run out at ``now``."""
        return self._select(
            f"WHERE state = {LEASED} AND lease_deadline <= ? ORDER BY lease_deadline LIMIT ?", now, limit
        )

    def holders(self) -> list[str]:
        """Who holds leases."""
        self.flush()
        found = self._connection.execute("SELECT DISTINCT holder FROM jobs WHERE holder IS NOT NULL")
        return [holder for (holder,) in found]

    def held_by(self, holder: str, limit: int) -> list[Row]:
        """Jobs of which one worker holds the lease."""
        return self._select("WHERE holder = ? LIMIT ?", holder, limit)

    def dead(self, limit: int) -> list[Row]:
        """Dead letters in insertion order."""
        return self._select(f"WHERE state = {transitions.DEAD} ORDER BY seq LIMIT ?", limit)

    def listed(self, states: Iterable[int], after: int, limit: int) -> list[Row]:
        """Jobs of some states in insertion order, behind ``seq`` ``after``."""
        return self.selected(Selection(tuple(states)), after, limit, 0.0)

    def selected(self, wanted: Selection, after: int, limit: int, now: float) -> list[Row]:
        """Jobs that are wanted at the moment ``now`` (Unix seconds), in insertion order, behind ``seq`` ``after``."""
        few = sum(self.counts[state] for state in wanted.states) <= _FEW_ROWS
        condition, parameters = wanted.condition(now, few=few)
        return self._select(f"WHERE {condition} AND seq > ? ORDER BY seq LIMIT ?", *parameters, after, limit)

    def next_change(self) -> float | None:
        """The next moment (Unix seconds) at which time alone makes a job leasable, if any."""
        self.flush()
        query = (
            f"SELECT min(t) FROM (SELECT min(available_at) AS t FROM jobs WHERE state = {WAITING} "
            f"UNION ALL SELECT min(lease_deadline) FROM jobs WHERE state = {LEASED})"
        )
        value: float | None = self._connection.execute(query).fetchone()[0]
        return value

    def overdue(self, now: float) -> tuple[int, float | None]:
        """How many jobs' time has come that nobody has made due yet, and the earliest of those times."""
        self.flush()
        query = f"SELECT count(*), min(available_at) FROM jobs WHERE state = {WAITING} AND available_at <= ?"
        count, earliest = self._connection.execute(query, (now,)).fetchone()
        return count, earliest

    def premature(self, now: float) -> int:
        """How many jobs were made due by a clock that has been set back since, and have to wait after all."""
        if now >= self.promoted:
            return 0
        self.flush()
        query = f"SELECT count(*) FROM jobs WHERE state = {DUE} AND waits AND available_at > ?"
        count: int = self._connection.execute(query, (now,)).fetchone()[0]
        return count

    def oldest_due(self) -> float | None:
        """The lowest rank (Unix seconds) among the due jobs: one look per priority in use."""
        self.flush()
        oldest: float | None = None
        found = self._connection.execute(
            f"SELECT priority, rank FROM jobs WHERE state = {DUE} ORDER BY priority DESC, rank LIMIT 1"
        ).fetchone()
        while found is not None:
            oldest = found[1] if oldest is None else min(oldest, found[1])
            found = self._connection.execute(
                f"SELECT priority, rank FROM jobs WHERE state = {DUE} AND priority < ? "
                "ORDER BY priority DESC, rank LIMIT 1",
                (found[0],),
            ).fetchone()
        return oldest

    def longest_run(self) -> tuple[float | None, int]:
        """When the leased job that runs longest began (Unix seconds), and how often a lease was extended at most."""
        self.flush()
        began, most = self._connection.execute(
            f"SELECT min(started_at), max(extensions) FROM jobs WHERE state = {LEASED}"  # few: one for each place
        ).fetchone()
        return began, most or 0

    def failures_of(self, row: Row) -> list[int]:
        """Offsets of the records that tell of the job's last failed attempts, oldest first."""
        self.flush()
        found = self._connection.execute("SELECT at_offset FROM failures WHERE job = ? ORDER BY at_offset", (row.seq,))
        return [offset for (offset,) in found]

    def _select(self, condition: str, *parameters: Any) -> list[Row]:
        self.flush()
        return [Row(*row) for row in self._connection.execute(f"{_SELECT} {condition}", parameters)]
