"""Saving what is left of a damaged log: a new generation made of every intact record, before and behind the damage.

Never unasked, never in place, and only while nobody has the queue open: ``NAME.lock`` is held exclusively by
``flock``. On disk: the damaged log gets a second name that nobody of ours removes (``NAME.damaged-GENERATION-COUNT``);
a report of everything that may be lost or changed (``NAME.salvage-GENERATION.jsonl``, of the new one); the new log
under a temporary name, synced; its final name; the directory, synced; the pointer (one rename); the directory, synced.
A crash at any step leaves either the damaged queue as it was or the complete new one, and salvaging again is harmless.

The new log has an id of its own, so that the control words and the projection of the damaged one are worth nothing.
Its ``seq`` and fencing tokens begin above all that the damaged log can have given out.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from .clock import Clock, Deadline, sleep, system_clock
from .control import MAX_GENERATION
from .errors import CorruptLogError, LockTimeoutError, PointerError, StorageError, UnsupportedVersionError
from .examination import examine_queue
from .files import Files, write_all
from .generations import Layout, list_generations, parse_pointer, write_pointer
from .inspection import ReadingFiles, read_words
from .leftovers import sweep_leftovers
from .lockfile import LockFile, open_lock_file
from .new_log import NewLog
from .old_log import generation_without_pointer
from .place import Place
from .recovery import Tail, keep_aside
from .rescue import Rescue, SalvageReport
from .schema import Stale

LOCK_SECONDS = 2.0
_POLL_SECONDS = 0.01
_LINES = 1000
_NO_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))


def assess_salvage(directory: str | os.PathLike[str], name: str) -> SalvageReport | None:
    """What a salvage would keep and lose; ``None`` when the log is not damaged. Changes nothing.

    Raises:
        PointerError: nobody can say which log is the live one. CorruptLogError: nothing intact is left.
        UnsupportedVersionError: a newer release wrote it. StorageError: a file cannot be read.
    """
    layout, files = Layout.of(directory, name), ReadingFiles()
    if not is_damaged(directory, name):
        return None
    try:
        with Rescue(files, layout, _live_generation(files, layout), read_words(files, layout), 0.0) as rescue:
            return rescue.report
    except (OSError, sqlite3.Error, Stale) as error:
        raise StorageError("read", getattr(error, "filename", None) or directory, error) from error


def salvage_queue(
    directory: str | os.PathLike[str],
    name: str,
    *,
    clock: Clock = system_clock,
    files: Files | None = None,
    lock_timeout: float | None = None,
) -> SalvageReport | None:
    """Make a new generation of what is left of a damaged log, and make it the live one; all or nothing.

    The new files get the modes that the queue's files have.

    Args:
        lock_timeout: how long (seconds) to wait for others to close the queue; by default ``LOCK_SECONDS``.

    Returns:
        What was kept and what may be lost; ``None`` when the log is not damaged: nothing was changed.

    Raises:
        LockTimeoutError: somebody has the queue open; nothing was changed.
        PointerError, CorruptLogError, UnsupportedVersionError: as ``assess_salvage``.
        StorageError: the system refused something; the damaged queue is as it was, or the new one complete.
    """
    layout, files = Layout.of(directory, name), files or Files()
    try:
        mode = files.mode(_live_path(files, layout))
        lock_file = open_lock_file(files, layout, mode)
        try:
            _lock(files, layout, lock_file, LOCK_SECONDS if lock_timeout is None else lock_timeout)
            try:
                if not is_damaged(directory, name):
                    return None
                with Place(files, layout.directory) as place:
                    _check_lock_file(place, layout, lock_file)
                    generation = _live_generation(place, layout)
                    with Rescue(place, layout, generation, lock_file.control.read(), clock()) as rescue:
                        _make_live(rescue, place, layout, mode)
                        return rescue.report
            finally:
                files.funlock(lock_file.fd)
        finally:
            lock_file.release()
    except (OSError, sqlite3.Error, Stale) as error:
        raise StorageError("salvage", getattr(error, "filename", None) or directory, error) from error


def is_damaged(directory: str | os.PathLike[str], name: str) -> bool:
    """Whether there is something to salvage.

    Raises:
        PointerError: nobody can say which log is the live one. UnsupportedVersionError: it is of a newer release.
    """
    problem = examine_queue(directory, name).problem
    if isinstance(problem, PointerError | UnsupportedVersionError):
        raise problem
    return problem is not None


def _lock(files: Files, layout: Layout, lock_file: LockFile, seconds: float) -> None:
    """Keep everybody else out of the queue, until the lock is let go."""
    deadline = Deadline(seconds)
    while not files.flock(lock_file.fd, exclusive=True):
        if deadline.passed():
            raise LockTimeoutError(
                f"somebody has the queue {layout.name!r} in {layout.directory} open. Nothing was changed. Stop the "
                "workers and web processes that use it, and try again.",
                path=layout.lock,
                seconds=seconds,
            )
        sleep(_POLL_SECONDS)


def _check_lock_file(files: Files, layout: Layout, lock_file: LockFile) -> None:
    if files.path_identity(layout.lock) != lock_file.identity:
        raise StorageError("salvage", layout.lock, "somebody has just replaced the file; try again")


def _live_path(files: Files, layout: Layout) -> Path:
    return layout.log(_live_generation(files, layout))


def _live_generation(files: Files, layout: Layout) -> int:
    """The generation that the pointer names; a lone log of version 1 needs none.

    Raises:
        PointerError: nobody can say which it is.
    """
    try:
        fd = files.open(layout.pointer, os.O_RDONLY)
    except FileNotFoundError:
        try:
            generation = generation_without_pointer(files, layout)
        except CorruptLogError:
            generation = 0  # a lone log whose header is damaged
        if generation is None:
            raise PointerError(layout.pointer, f"{layout.pointer} is missing. Nothing was changed.") from None
        return generation
    try:
        return parse_pointer(files, layout, files.pread(fd, 64, 0))
    finally:
        files.close(fd)


def _make_live(rescue: Rescue, files: Files, layout: Layout, mode: int) -> None:
    """Write the next generation and name it in the pointer.

    Raises:
        OSError, StorageError: the damaged queue is as it was, or the new one complete.
    """
    log, report = rescue.log, rescue.report
    strays = sweep_leftovers(files, layout, log.generation)
    generation = max([*strays, *list_generations(files, layout)]) + 1
    if generation > MAX_GENERATION:
        raise StorageError("salvage", log.path, f"generation {generation} is beyond the largest number")
    if files.path_identity(layout.pointer) is None:
        # Version 1 takes "no pointer" for generation 0; with a second log there, nobody else would.
        write_pointer(files, layout, log.generation, mode)
    report.kept_path = _keep(rescue, files, layout, mode)
    report.report_path = layout.directory / f"{layout.name}.salvage-{generation}.jsonl"
    report.new_generation = generation
    _write_report(rescue.report_lines(), report.report_path, files, layout, mode)
    new = NewLog(files, layout, generation, rescue.snapshot(), mode)
    try:
        with rescue.copies() as jobs:
            for records in jobs:
                new.add(records)
        new.finish()
        new.take_name()
        files.sync_directory(layout.directory)
        write_pointer(files, layout, generation, mode)
    except BaseException:
        new.remove_unless_live()
        raise
    finally:
        new.close()


def _keep(rescue: Rescue, files: Files, layout: Layout, mode: int) -> Path:
    """A name of its own for the damaged log; where the system has no links, a copy."""
    log, count = rescue.log, 1
    while (identity := files.path_identity(path := _kept_path(layout, log.generation, count))) is not None:
        if identity == log.identity:
            return path
        count += 1
    try:
        files.link(log.path, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return keep_aside(log, Tail(0, 0, log.size(), 0, 0, None), layout, files, mode)
    return path


def _kept_path(layout: Layout, generation: int, count: int) -> Path:
    return layout.directory / f"{layout.name}.damaged-{generation}-{count}"


def _write_report(lines: Iterator[str], path: Path, files: Files, layout: Layout, mode: int) -> None:
    temporary = layout.temporary("compact")
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            files.set_mode(fd, mode, layout.directory)
            while some := "".join(islice(lines, _LINES)):
                write_all(files, fd, some.encode("utf-8", "backslashreplace"))
            files.sync(fd)
        finally:
            files.close(fd)
        files.rename(temporary, path)
    except BaseException:
        files.unlink(temporary)
        raise
