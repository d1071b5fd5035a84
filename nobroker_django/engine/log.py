"""One open log file: reading, appending, and who still uses the descriptor.

A ``Log`` knows its generation, its id and the base of ``seq`` from the first bytes of the file. It decides nothing:
the caller holds the lock, and knows where the log ends.

Behind its last record an open log has *room*: zeros that have their place on the disk already, so that a sync of a
record brings the record alone and no new file size (a third less time on ext4). Before single records the zeros are
really written: a place that was only allocated costs the first sync of each block a commit of the file system's
journal (one durable enqueue in seventeen took 150 microseconds longer). Records end with ``}``, frames hold a type
that is not 0: what a dead writer left is never mistaken for room. The last closer takes the room away.

Descriptors are counted and the last user closes: a number that the system hands out again while another thread syncs
it would be a false success.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from .control import MAX_OFFSET, position
from .errors import CorruptLogError, UnsupportedVersionError
from .files import Files, write_all
from .framing import (
    FRAME_BYTES,
    HEADER_BYTES,
    VERSION,
    Frame,
    FrameDamage,
    data_end,
    decode_header,
    encode_frame,
    encode_header,
    iter_frames,
    read_frame,
)
from .locks import Descriptor
from .records import Failure, Record, Snapshot, decode_record, encode_body, with_batch_fields
from .transitions import State, apply

# One byte of the log's own file, far behind its largest offset: the lock that every sync of the log needs.
SYNC_BYTE = 1 << 41
FIRST_OFFSET = HEADER_BYTES
LEAST_ROOM_BYTES = 64 * 1024
MOST_ROOM_BYTES = 1024 * 1024
# Larger writes fill whole blocks, and would only be doubled by writing zeros first.
_SMALL_WRITE_BYTES = 4096


class Log:
    """An open log. Created with one user; ``retain`` and ``release`` count the others."""

    version: ClassVar[int] = VERSION

    def __init__(self, files: Files, path: Path, generation: int, *, read_only: bool = False) -> None:
        """Open the file and check its beginning.

        Args:
            read_only: open it for reading alone; then nothing may be appended.

        Raises:
            OSError: it cannot be opened for reading and appending.
            CorruptLogError: the header or the first record is damaged, or says another generation.
            UnsupportedVersionError: another format version.
        """
        self.files = files
        self.path = path
        self.name = str(path)
        self.generation = generation
        self.descriptor = Descriptor(files, files.open(path, os.O_RDONLY if read_only else os.O_RDWR))
        self.fd = self.descriptor.fd
        self.identity = self.descriptor.identity
        try:
            self.snapshot, self.first_end = self._read_beginning()
        except BaseException:
            self.descriptor.release()
            raise
        self.first_position = position(generation, 0)
        self._room_end = 0  # up to here the file is known to have room; what others made is found out when it matters
        self.log_id = int(self.snapshot.log_id, 16)
        self.base = self.snapshot.base

    def _read_beginning(self) -> tuple[Snapshot, int]:
        try:
            version, generation = decode_header(self.files.pread(self.fd, HEADER_BYTES, 0))
            if version != VERSION:
                raise UnsupportedVersionError(self.path, version, VERSION)
            if generation != self.generation:
                raise FrameDamage(10, f"the header says generation {generation}, the file name {self.generation}")
            frame = read_frame(self.files, self.fd, FIRST_OFFSET)
            record = decode_record(frame.type, frame.body, frame.offset)
            if not isinstance(record, Snapshot):
                raise FrameDamage(FIRST_OFFSET, "the first record is no SNAPSHOT")
            int(record.log_id, 16)
        except FrameDamage as damage:
            raise self.corrupt(damage) from None
        except ValueError:
            raise CorruptLogError(self.path, FIRST_OFFSET, "the log id is no hexadecimal number") from None
        return record, frame.end

    def corrupt(self, damage: FrameDamage) -> CorruptLogError:
        """The error for damage in this file."""
        return CorruptLogError(self.path, damage.offset, damage.reason)

    # -- users

    def retain(self) -> Log:
        """One user more."""
        self.descriptor.retain()
        return self

    def release(self) -> None:
        """One user less; the last one closes the descriptor."""
        self.descriptor.release()

    # -- reading

    def size(self) -> int:
        """Size of the file in bytes, its room included."""
        return self.files.size(self.fd)

    def data_end(self) -> int:
        """Where (bytes) the last byte that is not zero ends: behind it is room, or nothing."""
        return data_end(self.files, self.fd)

    def ends_at(self, end: int) -> bool:
        """Whether a record ends at ``end`` (bytes) and only room, or nothing, follows; one look at a few bytes."""
        return end >= self.first_end and self.files.pread(self.fd, 1 + FRAME_BYTES, end - 1).rstrip(b"\0") == b"}"

    def position(self, offset: int) -> int:
        """The word that stands for ``offset`` in this log."""
        return self.first_position + offset

    def frames(self, start: int, stop: int) -> Iterator[Frame]:
        """Intact frames between two offsets (bytes).

        Raises:
            FrameDamage: where no intact frame begins.
        """
        return iter_frames(self.files, self.fd, start, stop, self.version)

    def decode(self, frame: Frame) -> Record:
        """The record of an intact frame of this log.

        Raises:
            FrameDamage: it is malformed.
        """
        return decode_record(frame.type, frame.body, frame.offset)

    def fold(self, state: State, record: Record, offset: int) -> None:
        """Fold the record at ``offset`` of this log into the state."""
        apply(state, record, offset)

    def record_at(self, offset: int) -> Record:
        """The record whose frame begins at ``offset``.

        Raises:
            CorruptLogError: there is none that is intact.
        """
        return self.frame_and_record_at(offset)[1]

    def frame_and_record_at(self, offset: int) -> tuple[Frame, Record]:
        """As ``record_at``, with the frame."""
        try:
            if offset < FIRST_OFFSET:
                raise FrameDamage(offset, "no record begins there")
            frame = read_frame(self.files, self.fd, offset, self.version)
            return frame, self.decode(frame)
        except FrameDamage as damage:
            raise self.corrupt(damage) from None

    def failure_at(self, offset: int) -> Failure:
        """What the record at ``offset`` tells of a failed attempt.

        Raises:
            CorruptLogError: it is damaged, or of another kind.
        """
        record = self.record_at(offset)
        if not isinstance(record, Failure):
            raise CorruptLogError(self.path, offset, "this is no record of a failed attempt")
        return record

    def peek(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes from ``offset``, unchecked: to compare with what was written there."""
        return self.files.pread(self.fd, count, offset)

    # -- writing

    def append(self, data: bytes, end: int) -> None:
        """Write ``data`` behind the last record, which the caller knows to end at ``end``.

        Raises:
            OSError: the system refused; part of ``data`` may stand behind ``end``.
        """
        stop = end + len(data)
        if stop > self._room_end:
            if stop > MAX_OFFSET:
                raise OSError(27, "the log has reached its largest size; compact the queue")
            self._make_room(end, stop, zeros=len(data) <= _SMALL_WRITE_BYTES)
        write_all(self.files, self.fd, data, end)

    def start_writing(self, start: int, stop: int) -> None:
        """Let the disk begin with what was just written, if it is so little that this takes no time."""
        if stop - start <= _SMALL_WRITE_BYTES:
            self.files.start_writing(self.fd, start, stop - start)

    def _make_room(self, end: int, stop: int, *, zeros: bool) -> None:
        """See to it that the file reaches over ``stop``. Where the system refuses, writing goes on without.

        ``zeros``: the room is not only allocated, but written.
        """
        wanted = stop + min(max(LEAST_ROOM_BYTES, end), MOST_ROOM_BYTES)
        size = self.size()
        if stop > size:
            try:
                self.files.allocate(self.fd, end, wanted - end)
                if zeros:
                    write_all(self.files, self.fd, bytes(wanted - stop), stop)
            except OSError:  # asked again when as many bytes have been written
                with suppress(OSError):
                    self.take_room_away(end)  # the rest of a full disk, which it may have got, is for everybody
            size = wanted
        self._room_end = size

    def truncate(self, size: int) -> None:
        """Cut the file. Only ever above what is known to be durable."""
        self.files.truncate(self.fd, size)
        self._room_end = 0

    def blank(self, end: int) -> None:
        """Write zeros behind the last record, at ``end`` (bytes), up to where its block ends, for the next sync.

        They are there already, but a failed sync may have left on the disk what was cut: the block counts as written
        then, and its pieces could stand behind, or inside, what is written next. The blocks that follow went with the
        file's size, which a file system tries again, or stops.
        """
        count = -end % min(self.files.block_bytes(self.fd) or LEAST_ROOM_BYTES, LEAST_ROOM_BYTES)
        if count:
            self._make_room(end, end + 1, zeros=False)
            write_all(self.files, self.fd, bytes(count), end)

    def take_room_away(self, end: int) -> None:
        """Let the file end with its last record, at ``end`` (bytes)."""
        if self.size() > end:
            self.truncate(end)

    def datasync(self) -> None:
        """Bring what was written to the disk. The caller holds the sync lock."""
        self.files.datasync(self.fd)

    def try_sync_lock(self) -> bool:
        """Try the lock that every sync of this log needs (threads of this process: see ``durability``)."""
        return self.files.lock_byte(self.fd, SYNC_BYTE, exclusive=True)

    def sync_unlock(self) -> None:
        """Let the sync lock go."""
        self.files.unlock_byte(self.fd, SYNC_BYTE)


def beginning(generation: int, snapshot: Snapshot, length: int = 0) -> bytes:
    """The first bytes of a log: header and SNAPSHOT, filled up with spaces to ``length`` bytes."""
    body = with_batch_fields(encode_body(snapshot), 1, 0)
    body = body[:-1].ljust(length - HEADER_BYTES - FRAME_BYTES - 1) + b"}"
    return encode_header(generation) + encode_frame(Snapshot.TYPE, body)
