"""Looking at a log record by record, and at the state of its end, without taking part.

Invariant: nothing in here can write. Every file is opened read-only, no lock is taken, no file or directory is made;
so it works on a directory that belongs to somebody else, beside any number of writers, and holds none of them up. What
is shown ends at the published end: behind it a write may be under way.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .clock import sleep
from .control import MISSING, Control, Words, offset_of
from .errors import CorruptLogError, InvalidOptionError, NobrokerError, PointerError, StorageError
from .files import Files
from .framing import Frame, FrameDamage, iter_frames
from .generations import Layout, list_generations, parse_pointer
from .log import FIRST_OFFSET, Log
from .records import Open, RecordType, decode_record
from .recovery import Tail, examine

_LOOKS = 3
_PAUSE_SECONDS = 0.05
_TORN = re.compile(r"torn-(?P<generation>[0-9]+)-(?P<offset>[0-9]+)-[0-9]+")
_POINTER = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,63})\.current")


class ReadingFiles(Files):
    """System calls that read. Everything else is refused before it reaches the system."""

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
        """Open ``path`` for reading, whatever ``flags`` ask for."""
        return super().open(path, os.O_RDONLY)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PermissionError(errno.EPERM, "looking at a queue never writes")

    write = pwrite = truncate = datasync = sync = sync_directory = _refuse
    rename = unlink = make_directory = set_mode = flock = lock_byte = _refuse


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One intact record: where it is (bytes), its type, whose it is, when it was written, and all of its fields."""

    generation: int
    offset: int
    size_bytes: int
    number: int
    job_id: str | None
    at: float | None
    fields: dict[str, Any]

    @property
    def type(self) -> str:
        """The name of the type; its number when this release knows none."""
        return type_name(self.number)


@dataclass(frozen=True, slots=True)
class LogView:
    """A log as it is found: ``end`` (bytes) is where the certain part ends, ``size`` the file's.

    ``damage`` is set when acknowledged data are damaged; the records before it can be read.
    """

    log: Log
    words: Words
    end: int
    size: int
    damage: CorruptLogError | None = None

    def records(self) -> Iterator[LogRecord]:
        """The records up to ``end``, in order.

        Raises:
            CorruptLogError: at the first damage; what is before it has been given.
        """
        try:
            for frame in self.log.frames(FIRST_OFFSET, self.end):
                yield record_of(frame, self.log.generation)
        except FrameDamage as damage:
            raise self.log.corrupt(damage) from None
        except OSError as error:
            raise StorageError("read", self.log.path, error) from error
        if self.damage is not None:
            raise self.damage


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
    problem: NobrokerError | None = None

    @property
    def torn_bytes(self) -> int:
        """How many bytes the next writer will cut off and keep."""
        return 0 if self.torn_offset is None else self.size_bytes - self.torn_offset


def type_name(number: int) -> str:
    """The name of a record type, or its number as text."""
    try:
        return RecordType(number).name
    except ValueError:
        return str(number)


def queue_names(directory: str | os.PathLike[str]) -> list[str]:
    """Queues that have a pointer in the directory, sorted; none when there is no directory.

    Raises:
        StorageError: the directory cannot be read.
    """
    try:
        entries = ReadingFiles().listdir(directory)
    except OSError as error:
        raise StorageError("read", directory, error) from error
    return [match["name"] for entry in entries if (match := _POINTER.fullmatch(entry))]


def queue_exists(directory: str | os.PathLike[str], name: str) -> bool:
    """Whether there is anything of this queue: a pointer, or a log without one.

    Raises:
        InvalidOptionError: that is no queue name. StorageError: the directory cannot be read.
    """
    layout, files = Layout.of(directory, name), ReadingFiles()
    try:
        return files.path_identity(layout.pointer) is not None or bool(list_generations(files, layout))
    except OSError as error:
        raise StorageError("read", directory, error) from error


def check_end(directory: str | os.PathLike[str], name: str) -> None:
    """Look at the log's last writes as an opener would: what reads the projection alone does not see damage there.

    Raises:
        CorruptLogError: acknowledged data are damaged. StorageError: a file cannot be read.
    """
    layout, files = Layout.of(directory, name), ReadingFiles()
    try:
        log = _live_log(files, layout)
        try:
            examine(log, _words(files, layout))
        finally:
            log.release()
    except OSError as error:
        raise StorageError("read", getattr(error, "filename", None) or directory, error) from error


@contextmanager
def open_view(directory: str | os.PathLike[str], name: str, generation: int | None = None) -> Iterator[LogView]:
    """Open a log for reading.

    Args:
        generation: which log; by default the live one.

    Raises:
        InvalidOptionError: there is no such log.
        CorruptLogError: the pointer is missing or wrong, or the log's beginning is damaged.
        StorageError: a file cannot be read.
    """
    layout, files = Layout.of(directory, name), ReadingFiles()
    try:
        log = _live_log(files, layout) if generation is None else _log_of(files, layout, generation)
    except OSError as error:
        raise StorageError("read", getattr(error, "filename", None) or directory, error) from error
    try:
        yield _view(files, layout, log)
    finally:
        log.release()


def _view(files: Files, layout: Layout, log: Log) -> LogView:
    try:
        words = _words(files, layout)
        size = log.size()
        if words.belong_to(log.log_id, log.generation) and offset_of(words.end) <= size:
            return LogView(log, words, offset_of(words.end), size)
        tail = examine(log, words)
        return LogView(log, words, tail.good, tail.size)
    except CorruptLogError as damage:
        return LogView(log, words, min(damage.offset, size), size, damage)
    except OSError as error:
        raise StorageError("read", log.path, error) from error


def _log_of(files: Files, layout: Layout, generation: int) -> Log:
    try:
        return Log(files, layout.log(generation), generation)
    except FileNotFoundError:
        there = ", ".join(map(str, list_generations(files, layout))) or "none"
        raise InvalidOptionError(
            "generation", f"queue {layout.name!r} has no log of generation {generation} in {layout.directory}; "
            f"there: {there}",
        ) from None  # fmt: skip


def _live_log(files: Files, layout: Layout) -> Log:
    """The log that the pointer names, again when a compaction came between the two.

    Raises:
        PointerError: the pointer is missing or names no log that is there.
    """
    for _ in range(_LOOKS):
        try:
            text = _read(files, layout.pointer, 64)
        except FileNotFoundError:
            raise _no_pointer(files, layout) from None
        try:
            generation = parse_pointer(files, layout, text)
            return Log(files, layout.log(generation), generation)
        except (PointerError, FileNotFoundError):
            if _read(files, layout.pointer, 64) == text:
                raise
    raise PointerError(layout.pointer, f"{layout.pointer} changes faster than it can be followed. Try again.")


def _no_pointer(files: Files, layout: Layout) -> NobrokerError:
    logs = list_generations(files, layout)
    if logs:
        names = ", ".join(layout.log(generation).name for generation in logs)
        return PointerError(
            layout.pointer,
            f"{layout.pointer} is missing, but there are logs of this queue: {names}. Nothing was changed. If only "
            "one log exists, write its number into the file; otherwise restore the file from a backup.",
        )
    return InvalidOptionError("name", f"there is no queue {layout.name!r} in {layout.directory}")


def _words(files: Files, layout: Layout) -> Words:
    try:
        fd = files.open(layout.lock, os.O_RDONLY)
    except FileNotFoundError:
        return MISSING  # a copy of a directory needs no lock file
    except PermissionError:
        return MISSING
    try:
        return Control(files, fd).read()
    finally:
        files.close(fd)


def _read(files: Files, path: str | os.PathLike[str], count: int) -> bytes:
    fd = files.open(path, os.O_RDONLY)
    try:
        return files.pread(fd, count, 0)
    finally:
        files.close(fd)


def record_of(frame: Frame, generation: int) -> LogRecord:
    """What a frame says, also when this release does not know its type."""
    fields = _fields(frame.body)
    job_id, at = fields.get("id"), fields.get("at", fields.get("enqueued_at"))
    return LogRecord(
        generation=generation,
        offset=frame.offset,
        size_bytes=frame.end - frame.offset,
        number=frame.type,
        job_id=job_id if isinstance(job_id, str) else None,
        at=float(at) if isinstance(at, int | float) else None,
        fields=fields,
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {"unreadable": body[:500].decode("utf-8", "backslashreplace")}
    return fields if isinstance(fields, dict) else {"unreadable": fields}


# -- the state of a queue's files


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
        found.kept = [_kept(files, layout, entry) for entry in files.listdir(layout.directory) if _torn(layout, entry)]
        log = _live_log(files, layout)
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


def _examine(files: Files, layout: Layout, log: Log, found: Examination) -> None:
    found.generation, found.log_path = log.generation, log.path
    try:
        tail = _tail(files, layout, log, found)
    except CorruptLogError as problem:
        found.problem = problem
        stop = min(problem.offset, log.size())
    else:
        stop = tail.good
        if tail.good < tail.size:
            found.torn_offset = tail.good
            found.torn_reason = tail.damage.reason if tail.damage else "an incomplete write"
    repaired = {kept.offset: kept for kept in found.kept if kept.generation == log.generation}
    try:
        for frame in log.frames(FIRST_OFFSET, stop):
            record = decode_record(frame.type, frame.body, frame.offset)
            found.records += 1
            if isinstance(record, Open):
                found.last_secured = record.at
                if frame.offset in repaired:
                    repaired[frame.offset].at = record.at
    except FrameDamage as damage:
        found.problem = found.problem or log.corrupt(damage)


def _tail(files: Files, layout: Layout, log: Log, found: Examination) -> Tail:
    """The end of the log; a second look at one that seems torn, which may be a write under way."""
    for look in range(_LOOKS):
        if look:
            sleep(_PAUSE_SECONDS)
        words = _words(files, layout)
        found.size_bytes = log.size()
        if words.belong_to(log.log_id, log.generation):
            found.published_end, found.synced = offset_of(words.end), offset_of(words.synced)
            found.syncing, found.poisoned = bool(words.syncing), bool(words.poisoned)
        tail = examine(log, words)
        found.size_bytes = tail.size
        if tail.good == tail.size:
            break
    return tail


def _torn(layout: Layout, entry: str) -> re.Match[str] | None:
    prefix = f"{layout.name}."
    return _TORN.fullmatch(entry.removeprefix(prefix)) if entry.startswith(prefix) else None


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
