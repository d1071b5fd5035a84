"""Log files of format version 1, open for reading: their frames, their end, and where they are.

The checksum of such a frame covers type and body alone. Nothing in the file says what was durable, so any damage but
an incomplete last write is corruption. What the records mean is the business of ``version1``; making one of our logs
of such a file, of ``conversion``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from . import version1
from .errors import CorruptLogError, UnsupportedVersionError
from .files import Files
from .framing import HEADER_BYTES, VERSION, Frame, FrameDamage, decode_header
from .generations import Layout, list_generations
from .log import FIRST_OFFSET, Log
from .records import Dead, Failure, Note, Record, Snapshot
from .recovery import Tail, examine_records
from .transitions import State


class OldLog(Log):
    """An open log of version 1, for reading alone."""

    version: ClassVar[int] = 1

    def __init__(self, files: Files, path: Path, generation: int, *, read_only: bool = True) -> None:
        """As ``Log``, always for reading; ``UnsupportedVersionError`` when it is not of version 1."""
        super().__init__(files, path, generation, read_only=True)
        self._checked = FIRST_OFFSET
        self._attempts: dict[int, int] = {}  # of the DEAD records, which do not say it

    @classmethod
    def open(cls, files: Files, path: Path, generation: int) -> OldLog | None:
        """Open it, or ``None`` when it is of another version; raises as ``Log``."""
        try:
            return cls(files, path, generation)
        except UnsupportedVersionError:
            return None

    def _read_beginning(self) -> tuple[Snapshot, int]:
        """Check the header; log id and counters that the file lacks are made up, for as long as it is open."""
        try:
            version, generation = decode_header(self.files.pread(self.fd, HEADER_BYTES, 0))
            if version != self.version:
                raise UnsupportedVersionError(self.path, version, VERSION)
            if generation != self.generation:
                raise FrameDamage(10, f"the header says generation {generation}, the file name {self.generation}")
        except FrameDamage as damage:
            raise self.corrupt(damage) from None
        return Snapshot(log_id=f"{int.from_bytes(os.urandom(8), 'big') | 1:016x}", at=0.0), FIRST_OFFSET

    def decode(self, frame: Frame) -> Record:
        """The record of an intact frame; ``FrameDamage`` when it is malformed."""
        return version1.decode(frame)

    def fold(self, state: State, record: Record, offset: int) -> None:
        """Fold the record at ``offset`` into the state, as version 1 did."""
        if isinstance(record, Dead):
            row = state.find(record.id)
            self._attempts[offset] = row.attempts if row is not None else 0
        version1.apply(state, record, offset)

    def failure_at(self, offset: int) -> Failure:
        """What the record at ``offset`` tells of a failed attempt: also a copied job, of the last one."""
        record = self.record_at(offset)
        if isinstance(record, version1.OldEnqueue):
            return Note(id=record.id, at=record.enqueued_at, attempts=record.attempts, error=record.last_error)
        failure = super().failure_at(offset)
        failure.attempts = failure.attempts or self._attempts.get(offset, 0)
        return failure

    def tail(self) -> Tail:
        """The end of the log: whole records, then perhaps a torn tail. Looks again only behind what it has checked.

        Raises:
            CorruptLogError: the damage is no torn tail.
        """
        tail = examine_records(self, self._checked)
        self._checked = tail.good
        return tail


def open_log(files: Files, path: Path, generation: int) -> Log:
    """Open a log of either version for reading alone.

    Raises:
        OSError, CorruptLogError: as ``Log``.
    """
    try:
        return Log(files, path, generation, read_only=True)
    except UnsupportedVersionError as error:
        if error.found != OldLog.version:
            raise
    return OldLog(files, path, generation)


def generation_without_pointer(files: Files, layout: Layout) -> int | None:
    """The live log of a directory without a pointer file, 0, if that is one of version 1; else ``None``.

    Version 1 wrote no pointer before its first compaction. When that one was interrupted there is a second log, which
    holds nothing but jobs of the first.

    Raises:
        CorruptLogError: a lone generation 0 has a damaged header, or one of a version that is not known.
    """
    logs = list_generations(files, layout)
    if logs not in ([0], [0, 1]):
        return None
    opened: list[OldLog] = []
    try:
        opened.extend(OldLog(files, layout.log(generation), generation) for generation in logs)
        return 0 if len(opened) == 1 or _is_copy(opened[1], opened[0]) else None
    except UnsupportedVersionError as error:
        if error.found == VERSION or len(logs) > 1:
            return None
        raise
    except FileNotFoundError:
        return None
    except CorruptLogError:
        if len(logs) > 1:
            return None
        raise
    finally:
        for log in opened:
            log.release()


def _is_copy(log: OldLog, source: OldLog) -> bool:
    """Whether the log holds nothing but jobs of ``source``."""
    known = {record.id for record in _records(source) if isinstance(record, version1.OldEnqueue)}
    return all(isinstance(record, version1.OldEnqueue) and record.id in known for record in _records(log))


def _records(log: OldLog) -> Iterator[Record]:
    for frame in log.frames(FIRST_OFFSET, log.tail().good):
        try:
            yield log.decode(frame)
        except FrameDamage as damage:
            raise log.corrupt(damage) from None
