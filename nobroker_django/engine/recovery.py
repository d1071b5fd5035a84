"""Torn tail or corruption, and securing the tail, before anything is appended to a log whose end is in doubt.

What a crash or a power cut can leave in the part of a log that was not yet known to be durable is a torn tail: it is
cut back to the last complete batch, the cut bytes are kept aside, nobody is asked. Damage in what was known to be
durable is corruption: nothing is touched, ``CorruptLogError``.

The *certified offset* divides the two: the highest of the synced offset of the control words, if they are this log's
and plausible, and, for every intact record that carries ``u``, its start minus that.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .control import Control, Words, offset_of
from .errors import CorruptLogError
from .files import Files, write_all
from .framing import FRAME_BYTES, MAX_BODY_BYTES, Frame, FrameDamage, encode_frame, parse_frame
from .generations import Layout
from .log import FIRST_OFFSET, Log
from .records import Open, RecordType, batch_fields, encode_batch, encode_body
from .wording import count_of

logger = logging.getLogger("nobroker_django")
SECTOR_BYTES = 512
_PIECE_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES = 4 * MAX_BODY_BYTES
_FIRST_WINDOW_BYTES = 64 * 1024
# The last byte of a length field, which is 0 for every length that is allowed; the type; the checksum; the body.
_TOP_BYTE = 3
_HEAD = re.compile(rb"\0[%b].{4}\{\"" % re.escape(bytes(RecordType)), re.DOTALL)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a queue found at the end of its log.

    ``records_applied`` records (``bytes_scanned`` bytes) were checked. When a torn tail was cut: ``bytes_discarded``
    bytes at ``offset`` of log ``path`` were moved to ``kept_path``, because of ``damage``.
    """

    records_applied: int = 0
    bytes_scanned: int = 0
    bytes_discarded: int = 0
    damage: str = "none"
    offset: int | None = None
    path: str | None = None
    kept_path: str | None = None
    orphan_records: int = 0

    @property
    def repaired(self) -> bool:
        """Whether a torn tail was cut."""
        return self.bytes_discarded > 0

    def describe(self) -> str:
        """One line for people."""
        checked = f"{count_of(self.records_applied, 'record')} ({count_of(self.bytes_scanned, 'byte')}) checked"
        if not self.repaired:
            return f"whole, {checked}"
        cut = f"{count_of(self.bytes_discarded, 'byte')} cut off at byte {self.offset}"
        return f"{cut}, kept in {self.kept_path}; {checked}"


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log, examined: certified up to ``certified``, complete batches up to ``good``, then ``damage``."""

    certified: int
    good: int
    size: int
    records: int
    scanned_from: int
    damage: FrameDamage | None


def examine(log: Log, words: Words) -> Tail:
    """Look at the end of the log, without changing anything.

    Args:
        words: the control words as they are; words of another log are not trusted.

    Raises:
        CorruptLogError: damage in what was known to be durable, or damage that no power cut makes.
    """
    size = log.data_end()
    trusted = log.first_end
    if words.belong_to(log.log_id, log.generation):
        synced, last = offset_of(words.synced), offset_of(words.last)
        if size < synced:
            raise CorruptLogError(
                log.path, size, f"the data end at byte {size}, but {synced} bytes were known to be durable"
            )
        # From the last write on, if that is durable: damage in the last acknowledged record is found when opening.
        start = last if log.first_end <= last < synced else synced
        tail = _walk(log, start, size, synced)
        if tail.damage is None or tail.good > synced:
            return _judged(log, tail)
        trusted = synced
    tail = _walk(log, FIRST_OFFSET, size, log.first_end)
    if tail.records <= log.snapshot.copies:  # the pointer named this log only when all of its copies were synced
        raise CorruptLogError(
            log.path,
            tail.damage.offset if tail.damage else tail.good,
            f"of {log.snapshot.copies} copied records, which were durable, {tail.records - 1} are there "
            f"({tail.damage.reason if tail.damage else 'then the file ends'})",
        )
    if tail.good <= trusted:
        return _judged(log, replace(tail, certified=max(tail.certified, trusted)))
    # Garbage in the words (no write ends where they say) must not cut a sound log: the records alone are believed.
    return _judged(log, tail)


def check_whole(log: Log) -> None:
    """Every frame and batch of the log, up to a torn tail.

    Raises:
        CorruptLogError: acknowledged data are damaged.
    """
    _judged(log, _walk(log, FIRST_OFFSET, log.data_end(), log.first_end))


def examine_records(log: Log, start: int) -> Tail:
    """Look at the end of a log of version 1, from ``start`` on: it has no batches, and certifies nothing.

    Raises:
        CorruptLogError: intact records stand behind the damage, or it is none that an interrupted write leaves.
    """
    size = log.size()
    good, records, damage = start, 0, None
    try:
        for frame in log.frames(start, size):
            good = frame.end
            records += 1
    except FrameDamage as found:
        damage = found
        behind = next(frames_behind(log, found.offset + 1, size), None)
        if behind is not None:
            raise CorruptLogError(
                log.path, found.offset, f"{found.reason}, and intact records follow, from byte {behind.offset} on"
            ) from None
    return _judged(log, Tail(start, good, size, records, start, damage))


def readable_end(log: Log, words: Words) -> int:
    """Up to where (bytes) a reader without any lock may read: the published end, or the last complete write.

    A poisoned queue is read up to what is known to be durable.
    """
    if words.belong_to(log.log_id, log.generation):
        return min(log.size(), offset_of(words.synced if words.poisoned else words.end))
    return _walk(log, FIRST_OFFSET, log.data_end(), log.first_end).good


def _walk(log: Log, start: int, size: int, certified: int) -> Tail:
    """Follow complete batches from ``start``; at damage, look behind it for records that certify more."""
    good, records, left, damage = start, 0, 0, None
    try:
        for frame in log.frames(start, size):
            begins = batch_fields(frame.type, frame.body, frame.offset)
            if (begins is None) != (left > 0):
                raise FrameDamage(
                    frame.offset, "a batch begins inside another" if begins else "a record outside any batch"
                )
            if begins is not None:
                left = begins[0]
                certified = max(certified, frame.offset - begins[1])
            left -= 1
            records += 1
            if left == 0:
                good = frame.end
        if left:
            damage = FrameDamage(size, f"the last write lacks {left} of its records", cut_short=True)
    except FrameDamage as found:
        damage = found
        for frame in frames_behind(log, found.offset + 1, size):
            begins = _try_batch_fields(frame)
            if begins is not None:
                certified = max(certified, frame.offset - begins[1])
    return Tail(certified, good, size, records, start, damage)


def _try_batch_fields(frame: Frame) -> tuple[int, int] | None:
    try:
        return batch_fields(frame.type, frame.body, frame.offset)
    except FrameDamage:
        return None


def frames_behind(log: Log, start: int, size: int) -> Iterator[Frame]:
    """Intact frames behind damage, found by their shape.

    A frame's length field always holds a NUL byte and its body begins with ``{"``; JSON holds no NUL, so no payload
    can pass for a frame, and no byte is summed up for two of them.
    """
    window = min(_FIRST_WINDOW_BYTES, _WINDOW_BYTES)  # most gaps are short
    while start < size:
        data = log.peek(start, min(window, size - start))
        if not data:
            return  # it was cut meanwhile
        on, cut_at = _TOP_BYTE, 0
        while (found := _HEAD.search(data, on)) is not None:
            head = found.start() - _TOP_BYTE
            stop = head + FRAME_BYTES + int.from_bytes(data[head : head + 4], "little")
            on = found.start() + 1
            if stop <= len(data):
                frame = _intact(data, head, stop, start + head, log.version)
                if frame is not None:
                    yield frame
                    on = stop + _TOP_BYTE
            elif start + len(data) < size and (head > 0 or window < _WINDOW_BYTES):
                cut_at = head  # by the end of the window: the next one begins with it
                break
        start += cut_at if found is not None else max(len(data) - FRAME_BYTES - 1, 1)
        window = _WINDOW_BYTES


def _intact(data: bytes, at: int, stop: int, offset: int, version: int) -> Frame | None:
    if data.find(b"\0", at + FRAME_BYTES, stop) != -1:
        return None
    try:
        return parse_frame(data, at, offset, last=True, version=version)
    except FrameDamage:
        return None


def _judged(log: Log, tail: Tail) -> Tail:
    """The same tail, if its damage may be cut.

    Raises:
        CorruptLogError: it may not.
    """
    damage = tail.damage
    if damage is None:
        if tail.good < tail.certified:
            raise CorruptLogError(log.path, tail.good, f"the log ends before byte {tail.certified}, which was durable")
        return tail
    if tail.good < tail.certified:
        raise CorruptLogError(log.path, damage.offset, damage.reason)
    if not _looks_like_a_power_cut(log, damage, tail.size):
        raise CorruptLogError(log.path, damage.offset, f"{damage.reason}, and this is not the trace of a crash")
    return tail


def _looks_like_a_power_cut(log: Log, damage: FrameDamage, size: int) -> bool:
    """Whether the damage has a shape that an interrupted write leaves.

    Either the file ends inside the record, nothing intact follows, and no single flipped bit of the length field
    explains it; or a sector of the gap (512 bytes) holds only zeros from where the damage begins: JSON holds no NUL.
    """
    behind = next(frames_behind(log, damage.offset + 1, size), None)
    if damage.cut_short and behind is None:
        return not _flipped_length(log, damage.offset, size)
    gap_end = behind.offset if behind else size
    sector = damage.offset - damage.offset % SECTOR_BYTES
    while sector < gap_end:
        begin = max(sector, damage.offset)
        piece = log.peek(begin, min(sector + SECTOR_BYTES, size) - begin)
        if piece and not piece.strip(b"\0"):
            return True
        sector += SECTOR_BYTES
    return False


def _flipped_length(log: Log, offset: int, size: int) -> bool:
    """Whether flipping one bit of the length field makes an intact record of what stands at ``offset``."""
    data = log.peek(offset, min(size - offset, FRAME_BYTES + MAX_BODY_BYTES))
    if len(data) < FRAME_BYTES:
        return False
    length = int.from_bytes(data[:4], "little")
    for bit in range(32):
        candidate = length ^ 1 << bit
        if candidate > len(data) - FRAME_BYTES:
            continue
        try:
            parse_frame(candidate.to_bytes(4, "little") + data[4:], 0, offset, last=True, version=log.version)
        except FrameDamage:
            continue
        return True
    return False


def secure(
    log: Log, control: Control, words: Words, layout: Layout, files: Files, *, now: float, file_mode: int
) -> RecoveryReport:
    """Make the end of the log certain. The caller holds the log's lock and its sync lock.

    On disk: poison; the torn tail copied aside and cut; what is left of the uncertified part written again from the
    bytes that were checked, and the zeros behind it (a failed sync may have left clean pages that never reached the
    disk), synced; an ``OPEN`` record, synced; the directory synced; the control words, poison last. A crash anywhere
    leaves poison or words that do not fit, and the next writer starts over.

    Raises:
        CorruptLogError: acknowledged data are damaged; nothing was changed.
        OSError: the system refused something; the queue stays poisoned.
    """
    control.prepare()
    control.set_poisoned(True)
    tail = examine(log, words)
    kept = None
    if tail.good < tail.size:
        kept = keep_aside(log, tail, layout, files, file_mode)
        log.truncate(tail.good)
    if tail.certified < tail.good:
        _write_again(log, files, tail)
    log.blank(tail.good)
    log.datasync()
    data, last, _ = encode_batch([Open.TYPE], [encode_body(Open(at=now))], 0)
    log.append(data, tail.good)
    log.datasync()
    files.sync_directory(layout.directory)
    end = log.position(tail.good + len(data))
    if not words.belong_to(log.log_id, log.generation) or tail.good < offset_of(words.end):
        control.set_build(0)  # the projection may have seen what is gone
    control.publish(end, log.position(tail.good + last))
    control.set_synced(end)
    control.set_log_id(log.log_id)
    control.set_poisoned(False)
    report = RecoveryReport(
        records_applied=tail.records,
        bytes_scanned=tail.size - tail.scanned_from,
        bytes_discarded=tail.size - tail.good,
        damage=tail.damage.reason if tail.damage else "none",
        offset=tail.good if kept else None,
        path=str(log.path),
        kept_path=str(kept) if kept else None,
    )
    if kept is not None:
        logger.warning(
            "%s: cut a torn tail of %d bytes at byte %d (%s); they are kept in %s. No acknowledged job was in them%s.",
            log.path, report.bytes_discarded, tail.good, report.damage, kept,
            "" if words.belong_to(log.log_id, log.generation) else ", as far as the log itself shows",
        )  # fmt: skip
    return report


def keep_aside(log: Log, tail: Tail, layout: Layout, files: Files, mode: int) -> Path:
    """Copy the bytes that are about to be cut into a file of their own, durably."""
    path = layout.torn(log.generation, tail.good, files)
    fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        files.set_mode(fd, mode, layout.directory)
        at = tail.good
        while at < tail.size:
            piece = log.peek(at, min(_PIECE_BYTES, tail.size - at))
            if not piece:
                break
            write_all(files, fd, piece)
            at += len(piece)
        files.sync(fd)
    except BaseException:
        files.unlink(path)
        raise
    finally:
        files.close(fd)
    return path


def _write_again(log: Log, files: Files, tail: Tail) -> None:
    """Write what is not certified of the complete batches again, as it was checked, so that a sync has to write it.

    From the beginning of a frame on: garbled words may say a synced offset that lies inside one.
    """
    pending, at = bytearray(), tail.certified
    try:
        for frame in log.frames(tail.scanned_from, tail.good):
            if frame.end <= tail.certified:
                continue
            if not pending:
                at = frame.offset
            pending += encode_frame(frame.type, frame.body)
            if len(pending) >= _PIECE_BYTES:
                write_all(files, log.fd, bytes(pending), at)
                pending.clear()
        if pending:
            write_all(files, log.fd, bytes(pending), at)
    except FrameDamage as damage:
        raise OSError(5, f"the log changed while it was checked ({damage})") from None
