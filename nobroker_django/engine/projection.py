"""The replayed state of one log, kept in a SQLite file: a cache that can be thrown away at any time.

Invariant: rows, counters and ``applied`` (how far into the log they reach) change in one transaction, made by
``Unit``, under the log's lock. The file is written without syncs: after a crash of the machine it is made anew from
the log. Payloads, results and error texts stay in the log; a row holds their offsets.

A file name is never used twice (``BUILD`` in it comes from the clock and only rises): readers that still have an old
file open never meet a new one under its name.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from . import transitions
from .files import Files
from .framing import FRAME_BYTES, Frame
from .generations import Layout
from .log import Log
from .records import Record, decode_record
from .transitions import DUE, LEASED, MAX_FAILURES, WAITING, Row

FORMAT = 1
STATES = ("waiting", "due", "leased", "done", "dead")
_COLUMNS = tuple(field.name for field in fields(Row))
_CHUNK = 500
_SCHEMA = f"""
CREATE TABLE meta (
    format INTEGER, generation INTEGER, log_id INTEGER, applied INTEGER, head_offset INTEGER, head BLOB,
    base INTEGER, open_seq INTEGER, clock REAL, enqueued_total INTEGER, ignored INTEGER,
    waiting INTEGER, due INTEGER, leased INTEGER, done INTEGER, dead INTEGER, closed_at REAL
);
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state INTEGER NOT NULL, priority INTEGER NOT NULL,
    rank REAL NOT NULL, available_at REAL NOT NULL, enqueued_at REAL NOT NULL, attempts INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL, lease_deadline REAL, lease_token TEXT, started INTEGER NOT NULL,
    visibility_timeout REAL, payload_offset INTEGER NOT NULL, result_offset INTEGER NOT NULL,
    failures INTEGER NOT NULL, finished_at REAL, keep_until REAL
);
CREATE INDEX jobs_due ON jobs (priority DESC, rank, seq) WHERE state = {DUE};
CREATE INDEX jobs_waiting ON jobs (available_at) WHERE state = {WAITING};
CREATE INDEX jobs_leased ON jobs (lease_deadline) WHERE state = {LEASED};
CREATE INDEX jobs_dead ON jobs (seq) WHERE state = {transitions.DEAD};
CREATE TABLE failures (job INTEGER NOT NULL, at_offset INTEGER NOT NULL, PRIMARY KEY (job, at_offset)) WITHOUT ROWID;
"""
_META = (
    "generation", "log_id", "applied", "head_offset", "head", "base", "open_seq", "clock", "enqueued_total", "ignored",
    *STATES,
)  # fmt: skip
_SELECT_META = f"SELECT format, {', '.join(_META)} FROM meta"
_UPDATE_META = f"UPDATE meta SET {', '.join(f'{name} = ?' for name in _META)}"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM jobs"
_INSERT = f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_UPDATE = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _COLUMNS[2:])} WHERE seq = ?"


class Stale(Exception):
    """The file does not describe this log, or is damaged: a new one has to be built."""


class Projection:
    """One open projection file, for one log. Used by one thread at a time, under the log's lock."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, build: int, log: Log) -> None:
        self.connection = connection
        self.path = path
        self.build = build
        self.log = log
        self.identity: tuple[int, int] | None = None

    @classmethod
    def create(
        cls, files: Files, layout: Layout, log: Log, *, after: int, dir_mode: int, file_mode: int
    ) -> Projection:
        """A new, empty file for ``log``, with a build number above ``after``."""
        files.make_directory(layout.run, dir_mode)
        build = max(time.time_ns() // 1000, after + 1)
        path = index_path(layout, log.generation, build)
        files.close(files.open(path, 0o102 | 0o200, file_mode))  # O_RDWR | O_CREAT | O_EXCL: the mode is ours
        projection = cls(_connect(str(path)), path, build, log)
        projection.identity = files.path_identity(path)
        projection._fill()
        return projection

    @classmethod
    def in_memory(cls, log: Log) -> Projection:
        """A private one, for replaying to some moment."""
        projection = cls(_connect(":memory:"), None, 0, log)
        projection._fill()
        return projection

    @classmethod
    def open(cls, files: Files, layout: Layout, log: Log, build: int) -> Projection:
        """The existing file of ``build``.

        Raises:
            Stale: it is not there, damaged, of another format or another log.
        """
        path = index_path(layout, log.generation, build)
        identity = files.path_identity(path)
        if identity is None:
            raise Stale("no file")
        try:
            projection = cls(_connect(str(path), create=False), path, build, log)
        except sqlite3.DatabaseError as error:
            raise Stale(str(error)) from None
        projection.identity = identity
        try:
            projection._check()
        except BaseException:
            projection.close()
            raise
        return projection

    def _fill(self) -> None:
        self.connection.executescript(_SCHEMA)
        log = self.log
        self.connection.execute(
            f"INSERT INTO meta (format, {', '.join(_META)}) VALUES (?{', ?' * len(_META)})",
            (FORMAT, log.generation, _signed(log.log_id), 16, 0, b"", log.base, 0, 0.0, 0, 0, 0, 0, 0, 0, 0),
        )

    def _check(self) -> None:
        """Whether this file describes the log, up to a record that is really there."""
        try:
            rows = self.connection.execute(_SELECT_META).fetchall()
        except sqlite3.DatabaseError as error:
            raise Stale(str(error)) from None
        if len(rows) != 1 or rows[0][0] != FORMAT:
            raise Stale("another format")
        meta = dict(zip(_META, rows[0][1:], strict=True))
        if meta["generation"] != self.log.generation or meta["log_id"] != _signed(self.log.log_id):
            raise Stale("another log")
        if meta["head"] and self.log.peek(meta["head_offset"], FRAME_BYTES) != meta["head"]:
            raise Stale("the log holds another record where this one ends")
        if meta["head"]:
            self.log.record_at(meta["head_offset"])  # damage in the last record is found here

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def checkpoint(self, closed_at: float) -> None:
        """Bring everything into the main file and sync it, for the last closer."""
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("UPDATE meta SET closed_at = ?", (closed_at,))
        busy = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise sqlite3.OperationalError("a reader keeps the projection's log of changes")

    @contextmanager
    def unit(self) -> Iterator[Unit]:
        """One transaction: everything or nothing of what is done to the ``Unit`` is kept.

        Raises:
            Stale: the file is damaged.
        """
        connection = self.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                unit = Unit(connection, self.log)
                yield unit
                unit.flush()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise Stale(str(error)) from None
            raise


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
        row = connection.execute(_SELECT_META).fetchone()
        if row is None:
            raise Stale("no meta row")
        (
            _, self.generation, self.log_id, self.applied, self.head_offset, self._head,
            self.base, self.open_seq, self.clock, self.enqueued_total, self.ignored, *counts,
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
        frames = self._log.frames(self.applied, stop)
        while chunk := list(islice(frames, _CHUNK)):
            records = [decode_record(frame.type, frame.body, frame.offset) for frame in chunk]
            self._prefetch(record.id for record in records if hasattr(record, "id"))
            for frame, record in zip(chunk, records, strict=True):
                transitions.apply(self, record, frame.offset)
            self._advance(chunk[-1])
            self.flush()
            if time.monotonic() - started > seconds and self.applied < stop:
                return False
        return True

    def apply(self, record: Record, offset: int) -> None:
        """Fold one record that this process has just written at ``offset``."""
        transitions.apply(self, record, offset)

    def advance(self, frame: Frame) -> None:
        """Everything up to the end of ``frame`` is folded in."""
        self._advance(frame)

    def _advance(self, frame: Frame) -> None:
        self.applied = frame.end
        self.head_offset = frame.offset
        self._head = self._log.peek(frame.offset, FRAME_BYTES)
        self._touched = True

    def _prefetch(self, ids: Iterable[str]) -> None:
        wanted = [job_id for job_id in dict.fromkeys(ids) if job_id not in self._rows]
        for at in range(0, len(wanted), _CHUNK):
            some = wanted[at : at + _CHUNK]
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
            execute(_INSERT, map(astuple_row, self._new.values()))
        if self._changed:
            execute(_UPDATE, ((*astuple_row(row)[2:], row.seq) for row in self._changed.values()))
        if self._failures:
            execute("INSERT OR IGNORE INTO failures VALUES (?, ?)", self._failures)
            execute(
                "DELETE FROM failures WHERE job = ?1 AND at_offset NOT IN "
                f"(SELECT at_offset FROM failures WHERE job = ?1 ORDER BY at_offset DESC LIMIT {MAX_FAILURES})",
                [(seq,) for seq in dict.fromkeys(job for job, _ in self._failures)],
            )
        self._connection.execute(
            _UPDATE_META,
            (
                self.generation, self.log_id, self.applied, self.head_offset, self._head, self.base, self.open_seq,
                self.clock, self.enqueued_total, self.ignored, *self.counts,
            ),
        )  # fmt: skip
        self._new.clear()
        self._changed.clear()
        self._removed.clear()
        self._failures.clear()
        self._rows.clear()
        self._touched = False

    def promote(self, now: float, limit: int) -> bool:
        """Make jobs due whose time has come, ``limit`` at the most; whether none is left."""
        self.flush()
        moved = self._connection.execute(
            f"UPDATE jobs SET state = {DUE} WHERE seq IN (SELECT seq FROM jobs "
            f"WHERE state = {WAITING} AND available_at <= ? ORDER BY available_at LIMIT ?)",
            (now, limit),
        ).rowcount
        if moved:
            self.counts[WAITING] -= moved
            self.counts[DUE] += moved
            self._rows.clear()
            self._touched = True
        return moved < limit

    # -- questions

    def due(self, count: int) -> list[Row]:
        """The next jobs in order: priority, rank, insertion."""
        return self._select(f"WHERE state = {DUE} ORDER BY priority DESC, rank, seq LIMIT ?", count)

    def expired(self, now: float, limit: int) -> list[Row]:
        """Jobs whose lease has run out at ``now``."""
        return self._select(
            f"WHERE state = {LEASED} AND lease_deadline <= ? ORDER BY lease_deadline LIMIT ?", now, limit
        )

    def dead(self, limit: int) -> list[Row]:
        """Dead letters in insertion order."""
        return self._select(f"WHERE state = {transitions.DEAD} ORDER BY seq LIMIT ?", limit)

    def listed(self, states: Iterable[int], after: int, limit: int) -> list[Row]:
        """Jobs of some states in insertion order, behind ``seq`` ``after``."""
        wanted = ", ".join(str(int(state)) for state in states)
        return self._select(f"WHERE seq > ? AND state IN ({wanted}) ORDER BY seq LIMIT ?", after, limit)

    def next_change(self) -> float | None:
        """The next moment (Unix seconds) at which time alone makes a job leasable, if any."""
        self.flush()
        query = (
            f"SELECT min(t) FROM (SELECT min(available_at) AS t FROM jobs WHERE state = {WAITING} "
            f"UNION ALL SELECT min(lease_deadline) FROM jobs WHERE state = {LEASED})"
        )
        value: float | None = self._connection.execute(query).fetchone()[0]
        return value

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

    def failures_of(self, row: Row) -> list[int]:
        """Offsets of the records that tell of the job's last failed attempts, oldest first."""
        self.flush()
        found = self._connection.execute("SELECT at_offset FROM failures WHERE job = ? ORDER BY at_offset", (row.seq,))
        return [offset for (offset,) in found]

    def _select(self, condition: str, *parameters: Any) -> list[Row]:
        self.flush()
        return [Row(*row) for row in self._connection.execute(f"{_SELECT} {condition}", parameters)]


def index_path(layout: Layout, generation: int, build: int) -> Path:
    """Where a build of the projection of one log is."""
    return layout.run / f"{generation:06d}-{build}.index"


def unlink_builds(files: Files, layout: Layout, *, keep: Path | None) -> None:
    """Remove the files of all builds but one."""
    for entry in files.listdir(layout.run):
        if ".index" in entry and (keep is None or not entry.startswith(keep.name)):
            files.unlink(layout.run / entry)


def astuple_row(row: Row) -> tuple[Any, ...]:
    """The row's columns in order."""
    return tuple(getattr(row, name) for name in _COLUMNS)


def _connect(path: str, *, create: bool = True) -> sqlite3.Connection:
    if path != ":memory:" and not create:
        path = Path(path).as_uri() + "?mode=rw"
    connection = sqlite3.connect(
        path, timeout=30, isolation_level=None, check_same_thread=False, uri=path.startswith("file:")
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -8000")
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def _signed(number: int) -> int:
    """A 64-bit number as SQLite keeps it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
