"""The state of a queue's files: is every record whole, what is at the end, what have repairs cut off.

Invariant: as in ``inspection``, nothing in here can write. The end of the log is judged by the same code as when the
queue is opened; what is found is said, not done.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .clock import sleep
from .control import Words, offset_of
from .errors import CorruptLogError, StorageError
from .files import Files
from .framing import FrameDamage, iter_frames
from .generations import Layout, list_generations
from .inspection import ReadingFiles, live_log, read_words, tail_of
from .log import FIRST_OFFSET, Log
from .records import Open
from .recovery import Tail

_LOOKS = 3
_PAUSE_SECONDS = 0.05
_SALVAGED = re.compile(r"damaged-[0-9]+-[0-9]+|salvage-[0-9]+\.jsonl")
_TORN = re.compile(r"torn-(?P<generation>[0-9]+)-(?P<offset>[0-9]+)-[0-9]+")


@dataclass(slots=True)
class Kept:
    """Bytes that a repair cut off at ``offset`` of log ``generation`` and kept in ``path``.

    ``records`` intact ones begin it, ``reason`` says what is wrong with what follows them. ``at`` is when (Unix
    seconds), as far as the log still tells.
    """

    path: Path
    generation: int
    offset: int
    size_bytes: int
    records: int
    reason: str
    at: float | None = None


@dataclass(slots=True)
class Examination:
    """What is known of a queue's files without opening it: see ``examine_queue``."""

    queue: str
    directory: Path
    generation: int | None = None
    version: int | None = None
    log_path: Path | None = None
    generations: list[int] = field(default_factory=list)
    size_bytes: int = 0
    published_end: int | None = None
    synced: int | None = None
    syncing: bool = False
    poisoned: bool = False
    records: int = 0
    last_secured: float | None = None
    torn_offset: int | None = None
    torn_reason: str = ""
    kept: list[Kept] = field(default_factory=list)
    salvaged: list[Path] = field(default_factory=list)  # damaged logs, and what a salvage could not save of them
    problem: CorruptLogError | None = None

    @property
    def torn_bytes(self) -> int:
        """How many bytes the next writer will cut off and keep."""
        return 0 if self.torn_offset is None else self.size_bytes - self.torn_offset


def examine_queue(directory: str | os.PathLike[str], name: str) -> Examination:
    """Check every record of the live log, judge its end as the next opener would, and look at what repairs kept.

    A write that is under way while this looks is waited for, shortly.

    Returns:
        What was found; damage is in ``problem``, not raised.

    Raises:
        InvalidOptionError: there is no such queue. StorageError: a file cannot be read.
    """
    layout, files = Layout.of(directory, name), ReadingFiles()
    found = Examination(name, layout.directory)
    try:
        found.generations = list_generations(files, layout)
        entries = files.listdir(layout.directory)
        found.kept = [_kept(files, layout, entry) for entry in entries if _torn(layout, entry)]
        found.salvaged = [layout.directory / entry for entry in entries if _named(layout, entry, _SALVAGED)]
        log = live_log(files, layout)
    except CorruptLogError as problem:
        found.problem = problem
        return found
    except OSError as error:
        raise StorageError("read", getattr(error, "filename", None) or directory, error) from error
    try:
        _examine(files, layout, log, found)
    except OSError as error:
        raise StorageError("read", log.path, error) from error
    finally:
        log.release()
    return found


def settled_tail(files: Files, layout: Layout, log: Log) -> tuple[Words, Tail | CorruptLogError]:
    """The control words and the end of the log, or what is wrong with it.

    A second look is taken at an end that seems torn: a write may have been under way.
    """
    for look in range(_LOOKS):
        if look:
            sleep(_PAUSE_SECONDS)
        words = read_words(files, layout)
        try:
            tail = tail_of(log, words)
        except CorruptLogError as problem:
            return words, problem
        if tail.good == tail.size:
            break
    return words, tail


def _examine(files: Files, layout: Layout, log: Log, found: Examination) -> None:
    found.generation, found.log_path, found.version = log.generation, log.path, log.version
    found.size_bytes = log.data_end()
    words, tail = settled_tail(files, layout, log)
    if words.belong_to(log.log_id, log.generation):
        found.published_end, found.synced = offset_of(words.end), offset_of(words.synced)
        found.syncing, found.poisoned = bool(words.syncing), bool(words.poisoned)
    if isinstance(tail, CorruptLogError):
        found.problem = tail
        stop = min(tail.offset, log.size())
    else:
        found.size_bytes, stop = tail.size, tail.good
        if tail.good < tail.size:
            found.torn_offset = tail.good
            found.torn_reason = tail.damage.reason if tail.damage else "an incomplete write"
    repaired = {kept.offset: kept for kept in found.kept if kept.generation == log.generation}
    try:
        for frame in log.frames(FIRST_OFFSET, stop):
            record = log.decode(frame)
            found.records += 1
            if isinstance(record, Open):
                found.last_secured = record.at
                if frame.offset in repaired:
                    repaired[frame.offset].at = record.at
    except FrameDamage as damage:
        found.problem = found.problem or log.corrupt(damage)


def _torn(layout: Layout, entry: str) -> re.Match[str] | None:
    return _named(layout, entry, _TORN)


def _named(layout: Layout, entry: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
    prefix = f"{layout.name}."
    return pattern.fullmatch(entry.removeprefix(prefix)) if entry.startswith(prefix) else None


def _kept(files: Files, layout: Layout, entry: str) -> Kept:
    match = _torn(layout, entry)
    assert match is not None
    path = layout.directory / entry
    fd = files.open(path, os.O_RDONLY)
    try:
        size = files.size(fd)
        count, reason = 0, "the last write lacks some of its records"
        try:
            for _ in iter_frames(files, fd, 0, size):
                count += 1
        except FrameDamage as damage:
            reason = damage.reason
    finally:
        files.close(fd)
    return Kept(path, int(match["generation"]), int(match["offset"]), size, count, reason)
