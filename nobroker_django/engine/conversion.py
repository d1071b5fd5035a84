"""Making a log of ours out of one that version 1 wrote: once, when the queue is first opened for writing.

Never in place, and never beside a version 1 process in the middle of a call: ``NAME.lock`` is held exclusively by
``flock``, which is what version 1 locks. On disk: the next generation under a temporary name, synced; its final name;
the directory, synced; the pointer (one rename); the directory, synced. A crash at any step leaves either the queue of
version 1 as it was or the complete new one. The old file is not changed; the next compaction retires it.

Afterwards a process of version 1 finds a log whose version it refuses, or a lock that it does not get.

Every job is kept. Finished ones stay known for a day from now, whatever the queue's retention: until its next
compaction version 1 knew them for ever, and somebody may still enqueue one of their ids again.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from .control import MAX_GENERATION
from .errors import StorageError
from .files import Files
from .framing import MAX_BODY_BYTES, FrameDamage
from .generations import Layout, list_generations, parse_pointer, write_pointer
from .lockfile import LockFile
from .new_log import NewLog
from .old_log import OldLog, generation_without_pointer
from .place import Place
from .projection import Projection
from .records import Ack, Enqueue, Note, Record, Snapshot
from .recovery import RecoveryReport, Tail, keep_aside
from .snapshots import enqueue_record
from .transitions import DEAD, DONE, DUE, LEASED, WAITING, Row
from .unit import Unit

logger = logging.getLogger("nobroker_django")
KEPT_SECONDS = 86_400.0
_PAGE_ROWS = 1000
_STATES = (WAITING, DUE, LEASED, DONE, DEAD)
_NAMES = {WAITING: "ready", DUE: "ready", LEASED: "leased", DONE: "leased", DEAD: "dead"}
# What a record of ours may need beyond the one of version 1, now or after later compactions.
_GROWTH_BYTES = 1024
_FOR_EVER = float("inf")


def convert(files: Files, layout: Layout, lock_file: LockFile, *, now: float, file_mode: int) -> RecoveryReport | None:
    """Convert the queue, if nobody else is at it or has done it; look again in either case.

    Args:
        now: the moment that is written into the new log (Unix seconds).

    Returns:
        What the end of the old log was like; ``None`` when nothing was converted.

    Raises:
        CorruptLogError: the old log is damaged; nothing was changed.
        OSError, StorageError: the system refused something; the old queue is unchanged, or the new one complete.
    """
    if not files.flock(lock_file.fd, exclusive=True):
        return None
    try:
        with Place(files, layout.directory) as place:
            log = _open_old_log(place, layout) if place.has(layout.lock, lock_file.identity) else None
            if log is None:
                return None
            try:
                return _convert(log, place, layout, lock_file, now, file_mode)
            except FrameDamage as damage:
                raise log.corrupt(damage) from None
            except sqlite3.Error as error:
                raise StorageError("convert", log.path, error) from error
            finally:
                log.release()
    finally:
        files.funlock(lock_file.fd)


def _open_old_log(files: Files, layout: Layout) -> OldLog | None:
    """The live log, if it is one of version 1. Holds the lock of version 1: nobody can replace it."""
    try:
        fd = files.open(layout.pointer, os.O_RDONLY)
    except FileNotFoundError:
        generation = generation_without_pointer(files, layout)
    else:
        try:
            generation = parse_pointer(files, layout, files.pread(fd, 64, 0))
        finally:
            files.close(fd)
    if generation is None:
        return None
    return OldLog.open(files, layout.log(generation), generation)


def _convert(
    log: OldLog, files: Files, layout: Layout, lock_file: LockFile, now: float, file_mode: int
) -> RecoveryReport:
    tail = log.tail()
    projection = Projection.private(log)
    try:
        with projection.unit() as unit:
            unit.fold(tail.good, _FOR_EVER)
        if files.path_identity(layout.pointer) is None:
            # Version 1 takes "no pointer" for generation 0; with a second log there, nobody else would.
            write_pointer(files, layout, log.generation, file_mode)
        kept = keep_aside(log, tail, layout, files, file_mode) if tail.good < tail.size else None
        lock_file.control.prepare()
        with projection.reading() as unit:
            generation = _make_live(unit, log, tail.good, files, layout, now, file_mode)
            jobs = sum(unit.counts)
    finally:
        projection.close()
    report = _report(log, tail, kept)
    logger.warning(
        "%s: %d jobs of format version 1 (nobroker 0.1) were brought into %s. The old file is kept until the next "
        "compaction; nobroker 0.1 cannot use this queue any more.",
        log.path, jobs, layout.log(generation).name,
    )  # fmt: skip
    if report.repaired:
        logger.warning(
            "%s: a torn tail of %d bytes at byte %d (%s) was left out; it is kept in %s. "
            "No acknowledged job was in it.",
            log.path, report.bytes_discarded, tail.good, report.damage, kept,
        )  # fmt: skip
    return report


def _report(log: OldLog, tail: Tail, kept: Path | None) -> RecoveryReport:
    return RecoveryReport(
        records_applied=tail.records,
        bytes_scanned=tail.size - tail.scanned_from,
        bytes_discarded=tail.size - tail.good,
        damage=tail.damage.reason if tail.damage else "none",
        offset=tail.good if kept else None,
        path=str(log.path),
        kept_path=str(kept) if kept else None,
    )


def _make_live(unit: Unit, log: OldLog, end: int, files: Files, layout: Layout, now: float, file_mode: int) -> int:
    """Write the next generation and name it in the pointer; its number."""
    generation = max(list_generations(files, layout)) + 1
    if generation > MAX_GENERATION:
        raise StorageError("convert", log.path, f"generation {generation} is beyond the largest number")
    snapshot = Snapshot(
        log_id=f"{int.from_bytes(os.urandom(8), 'big') | 1:016x}",
        at=now,
        base=end,  # the copies carry the offsets of their records in the old log as ``seq``
        clock=unit.clock,
        enqueued_total=unit.enqueued_total,
    )
    new = NewLog(files, layout, generation, snapshot, file_mode)
    try:
        for row in _rows(unit):
            new.add(_copies(unit, log, row, now))
        new.finish()
        new.take_name()
        files.sync_directory(layout.directory)
        write_pointer(files, layout, generation, file_mode)
    except BaseException:
        new.remove_unless_live()
        raise
    finally:
        new.close()
    return generation


def _rows(unit: Unit) -> Iterator[Row]:
    after = -1
    while rows := unit.listed(_STATES, after, _PAGE_ROWS):
        after = rows[-1].seq
        yield from rows


def _copies(unit: Unit, log: OldLog, row: Row, now: float) -> Iterator[Record]:
    """The records that tell the new log all about one job: itself, its failures as notes, its end as an ACK."""
    payload = enqueue_record(log, row).payload
    if len(bytes(payload)) > MAX_BODY_BYTES - _GROWTH_BYTES:
        raise StorageError(
            "convert",
            log.path,
            f"the payload of job {row.id!r} takes {len(bytes(payload))} bytes, and a record with the "
            f"rest of its fields might not hold it; the limit is {MAX_BODY_BYTES - _GROWTH_BYTES}. Finish the job "
            "with nobroker 0.1 first",
        )
    yield Enqueue(
        id=row.id,
        payload=payload,
        enqueued_at=row.enqueued_at,
        max_attempts=row.max_attempts,
        priority=row.priority,
        available_at=row.available_at,
        seq=row.seq,
        state=_NAMES[row.state],
        attempts=row.attempts,
        waits=True,
        lease_deadline=row.lease_deadline,
        lease_token=row.lease_token,
        finished_at=row.finished_at if row.state == DEAD else None,
    )
    for offset in unit.failures_of(row):
        failure = log.failure_at(offset)
        yield Note(id=row.id, at=failure.at, attempts=failure.attempts, error=failure.error)
    if row.state == DONE:
        yield Ack(id=row.id, at=row.finished_at or 0.0, keep_until=now + KEPT_SECONDS)
