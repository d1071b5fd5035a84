"""Bytes and frames: the file header, the record frame, and reading frames in order.

A log file is a 16-byte header and frames, and zeros behind the last one where somebody has it open (see ``log``):

* header ``<8s H I H>``: magic ``NOBROKER``, format version, generation, 0;
* frame ``<I B I>`` + body: length of the body, record type, CRC-32 (zlib) of length, type and body; the body is one
  JSON object, so a frame ends with ``}``. All numbers little-endian.

The checksum covers the length too: a flipped bit anywhere in a frame is noticed. In version 1 it covered type and body
alone; such frames are only ever read.
What a frame means is the business of ``records``; whether damage is a torn tail, of ``recovery``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from .files import Files

MAGIC = b"NOBROKER"
VERSION = 2
_HEADER = struct.Struct("<8sHIH")
HEADER_BYTES = _HEADER.size
_FRAME = struct.Struct("<IBI")
_SUMMED = struct.Struct("<IB")
FRAME_BYTES = _FRAME.size
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_BATCH_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_PEEK_BYTES = 4 * 1024


class Frame(NamedTuple):
    """One intact frame: where it begins (bytes), its type, its body, where it ends."""

    offset: int
    type: int
    body: bytes
    end: int


class FrameDamage(Exception):
    """No intact frame begins at ``offset``; ``reason`` says why. ``cut_short``: the file ends inside it."""

    def __init__(self, offset: int, reason: str, *, cut_short: bool = False) -> None:
        super().__init__(f"byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason
        self.cut_short = cut_short


def encode_header(generation: int) -> bytes:
    """The 16 bytes that begin log ``generation``."""
    return _HEADER.pack(MAGIC, VERSION, generation, 0)


def decode_header(data: bytes) -> tuple[int, int]:
    """Version and generation of a log.

    Raises:
        FrameDamage: fewer than 16 bytes, another magic, or a reserved field that is not 0.
    """
    if len(data) < HEADER_BYTES:
        raise FrameDamage(0, f"the file header has {len(data)} of {HEADER_BYTES} bytes", cut_short=True)
    magic, version, generation, reserved = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FrameDamage(0, f"not a nobroker log (it begins with {magic!r})")
    if reserved != 0:
        raise FrameDamage(14, "the reserved field of the file header is not 0")
    return version, generation


def encode_frame(kind: int, body: bytes) -> bytes:
    """One frame around ``body``."""
    length = len(body)
    return _FRAME.pack(length, kind, zlib.crc32(body, zlib.crc32(_SUMMED.pack(length, kind)))) + body


class _Sums(dict[int, int]):
    """For frames of one type: the checksum of length and type, which the one of the body goes on from, by length."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, length: int) -> int:
        begun = self[length] = zlib.crc32(_SUMMED.pack(length, self._kind))
        return begun


def encode_frames(kinds: Sequence[int], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """A frame around each body, one behind the other, and where each begins; quicker than one by one."""
    lengths = list(map(len, bodies))
    begun = {kind: _Sums(kind) for kind in set(kinds)}
    if len(begun) == 1:
        heads: Iterable[int] = map(begun[kinds[0]].__getitem__, lengths)
    else:
        heads = [begun[kind][length] for kind, length in zip(kinds, lengths, strict=True)]
    sums = map(zlib.crc32, bodies, heads)
    parts: list[bytes] = [b""] * (2 * len(bodies))
    parts[0::2] = map(_FRAME.pack, lengths, kinds, sums)
    parts[1::2] = bodies
    return b"".join(parts), [0, *accumulate([FRAME_BYTES + length for length in lengths[:-1]])]


def parse_frame(buffer: bytes, at: int, offset: int, *, last: bool, version: int = VERSION) -> Frame | None:
    """The frame at ``buffer[at]``, which is byte ``offset`` of a log of format ``version``.

    Args:
        last: whether the file ends with the buffer. If not, a frame that the buffer cuts off is ``None``: read on.

    Raises:
        FrameDamage: there is no intact frame.
    """
    left = len(buffer) - at
    if left < FRAME_BYTES:
        if last:
            raise FrameDamage(offset, f"the file ends after {left} of {FRAME_BYTES} frame bytes", cut_short=True)
        return None
    length, kind, crc = _FRAME.unpack_from(buffer, at)
    if length > MAX_BODY_BYTES:
        raise FrameDamage(offset, f"the length field says {length} bytes, the limit is {MAX_BODY_BYTES}")
    start = at + FRAME_BYTES
    stop = start + length
    if stop > len(buffer):
        if last:
            raise FrameDamage(
                offset, f"the file ends after {left - FRAME_BYTES} of {length} body bytes", cut_short=True
            )
        return None
    body = buffer[start:stop]
    if zlib.crc32(body, zlib.crc32(buffer[at + 4 if version == 1 else at : at + 5])) != crc:
        raise FrameDamage(offset, "the checksum does not match")
    return Frame(offset, kind, body, offset + FRAME_BYTES + length)


def iter_frames(files: Files, fd: int, start: int, stop: int, version: int = VERSION) -> Iterator[Frame]:
    """The frames between two offsets (bytes) of an open log, reading about a mebibyte at a time.

    Raises:
        FrameDamage: at the first place, below ``stop``, where no intact frame begins.
    """
    buffer, at, base, short = b"", 0, start, False  # base: offset of buffer[0]
    unpack, crc32, summed_from = _FRAME.unpack_from, zlib.crc32, 4 if version == 1 else 0
    while base + at < stop:
        size = len(buffer)
        # As parse_frame does it with intact frames, without a call for each.
        while size - at >= FRAME_BYTES:
            length, kind, crc = unpack(buffer, at)
            end = at + FRAME_BYTES + length
            if end > size or length > MAX_BODY_BYTES:
                break
            body = buffer[at + FRAME_BYTES : end]
            if crc32(body, crc32(buffer[at + summed_from : at + 5])) != crc:
                break
            yield Frame(base + at, kind, body, base + end)
            at = end
        if base + at >= stop:
            break
        end_of_buffer = base + size
        if size > at:
            frame = parse_frame(buffer, at, base + at, last=end_of_buffer >= stop, version=version)
            assert frame is None  # an intact one was yielded above
        want = min(max(_CHUNK_BYTES, 2 * (len(buffer) - at)), stop - end_of_buffer)
        more = files.pread(fd, want, end_of_buffer)
        if len(more) < want:
            short, stop = True, end_of_buffer + len(more)
        buffer, base, at = buffer[at:] + more, base + at, 0
    if short:
        raise FrameDamage(stop, "the file is shorter than it was", cut_short=True)


def data_end(files: Files, fd: int) -> int:
    """Where (bytes) the last byte of the file that is not zero ends: no frame reaches further.

    Beside a writer, which may go on past what was looked at already: not before the end that was there at the start.
    """
    end, count = files.size(fd), _PEEK_BYTES
    while end > 0:
        start = max(0, end - count)
        end = start + len(files.pread(fd, end - start, start).rstrip(b"\0"))
        if end > start:
            break
        count = min(2 * count, _CHUNK_BYTES)
    return end


def read_frame(files: Files, fd: int, offset: int, version: int = VERSION) -> Frame:
    """The one frame at ``offset``.

    Raises:
        FrameDamage: there is no intact frame.
    """
    head = files.pread(fd, _PEEK_BYTES, offset)
    frame = parse_frame(head, 0, offset, last=len(head) < _PEEK_BYTES, version=version)
    if frame is None:
        length = _FRAME.unpack_from(head)[0] if len(head) >= FRAME_BYTES else 0
        data = files.pread(fd, FRAME_BYTES + length, offset)
        frame = parse_frame(data, 0, offset, last=True, version=version)
        assert frame is not None
    return frame
