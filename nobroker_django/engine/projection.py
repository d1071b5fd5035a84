"""The replayed state of one log, kept in a SQLite file: a cache that can be thrown away at any time.

Invariant: rows, counters and ``applied`` (how far into the log they reach) change in one transaction, made by
``Unit``, under the log's lock. The file is written without syncs: after a crash of the machine it is made anew from
the log. Payloads, results and error texts stay in the log; a row holds their offsets.

A file name is never used twice (``BUILD`` in it comes from the clock and only rises): readers that still have an old
file open never meet a new one under its name.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .control import MAX_GENERATION
from .files import Files
from .framing import FRAME_BYTES
from .generations import Layout
from .log import FIRST_OFFSET, Log
from .schema import FORMAT, META, SCHEMA, SELECT_META, Stale
from .unit import Unit

_ROOM_BYTES = 128 * 1024
_TOUCHED_BYTES = 4096

# What reading a damaged file raises: also when SQLite's message quotes what stands in it.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
_META_TYPES: dict[str, type | tuple[type, ...]] = {"head": bytes, "clock": float, "promoted": float}


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
        _check_room(files, layout)
        build = max(time.time_ns() // 1000, after + 1)
        path = index_path(layout, log.generation, build)
        fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, file_mode)  # so that the mode is ours, not SQLite's
        try:
            files.set_mode(fd, file_mode, layout.run)
        finally:
            files.close(fd)
        projection = cls(_connect(str(path)), path, build, log)
        try:
            projection.identity = files.path_identity(path)
            projection._fill()
        except BaseException:
            projection.close()
            raise
        return projection

    @classmethod
    def private(cls, log: Log, *, copy_of: Projection | None = None) -> Projection:
        """One of this process's own, in a temporary file that SQLite makes and removes.

        Args:
            copy_of: begin with what that one holds.
        """
        projection = cls(_connect(""), None, 0, log)
        try:
            if copy_of is None:
                projection._fill()
            else:
                copy_of.connection.backup(projection.connection)
        except BaseException:
            projection.close()
            raise
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
        _check_room(files, layout)
        try:
            projection = cls(_connect(str(path), create=False), path, build, log)
        except UNREADABLE as error:  # also "busy": under the log's lock nobody can rightly be in the way
            raise Stale(str(error)) from None
        projection.identity = identity
        try:
            projection._check()
        except BaseException:
            projection.close()
            raise
        return projection

    @classmethod
    def read(cls, files: Files, layout: Layout, log: Log, build: int) -> Projection:
        """The existing file of ``build``, opened so that nothing can be written to it.

        Raises:
            Stale: it is not there, damaged, of another format or another log, or cannot be read as it is.
        """
        path = index_path(layout, log.generation, build)
        has = [files.path_identity(f"{path}{end}") is not None for end in ("", "-wal", "-shm")]
        if has == [True, True, True]:
            try:
                _check_room(files, layout)
            except OSError as error:
                raise Stale(str(error)) from None
            mode = "mode=ro"
        elif has[:2] == [True, False]:
            mode = "mode=ro&immutable=1"  # nobody is writing: the last one folded its changes in and left
        else:
            raise Stale("no file, or changes that cannot be read without writing")
        try:
            connection = sqlite3.connect(
                f"{path.as_uri()}?{mode}", timeout=5, isolation_level=None, check_same_thread=False, uri=True
            )
        except UNREADABLE as error:
            raise Stale(str(error)) from None
        projection = cls(connection, path, build, log)
        try:
            projection._check()
        except BaseException:
            projection.close()
            raise
        return projection

    def _fill(self) -> None:
        self.connection.executescript(SCHEMA)
        log = self.log
        self.connection.execute(
            f"INSERT INTO meta (format, {', '.join(META)}) VALUES (?{', ?' * len(META)})",
            (
                FORMAT,
                log.generation,
                _signed(log.log_id),
                FIRST_OFFSET,
                0,
                b"",
                log.base,
                0,
                0.0,
                0,
                0,
                0.0,
                0,
                0,
                0,
                0,
                0,
            ),
        )

    def _check(self) -> None:
        """Whether this file describes the log, up to a record that is really there."""
        try:
            rows = self.connection.execute(SELECT_META).fetchall()
        except UNREADABLE as error:
            raise Stale(str(error)) from None
        if len(rows) != 1 or rows[0][0] != FORMAT:
            raise Stale("another format")
        meta = dict(zip(META, rows[0][1:], strict=True))
        if not all(isinstance(value, _META_TYPES.get(name, int)) for name, value in meta.items()):
            raise Stale("garbled")
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
    def reading(self) -> Iterator[Unit]:
        """A ``Unit`` to ask questions of, all of them answered as of one moment.

        Raises:
            Stale: the file is damaged, or cannot be read any more.
        """
        try:
            self.connection.execute("BEGIN")
            try:
                yield Unit(self.connection, self.log)
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
        except UNREADABLE as error:
            raise Stale(str(error)) from None

    @contextmanager
    def unit(self) -> Iterator[Unit]:
        """One transaction: everything or nothing of what is done to the ``Unit`` is kept.

        Raises:
            Stale: the file is damaged, or somebody is in the way who cannot rightly be there.
            sqlite3.Error: there is no room for it.
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
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if _is_lack_of_room(error):
                raise
            raise Stale(str(error)) from None


def index_path(layout: Layout, generation: int, build: int) -> Path:
    """Where a build of the projection of one log is."""
    return layout.run / f"{generation:06d}-{build}.index"


def unlink_builds(
    files: Files, layout: Layout, *, keep: Path | None = None, least: int = 0, most: int = MAX_GENERATION
) -> None:
    """Remove the files of all builds but one, for the generations from ``least`` to ``most``."""
    for entry in files.listdir(layout.run):
        generation, _, rest = entry.partition("-")
        kept = keep is not None and entry.startswith(keep.name)
        if ".index" in rest and generation.isdecimal() and least <= int(generation) <= most and not kept:
            files.unlink(layout.run / entry)


def _check_room(files: Files, layout: Layout) -> None:
    """Whoever opens a projection first makes the file that SQLite maps (``-shm``), writing a byte in each 4096 of it.

    Where blocks are smaller (a small ext4), a full disk would be met by touching the rest of the mapping:
    SIGBUS, the end of the process. Rather an error before.

    Raises:
        OSError: there is next to no space left.
    """
    free, block_bytes = files.free_space(layout.run)
    if block_bytes < _TOUCHED_BYTES and free is not None and free < _ROOM_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(layout.run))


def _connect(path: str, *, create: bool = True) -> sqlite3.Connection:
    if not create:
        path = Path(path).as_uri() + "?mode=rw"
    connection = sqlite3.connect(
        path, timeout=1, isolation_level=None, check_same_thread=False, uri=path.startswith("file:")
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


def _is_lack_of_room(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM)
