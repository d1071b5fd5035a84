"""A log's bytes, read without the engine: its end, frames, batches, and what the records themselves certify.

A log that is open, or that nobody closed, may have room behind its last record: zeros, which are no data.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

HEADER = 16
FRAME = struct.Struct("<IBI")
SNAPSHOT = 28


def log_bytes(path: str | os.PathLike[str]) -> bytes:
    """What is in a log, without its room."""
    return Path(path).read_bytes().rstrip(b"\0")


def log_end(path: str | os.PathLike[str]) -> int:
    """Where (bytes) its last record, or what was begun of one, ends."""
    return len(log_bytes(path))


def append_to(path: str | os.PathLike[str], data: bytes) -> int:
    """Write behind the end, into the room if there is some, as a writer that dies in it; where that is (bytes)."""
    end = log_end(path)
    with open(path, "r+b") as file:
        file.seek(end)
        file.write(data)
    return end


@dataclass(frozen=True)
class Frame:
    """One frame of a log."""

    start: int
    end: int
    type: int
    body: dict[str, object]


def parse(data: bytes) -> list[Frame]:
    """The frames of a sound log.

    Raises:
        AssertionError: it is not sound.
    """
    frames, at = [], HEADER
    while at < len(data):
        length, kind, crc = FRAME.unpack_from(data, at)
        body = data[at + FRAME.size : at + FRAME.size + length]
        assert zlib.crc32(data[at : at + 5] + body) == crc, f"frame at {at}"
        frames.append(Frame(at, at + FRAME.size + length, kind, json.loads(body)))
        at = frames[-1].end
    return frames


def batches(frames: list[Frame]) -> list[tuple[int, int, int]]:
    """``(start, end, certified)`` of each batch: it says that everything before ``certified`` was durable."""
    found, at = [], 0
    while at < len(frames):
        count, unsynced = frames[at].body["n"], frames[at].body["u"]
        assert isinstance(count, int)
        assert isinstance(unsynced, int)
        found.append((frames[at].start, frames[at + count - 1].end, frames[at].start - unsynced))
        at += count
    return found


def last_boundary(data: bytes, size: int) -> tuple[int, int]:
    """For a sound log cut to ``size`` bytes: where its last complete batch ends, and what is certified."""
    frames = parse(data)
    copies = frames[0].body.get("copies", 0)
    assert isinstance(copies, int)
    good, certified = 0, frames[copies].end  # the pointer named this generation only when its copies were synced
    for _, end, before in batches(frames):
        if end <= size:
            good, certified = end, max(certified, before)
    return good, certified


def snapshot(directory: Path, *, without: str = "\n") -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of every file, and the times of the directories.

    Args:
        without: how the names of files end that do not count.
    """
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in [directory, *directory.rglob("*")]
        if not path.name.endswith(without)
    }
