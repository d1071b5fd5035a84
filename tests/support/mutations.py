"""Ways to spoil the files of a queue: bytes that no one wrote, and records that are framed well and make no sense."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

from . import bytes as raw

FRAME = struct.Struct("<IBI")
NUMBERS: list[Any] = [
    *(0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), -(10**30)),
    *(0.0, -0.5, 1e308, -1e308, 1e-308, 253402300799.0, 1e18),
]
TEXTS: list[Any] = ["", "x" * 300, "\x00\x1f\x7f", "\u202e\ufeff", "é" * 20, "done", "leased", "f" * 28, "🙂"]
OPTIONAL = [
    "n",
    "u",
    "at",
    "id",
    "token",
    "ids",
    "seq",
    "carried",
    "state",
    "rank",
    "priority",
    "copies",
    "log_id",
    "base",
]
OTHERS: list[Any] = [None, True, False, [], {}, [1, [2, [3]]], {"id": {"id": []}}, [None] * 50]
BODIES = [
    b"",
    b"{",
    b"{}",
    b"[]",
    b"null",
    b'{"id":"\\ud800","payload":1,"enqueued_at":1,"max_attempts":1,"n":1,"u":0}',
    b'{"id":"a","id":"b","payload":1,"enqueued_at":1,"max_attempts":1,"n":1,"u":0}',
    b'{"payload":' + b"[" * 5000 + b"]" * 5000 + b',"id":"a","enqueued_at":1,"max_attempts":1,"n":1,"u":0}',
    b'{"n":' + b"9" * 5000 + b',"u":0}',
    b'{"id":"a","payload":NaN,"enqueued_at":1,"max_attempts":1,"n":1,"u":0}',
    b'{"id":"a","payload":1e999,"enqueued_at":1e999,"max_attempts":1,"n":1,"u":0}',
    b'{"at":1,"n":1,"u":0}\n\n',
    b'\xff\xfe{"at":1}',
]


def frame(kind: int, body: bytes) -> bytes:
    """A record with a checksum that is right."""
    head = struct.pack("<IB", len(body), kind)
    return FRAME.pack(len(body), kind, zlib.crc32(body, zlib.crc32(head))) + body


def value(rng: random.Random) -> Any:
    """Something that a field might hold and should not."""
    return rng.choice(rng.choice((NUMBERS, NUMBERS, TEXTS, OTHERS)))


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 3, 30))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    at, count = rng.randrange(len(data)), rng.choice((1, 4, 9, 100, 512, 4096))
    count = min(count, len(data) - at)
    data[at : at + count] = rng.choice((bytes(count), rng.randbytes(count), b"\xff" * count, b'{"' * (count // 2)))


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 9, 100, 5000)))


def _delete(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 9, 100, 5000))]


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _append(data: bytearray, rng: random.Random) -> None:
    count = rng.choice((1, 8, 9, 512, 100_000))
    data += rng.choice((bytes(count), rng.randbytes(count)))


def _splice(data: bytearray, rng: random.Random) -> None:
    """A stretch of the file stands somewhere else, too."""
    start = rng.randrange(len(data))
    piece = data[start : start + rng.choice((9, 200, 3000))]
    at = rng.randrange(len(data))
    data[at : at + rng.choice((0, len(piece)))] = piece


def _frames(data: bytearray) -> list[raw.Frame]:
    try:
        return raw.parse(bytes(data))
    except (AssertionError, ValueError, struct.error):
        return []


def _field(data: bytearray, rng: random.Random) -> None:
    """A record whose checksum is right says something that cannot be."""
    frames = _frames(data)
    if not frames:
        return _flip(data, rng)
    one = rng.choice(frames)
    body = dict(one.body)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(
            [*body, *body, "n", "u", "at", "id", "token", "ids", "seq", "state", "rank", "copies", "log_id"]
        )
        if rng.random() < 0.15:
            body.pop(name, None)
        else:
            body[name] = value(rng)
    data[one.start : one.end] = frame(one.type, json.dumps(body, separators=(",", ":")).encode())
    return None


def _type(data: bytearray, rng: random.Random) -> None:
    """A record of another type, with the same fields or none."""
    frames = _frames(data)
    if not frames:
        return _flip(data, rng)
    one = rng.choice(frames)
    body = json.dumps(one.body, separators=(",", ":")).encode() if rng.random() < 0.5 else rng.choice(BODIES)
    data[one.start : one.end] = frame(rng.choice((*range(35), 255)), body)
    return None


def _order(data: bytearray, rng: random.Random) -> None:
    """Records twice, left out, or in another order."""
    frames = _frames(data)
    if len(frames) < 3:
        return _flip(data, rng)
    pieces = [bytes(data[one.start : one.end]) for one in frames]
    what = rng.choice(("twice", "without", "swapped", "shuffled"))
    at = rng.randrange(1, len(pieces))
    if what == "twice":
        pieces.insert(rng.randrange(1, len(pieces)), pieces[at])
    elif what == "without":
        del pieces[at]
    elif what == "swapped":
        other = rng.randrange(1, len(pieces))
        pieces[at], pieces[other] = pieces[other], pieces[at]
    else:
        rest = pieces[1:]
        rng.shuffle(rest)
        pieces[1:] = rest
    data[16:] = b"".join(pieces)
    return None


def _length(data: bytearray, rng: random.Random) -> None:
    """A length field that promises much."""
    frames = _frames(data)
    if not frames:
        return _flip(data, rng)
    struct.pack_into(
        "<I", data, rng.choice(frames).start, rng.choice((0, 1, 8 * 2**20, 8 * 2**20 + 1, 2**31, 2**32 - 1))
    )
    return None


def _header(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(16)
    data[at : at + 1] = rng.randbytes(1)


BYTES: list[Callable[[bytearray, random.Random], None]] = [
    _flip, _overwrite, _insert, _delete, _truncate, _append, _splice, _length, _header
]  # fmt: skip
RECORDS: list[Callable[[bytearray, random.Random], None]] = [_field, _field, _field, _type, _order]


def spoil_log(data: bytes, rng: random.Random) -> bytes:
    """The bytes of a log, spoilt in one or several ways."""
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not spoilt:
            break
        rng.choice(rng.choice((BYTES, RECORDS)))(spoilt, rng)
    return bytes(spoilt)


def spoil_words(data: bytes, rng: random.Random) -> bytes:
    """The control words, spoilt."""
    spoilt = bytearray(data.ljust(80, b"\0"))
    what = rng.choice(("word", "word", "flip", "garbage", "cut"))
    at = rng.randrange(0, 80, 8)
    if what == "word":
        spoilt[at : at + 8] = struct.pack(
            "<Q", rng.choice((0, 1, 2**64 - 1, rng.getrandbits(64), rng.getrandbits(16)))
        )
    elif what == "flip":
        spoilt[rng.randrange(80)] ^= 1 << rng.randrange(8)
    elif what == "garbage":
        spoilt[:80] = rng.randbytes(80)
    else:
        del spoilt[rng.randrange(80) :]
    return bytes(spoilt)


def spoil_index(data: bytes, rng: random.Random) -> bytes:
    """The bytes of a projection, spoilt: mostly of its first pages, which say what is where."""
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        count = rng.choice((1, 1, 4, 30, 200))
        at = min(rng.randrange(rng.choice((len(spoilt), 3 * 4096))), len(spoilt) - count)
        flipped = bytes([spoilt[at] ^ 1 << rng.randrange(8)]) + spoilt[at + 1 : at + count]
        spoilt[at : at + count] = rng.choice((rng.randbytes(count), bytes(count), flipped))
    return bytes(spoilt)


def spoil_pointer(rng: random.Random) -> bytes:
    """Something else than the number of a log."""
    return rng.choice(
        (b"", b"\n", b"-1\n", b"9" * 100, b"\xff\xfe", b"1 1\n", rng.randbytes(rng.randrange(100)), b"7\n")
    )
