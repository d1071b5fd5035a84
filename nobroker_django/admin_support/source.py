"""Where the admin reads a queue: its shared projection, or a small private copy brought up to date.

Invariant: looking takes no lock, writes nothing, creates nothing and ends soon, whatever the state of the queue.
A projection that lags behind the log is completed in a private copy if both are small; a larger one is read as it is,
and ``behind_bytes`` says how much of the log is not in it. What cannot be read at all is a ``notice`` in words for a
person, never an exception.

Unlike ``engine.read_view``, which always answers and may replay a whole log for that, a page must not keep a person
waiting.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nobroker_django.engine.clock import sleep
from nobroker_django.engine.control import MISSING, Control, Words, generation_of
from nobroker_django.engine.errors import NobrokerError
from nobroker_django.engine.files import Files
from nobroker_django.engine.framing import FrameDamage
from nobroker_django.engine.generations import Layout, list_generations, parse_pointer
from nobroker_django.engine.log import FIRST_OFFSET, Log
from nobroker_django.engine.old_log import OldLog, generation_without_pointer, open_log
from nobroker_django.engine.projection import Projection, index_path
from nobroker_django.engine.recovery import readable_end
from nobroker_django.engine.schema import Stale

LARGEST_COPY_BYTES = 16 * 1024 * 1024
LARGEST_REPLAY_BYTES = 1024 * 1024
_ATTEMPTS = 50
_PAUSE_SECONDS = 0.002
_FOR_EVER = float("inf")


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells whether the files are still those that were opened: the pointer, the words, the log of changes."""

    pid: int
    pointer: tuple[int, int] | None
    generation_and_build: tuple[int, int, int]
    has_wal: bool
    end: int


@dataclass(slots=True)
class Source:
    """One look at a queue's files, for one connection.

    Exactly one of ``uri`` (a file to open), ``copy`` (to take over) and ``notice`` (there is nothing to read) is set.
    ``log`` is the log that the offsets in the rows mean; it is open until ``close``.
    """

    layout: Layout | None
    mark: Mark
    uri: str | None = None
    copy: Projection | None = None
    log: Log | None = None
    notice: str | None = None
    behind_bytes: int = 0

    def close(self) -> None:
        """Close the log and the copy."""
        self.close_copy()
        if self.log is not None:
            self.log.release()
            self.log = None

    def close_copy(self) -> None:
        """Close the private copy, when its contents have been taken over."""
        if self.copy is not None:
            self.copy.close()
            self.copy = None

    @property
    def behind_text(self) -> str:
        """``behind_bytes`` for a sentence."""
        return f"{self.behind_bytes:,} {'byte' if self.behind_bytes == 1 else 'bytes'}"

    def moved(self) -> bool:
        """Whether a new look would read other files. A copy is also left behind by anything that is appended."""
        now = mark(self.layout) if self.layout is not None else self.mark
        return (
            now.pointer != self.mark.pointer
            or now.generation_and_build != self.mark.generation_and_build
            or now.has_wal != self.mark.has_wal
            or (self.uri is None and now.end != self.mark.end)
        )

    def overtaken(self) -> bool:
        """Whether the file was opened as one that nobody writes to, and somebody has begun to."""
        return self.uri is not None and not self.mark.has_wal and self.layout is not None and mark(self.layout).has_wal

    def measure(self, applied: int) -> None:
        """Say how far the rows, which reach to ``applied`` (bytes), are behind the log at this moment."""
        if self.layout is not None and self.log is not None and self.uri is not None:
            self.behind_bytes = max(0, _end(self.log, _words(self.log.files, self.layout)) - applied)


class _Moved(Exception):
    """A file was replaced between two steps: look again."""


def nothing(notice: str) -> Source:
    """A source without a queue."""
    return Source(None, Mark(os.getpid(), None, (0, 0, 0), False, 0), notice=notice)


def look(directory: Path, queue: str) -> Source:
    """Open what there is to read of a queue. Raises nothing for a queue that is missing, damaged or not readable."""
    try:
        layout = Layout.of(directory, queue)
    except NobrokerError as error:
        return nothing(str(error))
    for _ in range(_ATTEMPTS):
        seen = mark(layout)
        try:
            return _open(layout, seen)
        except _Moved:
            sleep(_PAUSE_SECONDS)
        except FrameDamage as damage:
            return Source(layout, seen, notice=f"The log is damaged at byte {damage.offset}: {damage.reason}.")
        except (NobrokerError, OSError) as error:
            if mark(layout).pointer == seen.pointer:
                return Source(layout, seen, notice=_sentence(error))
    return Source(layout, seen, notice="The files were replaced again and again. Try again.")


def mark(layout: Layout) -> Mark:
    """The mark of this moment."""
    files = Files()
    try:
        words = _words(files, layout)
        generation = generation_of(words.end)
        wal = f"{index_path(layout, generation, words.build)}-wal"
        return Mark(
            os.getpid(),
            files.path_identity(layout.pointer),
            (words.log_id, generation, words.build),
            files.path_identity(wal) is not None,
            words.end,
        )
    except OSError:
        return Mark(os.getpid(), None, (0, 0, 0), False, 0)


def _open(layout: Layout, seen: Mark) -> Source:
    files = Files()
    log = _live_log(files, layout, seen)
    try:
        words = _words(files, layout)
        end = _end(log, words)
        source = _shared(files, layout, seen, log, words, end) or _replayed(layout, seen, log, end, None)
    except BaseException:
        log.release()
        raise
    if source.log is None:
        log.release()
    return source


def _live_log(files: Files, layout: Layout, seen: Mark) -> Log:
    """The log that the pointer names.

    Raises:
        _Moved: it was replaced meanwhile. NobrokerError, OSError: it cannot be read.
    """
    try:
        fd = files.open(layout.pointer, os.O_RDONLY)
        try:
            text = files.pread(fd, 64, 0)
        finally:
            files.close(fd)
        generation = parse_pointer(files, layout, text)
        return open_log(files, layout.log(generation), generation)
    except (NobrokerError, FileNotFoundError) as error:
        if files.path_identity(layout.pointer) != seen.pointer:
            raise _Moved from None
        if isinstance(error, FileNotFoundError):
            old = generation_without_pointer(files, layout) if files.path_identity(layout.directory) else None
            if old is not None:
                return OldLog(files, layout.log(old), old)
            logs = list_generations(files, layout) if files.path_identity(layout.directory) else []
            if logs:
                names = ", ".join(layout.log(number).name for number in logs)
                raise FileNotFoundError(
                    f"The file that names the live log, {layout.pointer}, is missing, but there are logs: {names}."
                ) from None
            raise FileNotFoundError(
                f"There is no queue “{layout.name}” in {layout.directory} yet. The first enqueue makes it."
            ) from None
        raise


def _shared(files: Files, layout: Layout, seen: Mark, log: Log, words: Words, end: int) -> Source | None:
    """The projection of all processes, or a completed copy of it; None when there is none that can be read."""
    if not words.build or not words.belong_to(log.log_id, log.generation):
        return None
    try:
        shared = Projection.read(files, layout, log, words.build)
    except Stale:
        return None
    try:
        try:
            with shared.reading() as unit:
                behind = end - unit.applied
        except Stale:
            return None
        path = index_path(layout, log.generation, words.build)
        if 0 < behind <= LARGEST_REPLAY_BYTES and files.path_size(path) <= LARGEST_COPY_BYTES:
            return _replayed(layout, seen, log, end, shared)
        mode = "mode=ro" if files.path_identity(f"{path}-wal") is not None else "mode=ro&immutable=1"
        return Source(layout, seen, uri=f"{path.as_uri()}?{mode}", log=log, behind_bytes=max(0, behind))
    finally:
        shared.close()


def _replayed(layout: Layout, seen: Mark, log: Log, end: int, shared: Projection | None) -> Source:
    """A private projection up to ``end``, from a copy or from nothing; only a notice when that would take long."""
    if shared is None and end - FIRST_OFFSET > LARGEST_REPLAY_BYTES:
        return Source(
            layout,
            seen,
            notice="The index of this queue is missing or out of use, and its log is too long to be read here. "
            "A worker makes a new one, and so does nobroker_compact.",
            behind_bytes=end - FIRST_OFFSET,
        )
    copy = Projection.private(log, copy_of=shared)
    try:
        with copy.unit() as unit:
            unit.fold(end, _FOR_EVER)
    except Stale as error:
        copy.close()
        raise _Moved from error
    except BaseException:
        copy.close()
        raise
    return Source(layout, seen, copy=copy, log=log)


def _end(log: Log, words: Words) -> int:
    """Up to where (bytes) the log may be read. Without control words it would have to be walked: only if short."""
    if words.belong_to(log.log_id, log.generation):
        return readable_end(log, words)
    end = log.data_end()
    if end > LARGEST_REPLAY_BYTES:
        return end
    return log.tail().good if isinstance(log, OldLog) else readable_end(log, words)


def _words(files: Files, layout: Layout) -> Words:
    try:
        fd = files.open(layout.lock, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return MISSING
    try:
        return Control(files, fd).read()
    finally:
        files.close(fd)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
