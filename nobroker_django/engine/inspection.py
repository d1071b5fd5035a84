"""Looking at a log record by record, without taking part.

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
from dataclasses import dataclass
from typing import Any, NoReturn

from .clock import sleep
from .control import MISSING, Control, Words, offset_of
from .errors import CorruptLogError, InvalidOptionError, PointerError, StorageError, storing_nothing
from .files import Files
from .framing import Frame, FrameDamage
from .generations import Layout, list_generations, parse_pointer
from .log import FIRST_OFFSET, Log
from .old_log import OldLog, generation_without_pointer, open_log
from .records import RecordType
from .recovery import Tail, examine

_LOOKS = 3
_PAUSE_SECONDS = 0.02
_FILE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,63})\.(?:current|[0-9]{6,}\.log)")


class ReadingFiles(Files):
    """System calls that read. Everything else is refused before it reaches the system."""

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
        """Open ``path`` for reading, whatever ``flags`` ask for."""
        return super().open(path, os.O_RDONLY)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PermissionError(errno.EPERM, "looking at a queue never writes")

    write = pwrite = allocate = truncate = start_writing = datasync = sync = sync_directory = _refuse
    rename = link = unlink = make_directory = set_mode = flock = lock_byte = _refuse
    make_fifo = put_byte = read = wait_readable = _refuse


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


def type_name(number: int) -> str:
    """The name of a record type, or its number as text."""
    try:
        return RecordType(number).name
    except ValueError:
        return str(number)


def queue_names(directory: str | os.PathLike[str]) -> list[str]:
    """Queues that have a pointer or a log in the directory, sorted; none when there is no directory.

    Raises:
        StorageError: the directory cannot be read.
    """
    try:
        entries = ReadingFiles().listdir(directory)
    except OSError as error:
        raise StorageError("read", directory, error) from error
    return sorted({match["name"] for entry in entries if (match := _FILE.fullmatch(entry))})


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
        log = live_log(files, layout)
        try:
            tail_of(log, read_words(files, layout))
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
        log = live_log(files, layout) if generation is None else _log_of(files, layout, generation)
    except OSError as error:
        raise StorageError("read", getattr(error, "filename", None) or directory, error) from error
    try:
        yield _view(files, layout, log)
    finally:
        log.release()


def _view(files: Files, layout: Layout, log: Log) -> LogView:
    try:
        for look in range(_LOOKS):  # a write that is under way is waited for, shortly
            if look:
                sleep(_PAUSE_SECONDS)
            size = log.data_end()
            words = read_words(files, layout)
            if not words.belong_to(log.log_id, log.generation) or size <= offset_of(words.end):
                break
        size = max(size, min(log.data_end(), offset_of(words.end)))
        if words.belong_to(log.log_id, log.generation) and offset_of(words.end) <= size:
            return LogView(log, words, offset_of(words.end), size)
        tail = tail_of(log, words)
        return LogView(log, words, tail.good, tail.size)
    except CorruptLogError as damage:
        return LogView(log, words, min(damage.offset, size), size, damage)
    except OSError as error:
        raise StorageError("read", log.path, error) from error


@storing_nothing()
def _log_of(files: Files, layout: Layout, generation: int) -> Log:
    try:
        return open_log(files, layout.log(generation), generation)
    except FileNotFoundError:
        there = ", ".join(map(str, list_generations(files, layout))) or "none"
        raise InvalidOptionError(
            "generation", f"queue {layout.name!r} has no log of generation {generation} in {layout.directory}; "
            f"there: {there}",
        ) from None  # fmt: skip


def live_log(files: Files, layout: Layout) -> Log:
    """The log that the pointer names, again when a compaction came between the two.

    Raises:
        PointerError: the pointer is missing or names no log that is there.
    """
    for _ in range(_LOOKS):
        try:
            text = _read(files, layout.pointer, 64)
        except FileNotFoundError:
            return _log_without_pointer(files, layout)
        try:
            generation = parse_pointer(files, layout, text)
            return open_log(files, layout.log(generation), generation)
        except (PointerError, FileNotFoundError):
            if _read(files, layout.pointer, 64) == text:
                raise
    raise PointerError(layout.pointer, f"{layout.pointer} changes faster than it can be followed. Try again.")


def tail_of(log: Log, words: Words) -> Tail:
    """The end of a log of either version, judged as when the queue is opened.

    Raises:
        CorruptLogError: acknowledged data are damaged.
    """
    return log.tail() if isinstance(log, OldLog) else examine(log, words)


@storing_nothing()
def _log_without_pointer(files: Files, layout: Layout) -> Log:
    """The log of version 1, which wrote no pointer at first.

    Raises:
        PointerError: there are other logs, but no pointer. InvalidOptionError: there is nothing.
    """
    generation = generation_without_pointer(files, layout)
    if generation is not None:
        return OldLog(files, layout.log(generation), generation)
    logs = list_generations(files, layout)
    if logs:
        names = ", ".join(layout.log(number).name for number in logs)
        raise PointerError(
            layout.pointer,
            f"{layout.pointer} is missing, but there are logs of this queue: {names}. Nothing was changed. If only "
            "one log exists, write its number into the file; otherwise restore the file from a backup.",
        )
    raise InvalidOptionError("name", f"there is no queue {layout.name!r} in {layout.directory}")


def read_words(files: Files, layout: Layout) -> Words:
    """The control words, as far as they can be read."""
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
