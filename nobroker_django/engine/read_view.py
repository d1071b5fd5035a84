"""Looking at a queue without writing anything: no lock, no file created, no byte changed.

For the tools of people who look (lists, statistics, the admin), for directories that are not writable or somebody
else's. A look never waits for a writer. It is answered by the shared projection where that is up to date; where it is
behind and small, by a private copy into which the rest of the log is folded; where there is none, by a private replay.
Only a large projection that is behind answers as it is, and the look says by how many bytes (``behind_bytes``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from .clock import Clock, sleep
from .control import MISSING, Control, Words
from .errors import CorruptLogError, PointerError, QueueClosedError, StorageError
from .files import Files
from .framing import FrameDamage
from .generations import Layout, list_generations, parse_pointer
from .locks import OwnedMutex, fork_guard, leaked
from .log import Log
from .old_log import OldLog, generation_without_pointer, open_log
from .projection import Projection
from .recovery import readable_end
from .schema import Stale
from .unit import Unit

_SMALL_BYTES = 64 * 1024 * 1024
_ATTEMPTS = 50
_PAUSE_SECONDS = 0.002
_FOR_EVER = float("inf")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """What a question is asked of: the rows, the log that their offsets mean, the moment (Unix seconds)."""

    unit: Unit
    log: Log
    now: float
    behind_bytes: int = 0


class _Moved(Exception):
    """A file was replaced between two steps of a look: look again."""


class ReadView:
    """A queue as it can be seen from outside. Threads take turns."""

    def __init__(self, layout: Layout, files: Files, clock: Clock) -> None:
        self.layout = layout
        self._files = files
        self._clock = clock
        self._mutex = OwnedMutex()
        self._closed = False
        self._log: Log | None = None
        self._private: Projection | None = None
        self._distrusted = 0  # the build of a shared projection that was found to be wrong
        fork_guard.add(self)
        try:
            self.look(lambda look: None)
        except BaseException:
            self.close()
            raise

    def look(self, act: Callable[[Look], T]) -> T:
        """Ask; ``act`` may be called again when a file was replaced meanwhile.

        Raises:
            PointerError: there is no such queue. CorruptLogError: acknowledged data are damaged.
            StorageError: a file cannot be read. QueueClosedError: this object was closed.
        """
        self._mutex.refuse_reentry()
        with self._mutex.lock:
            if self._closed:
                raise QueueClosedError(f"queue {self.layout.name!r} is closed; the call did nothing")
            for _ in range(_ATTEMPTS):
                try:
                    with self._looking() as look:
                        return act(look)
                except (_Moved, Stale) as reason:
                    self._drop()
                    if isinstance(reason, Stale):
                        self._distrusted = self._words().build
                    sleep(_PAUSE_SECONDS)
                except CorruptLogError:
                    if not self.distrust():
                        raise
                except OSError as error:
                    raise StorageError("read the files of", self.layout.directory, error) from error
            raise StorageError("read the projection in", self.layout.run, "it was replaced again and again")

    def distrust(self) -> bool:
        """Make no use of the shared projection as it is now: a row may be wrong. Whether that is new."""
        build = self._words().build
        new = build not in (0, self._distrusted)
        self._distrusted = build
        if new:
            self._drop()
        return new

    def close(self) -> None:
        """Close what is open; the object cannot be used afterwards."""
        with self._mutex.lock:
            self._closed = True
            self._drop()

    def before_fork(self) -> None:
        """Wait until no other thread is looking."""
        self._mutex.refuse_reentry()
        self._mutex.lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._mutex.let_go()

    def after_fork_in_child(self) -> None:
        """Give up what was inherited, without touching the parent's connection."""
        leaked.append(self._private)
        self._log = self._private = None
        self._mutex = OwnedMutex()

    @property
    def log_path(self) -> str:
        """The live log file."""
        return self.look(lambda look: look.log.name)

    def _drop(self) -> None:
        if self._private is not None:
            self._private.close()
        if self._log is not None:
            self._log.release()
        self._private = self._log = None

    @contextmanager
    def _looking(self) -> Iterator[Look]:
        log = self._live_log()
        words = self._words()
        end = log.tail().good if isinstance(log, OldLog) else readable_end(log, words)
        shared: Projection | None = None
        try:
            if words.belong_to(log.log_id, log.generation) and words.build not in (0, self._distrusted):
                try:
                    shared = Projection.read(self._files, self.layout, log, words.build)
                except Stale:
                    pass
            if shared is not None:
                with shared.reading() as unit:
                    behind = end - unit.applied
                    if behind <= 0 or not self._is_small(shared):
                        yield Look(unit, log, self._clock(), max(0, behind))
                        return
            projection = self._replayed(log, end, shared)
        finally:
            if shared is not None:
                shared.close()
        with projection.reading() as unit:
            yield Look(unit, log, self._clock())

    def _replayed(self, log: Log, end: int, shared: Projection | None) -> Projection:
        """The private projection, folded up to ``end``."""
        if self._private is None:
            self._private = Projection.private(log, copy_of=shared)
        try:
            with self._private.unit() as unit:
                if unit.applied > end:
                    raise _Moved  # the tail was cut meanwhile
                unit.fold(end, _FOR_EVER)
        except FrameDamage as damage:
            raise log.corrupt(damage) from None
        return self._private

    def _is_small(self, projection: Projection) -> bool:
        assert projection.path is not None
        return self._files.path_size(projection.path) <= _SMALL_BYTES

    def _live_log(self) -> Log:
        """The log that the pointer names now."""
        try:
            fd = self._files.open(self.layout.pointer, os.O_RDONLY)
        except FileNotFoundError:
            return self._log_without_pointer()
        try:
            text = self._files.pread(fd, 64, 0)
        finally:
            self._files.close(fd)
        try:
            generation = parse_pointer(self._files, self.layout, text)
            path = self.layout.log(generation)
            if self._log is not None and self._files.path_identity(path) == self._log.identity:
                return self._log
            self._drop()
            self._log = open_log(self._files, path, generation)
        except (PointerError, FileNotFoundError) as error:
            if self._reads_otherwise(text):
                raise _Moved from None
            raise error
        return self._log

    def _log_without_pointer(self) -> Log:
        """The log of version 1 in a directory that has no pointer yet."""
        log = self._log
        if isinstance(log, OldLog) and self._files.path_identity(log.path) == log.identity:
            return log
        generation = generation_without_pointer(self._files, self.layout)
        if generation is None:
            raise self._no_queue()
        self._drop()
        try:
            self._log = OldLog(self._files, self.layout.log(generation), generation)
        except FileNotFoundError:
            raise _Moved from None
        return self._log

    def _reads_otherwise(self, text: bytes) -> bool:
        """Whether the pointer has changed since it read ``text``."""
        try:
            fd = self._files.open(self.layout.pointer, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return self._files.pread(fd, 64, 0) != text
        finally:
            self._files.close(fd)

    def _words(self) -> Words:
        try:
            fd = self._files.open(self.layout.lock, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):
            return MISSING
        try:
            return Control(self._files, fd).read()
        finally:
            self._files.close(fd)

    def _no_queue(self) -> PointerError:
        layout = self.layout
        logs = list_generations(self._files, layout)
        there = (
            f"its logs are there ({', '.join(layout.log(number).name for number in logs)})" if logs else "nor any log"
        )
        return PointerError(
            layout.pointer,
            f"there is no queue {layout.name!r} in {layout.directory}: {layout.pointer} does not exist, {there}. "
            "Nothing was created.",
        )
