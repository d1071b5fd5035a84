"""Writing what is still alive as the next generation, and making that one live by one rename.

On disk: the new log under a temporary name, synced; its final name; the directory, synced; the pointer (one rename);
the directory, synced; the control words; only then the old log is unlinked. A crash at any step leaves exactly one
complete live generation. All of it happens under the log's lock; the new log is locked too before anybody can find it.

Kept: jobs that are ready, delayed, leased or dead, and finished ones until their ``keep_until``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET

from .clock import Deadline
from .control import MAX_GENERATION
from .deciding import Decision
from .errors import CompactionError
from .files import Files
from .framing import HEADER_BYTES, FrameDamage, decode_header, iter_frames, read_frame
from .generations import Layout, list_generations, remove_unfinished, sweep_temporaries, write_pointer
from .log import Log, write_new_log
from .records import Ack, Enqueue, Failure, Note, Record, Snapshot, decode_record
from .snapshots import enqueue_record
from .transitions import DEAD, DONE, DUE, LEASED, MAX_FAILURES, WAITING, Row

logger = logging.getLogger("nobroker_django")
_PAGE_ROWS = 1000
_LIVE = (WAITING, DUE, LEASED, DEAD)
_NAMES = {WAITING: "ready", DUE: "due", LEASED: "leased", DEAD: "dead", DONE: "leased"}


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction achieved: log sizes in bytes, and jobs kept and dropped."""

    bytes_before: int
    bytes_after: int
    jobs_kept: int
    jobs_dropped: int

    @property
    def bytes_reclaimed(self) -> int:
        """By how much the log shrank."""
        return self.bytes_before - self.bytes_after

    def describe(self) -> str:
        """One line for people."""
        share = 100.0 * self.bytes_reclaimed / self.bytes_before if self.bytes_before else 0.0
        return (
            f"compacted {self.bytes_before} -> {self.bytes_after} bytes ({share:.1f}% reclaimed), "
            f"kept {self.jobs_kept} jobs, dropped {self.jobs_dropped} finished"
        )


def compact(decision: Decision) -> CompactionResult:
    """Make the next generation of the log live. The caller holds the log's lock.

    Raises:
        CompactionError: the new generation could not be written; the live log is untouched.
        CorruptLogError: a record that had to be copied is damaged; the live log is untouched.
    """
    session, old = decision.held.session, decision.held.log
    layout, files, file_mode = session.layout, session.files, session.file_mode
    _check_every_frame(old, decision.held.end)
    strays = sweep_leftovers(files, layout, old.generation)
    generation = max([old.generation, *strays]) + 1
    if generation > MAX_GENERATION:
        raise CompactionError(f"generation {generation} is beyond the largest number; the queue is unchanged")
    temporary, target = layout.temporary("compact"), layout.log(generation)
    reached = False
    try:
        kept, size = _write(decision, files, temporary, generation, file_mode)
        files.rename(temporary, target)
        files.sync_directory(layout.directory)
        new = Log(files, target, generation)
        try:
            if not files.flock(new.fd, exclusive=True):
                raise CompactionError(f"{target} is locked by another program; the queue is unchanged")
            reached = True
            write_pointer(files, layout, generation, file_mode)
            control = decision.held.lock_file.control
            with session.syncs.locked(old, Deadline(session.lock_timeout)):
                control.set_build(0)
                control.publish(new.position(size), new.position(HEADER_BYTES))
                control.set_synced(new.position(size))
        finally:
            new.release()  # and with it the lock of the new log
    except OSError as error:
        remove_unfinished(files, layout, generation, temporary)
        raise CompactionError(
            f"could not make generation {generation} of {layout.name!r} live: {error}. "
            f"{'Either log is complete; the pointer says which one is live' if reached else 'The queue is unchanged'} "
            "and usable. Free some disk space and try again."
        ) from error
    except BaseException:
        remove_unfinished(files, layout, generation, temporary)
        raise
    total = sum(decision.unit.counts)
    return CompactionResult(decision.held.end, size, kept, total - kept)


def _check_every_frame(log: Log, end: int) -> None:
    """Damage must not vanish with the log that it is in.

    Raises:
        CorruptLogError: there is some.
    """
    try:
        for frame in log.frames(HEADER_BYTES, end):
            decode_record(frame.type, frame.body, frame.offset)
    except FrameDamage as damage:
        raise log.corrupt(damage) from None


def remove_retired(files: Files, layout: Layout, retired: int) -> None:
    """Unlink the log that has just been replaced, and older ones; those who still read it keep their descriptors."""
    try:
        for generation in list_generations(files, layout):
            if generation <= retired:
                files.unlink(layout.log(generation))
    except OSError as error:
        logger.warning("could not remove the retired logs of %s: %s", layout.name, error)


def _write(decision: Decision, files: Files, path: Path, generation: int, mode: int) -> tuple[int, int]:
    """Write the new log and sync it; how many jobs it holds, and its size in bytes."""
    unit, old = decision.unit, decision.held.log
    copies = kept = 0
    for row in _rows_to_keep(decision):
        kept += 1
        copies += 1 + (row.state == DONE) + min(row.failures, MAX_FAILURES)
    snapshot = Snapshot(
        log_id=old.snapshot.log_id,
        at=decision.now,
        base=old.base + decision.held.end,
        open=unit.open_seq,
        clock=unit.clock,
        copies=copies,
        enqueued_total=unit.enqueued_total,
        ignored=unit.ignored,
    )
    jobs = (_copies(decision, row) for row in _rows_to_keep(decision))
    return kept, write_new_log(files, path, generation, snapshot, jobs, mode)


def _rows_to_keep(decision: Decision) -> Iterator[Row]:
    after = -1
    while rows := decision.unit.listed((*_LIVE, DONE), after, _PAGE_ROWS):
        after = rows[-1].seq
        yield from (row for row in rows if row.state != DONE or (row.keep_until or 0.0) > decision.now)


def _copies(decision: Decision, row: Row) -> Iterator[Record]:
    """The records that tell the new log all about one job; its failures as notes, its end as the ACK that it was."""
    log = decision.held.log
    record: Enqueue = enqueue_record(log, row)
    record.n = record.u = UNSET
    record.seq = row.seq
    record.state = _NAMES[row.state]
    record.attempts = row.attempts
    record.rank = row.rank
    record.waits = bool(row.waits)
    record.available_at = row.available_at
    record.lease_deadline = row.lease_deadline
    record.lease_token = row.lease_token
    record.started = bool(row.started)
    record.finished_at = row.finished_at if row.state == DEAD else None
    yield record
    for offset in decision.unit.failures_of(row):
        failure = log.record_at(offset)
        assert isinstance(failure, Failure)
        yield Note(
            id=failure.id,
            at=failure.at,
            attempts=failure.attempts,
            error=failure.error,
            error_class=failure.error_class,
            traceback=failure.traceback,
        )
    if row.state == DONE:
        ack = log.record_at(row.result_offset)
        assert isinstance(ack, Ack)
        ack.n = ack.u = UNSET
        ack.token = None
        yield ack


def sweep_leftovers(files: Files, layout: Layout, live: int) -> list[int]:
    """Remove what crashed compactions left behind; the generations that were left alone.

    A log above the live one that holds nothing but copies was never live, and is removed. One that holds more was
    (a directory copied in pieces, an old pointer restored): it is left alone, with a warning.
    """
    sweep_temporaries(files, layout, "current", "compact")
    strays = []
    for generation in list_generations(files, layout):
        if generation <= live:
            continue
        if _was_never_live(files, layout.log(generation)):
            files.unlink(layout.log(generation))
        else:
            strays.append(generation)
            logger.warning(
                "%s is newer than the live generation %d and holds more than copies; it is left alone. "
                "If the directory was copied or restored in pieces, restore it as a whole.",
                layout.log(generation),
                live,
            )
    return strays


def _was_never_live(files: Files, path: Path) -> bool:
    fd = files.open(path, os.O_RDONLY)
    try:
        size = files.size(fd)
        decode_header(files.pread(fd, HEADER_BYTES, 0))
        first = read_frame(files, fd, HEADER_BYTES, size)
        snapshot = decode_record(first.type, first.body, first.offset)
        if not isinstance(snapshot, Snapshot):
            return False
        return sum(1 for _ in iter_frames(files, fd, first.end, size)) <= snapshot.copies
    except FrameDamage:
        return False
    finally:
        files.close(fd)
