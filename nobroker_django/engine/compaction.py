"""Writing what is still alive as the next generation, and making that one live by one rename.

In two steps. The first, in here, beside everybody's work: the jobs as they stood at one moment are copied into a new
log, the projection for it is built, and what was written meanwhile is carried over, round by round. The second, under
the log's lock, is the business of ``flip``. Producers and workers wait for that one alone.

A crash at any step leaves exactly one complete live generation. ``tests/concurrency/flip_model.py`` is a model of all
steps, which shows what goes wrong without each of its rules.

Kept: jobs that are ready, delayed, leased or dead, and finished ones until their ``keep_until``.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .beside import Beside
from .control import COMPACTION_BYTE, MAX_GENERATION
from .copying import copies
from .durability import Promise
from .errors import CompactionError, CompactionRunningError, CorruptLogError, OutcomeUnknownError
from .flip import flip
from .framing import FrameDamage
from .held import Held
from .leftovers import remove_retired, sweep_leftovers
from .lockfile import LockFile
from .log import Log
from .new_log import NewLog
from .passage import GROWTH_BYTES, Passage, check_files, promised
from .place import Place
from .projection import UNREADABLE, Projection
from .records import Enqueue, Snapshot
from .schema import Stale
from .session import Session
from .wording import count_of

logger = logging.getLogger("nobroker_django")
_PIECE_SECONDS = 0.05
_EITHER = "Either log is complete, and the pointer says which one is live; the queue is whole"


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction achieved: log sizes in bytes, and jobs kept and dropped."""

    bytes_before: int
    bytes_after: int
    jobs_kept: int
    jobs_dropped: int

    @property
    def bytes_reclaimed(self) -> int:
        """By how much the log shrank."""
        return self.bytes_before - self.bytes_after

    def describe(self) -> str:
        """One line for people."""
        share = 100.0 * self.bytes_reclaimed / self.bytes_before if self.bytes_before else 0.0
        return (
            f"compacted {self.bytes_before} -> {self.bytes_after} bytes ({share:.1f}% reclaimed), "
            f"kept {count_of(self.jobs_kept, 'job')}, dropped {self.jobs_dropped} finished"
        )


def _never() -> bool:
    return False


def compact(session: Session, *, give_up: Callable[[], bool] = _never) -> CompactionResult:
    """Make the next generation of the log live.

    Args:
        give_up: asked again and again; once it says True, the compaction is given up.

    Raises:
        CompactionError: the new generation could not be made live; the queue is usable.
        CorruptLogError: a record is damaged; the live log is untouched.
        LockTimeoutError, StorageError: the live log is untouched.
    """
    name = session.layout.name
    with session.locked() as held:
        lock_file = held.lock_file.retain()
    try:
        with session.long_work.try_lock(lock_file, COMPACTION_BYTE) as had:
            if not had:
                raise CompactionRunningError(f"another compaction of {name!r} is running; this one did nothing")
            return _Compaction(session, lock_file, give_up).run()
    except OSError as error:
        raise CompactionError(f"could not compact {name!r}: {error}; the queue is unchanged") from error
    finally:
        lock_file.release()


class _Compaction:
    """One compaction on its way; ``run`` once."""

    def __init__(self, session: Session, lock_file: LockFile, give_up: Callable[[], bool]) -> None:
        self._session = session
        self._layout = session.layout
        self._lock_file = lock_file
        self._beside = Beside(give_up)
        self._files = place = Place(session.files, session.layout.directory)
        self._beside.closes(place.release, in_child=place.abandon)
        self._passage: Passage | None = None
        self._last_build = 0

    def run(self) -> CompactionResult:
        """All steps, in order.

        Raises:
            As ``compact``.
        """
        try:
            old, generation, state, promise = self._take_snapshot()
            passage, kept, dropped = self._copy(old, generation, state, promise.end)
            build = self._build_projection(passage)
            before = flip(passage, build)
            remove_retired(self._files, self._layout, old.generation)
            return CompactionResult(before, passage.new.size, kept, dropped)
        except (OSError, sqlite3.Error, Stale, FrameDamage, OutcomeUnknownError) as error:
            flipping = self._passage is not None and self._passage.flipping
            raise CompactionError(
                f"could not make the next generation of {self._layout.name!r} live: {error}. "
                f"{_EITHER if flipping else 'The queue is unchanged'} and usable. Free some disk space and try again."
            ) from error
        finally:
            self._beside.end()

    # -- the first step: without the log's lock, but for moments

    def _take_snapshot(self) -> tuple[Log, int, Projection, Promise]:
        """The live log, the generation to come, the state at the end of the promise, which is kept."""
        with ExitStack() as reading:
            with self._session.locked() as held:
                check_files(held, self._lock_file, self._files)
                live = held.log
                generation = max([live.generation, *sweep_leftovers(self._files, self._layout, live.generation)]) + 1
                if generation > MAX_GENERATION:
                    raise CompactionError(f"generation {generation} is beyond the last; the queue is unchanged")
                old = self._open(live.path, live.generation)
                shared = self._shared_state(held, old, reading)
                promise = promised(held)
            promise.keep()
            state = self._beside.do(lambda: _private(old, shared))
            self._beside.closes(state.close)
            self._beside.do(reading.close)
        try:
            self._fold(state, promise.end)
        except FrameDamage as damage:
            raise old.corrupt(damage) from None
        return old, generation, state, promise

    def _open(self, path: Path, generation: int) -> Log:
        log = Log(self._files, path, generation, read_only=True)
        self._beside.closes(log.release, in_child=log.descriptor.abandon)
        return log

    def _shared_state(self, held: Held, old: Log, reading: ExitStack) -> Projection | None:
        """The shared projection, which shows this moment until ``reading`` ends; ``None``: it cannot be read."""
        try:
            held.projection()  # open here, so that its log of changes stays in being
            self._last_build = held.build
            shared = Projection.read(self._files, self._layout, old, held.build)
            reading.callback(shared.close)
            unit = reading.enter_context(shared.reading())
            return shared if unit.applied <= held.end else None
        except Stale:
            return None

    def _copy(self, old: Log, generation: int, state: Projection, end: int) -> tuple[Passage, int, int]:
        """A new log with the copies; how many jobs are kept and dropped."""
        now = self._session.clock()
        base = old.base + end + GROWTH_BYTES
        with state.reading() as unit:
            total = sum(unit.counts)
            snapshot = Snapshot(
                log_id=old.snapshot.log_id, at=now, base=base, open=base, clock=unit.clock,
                enqueued_total=unit.enqueued_total, ignored=unit.ignored,
            )  # fmt: skip
        new = NewLog(self._files, self._layout, generation, snapshot, self._session.file_mode)
        self._beside.closes(lambda: self._close(new), in_child=new.close)
        kept = 0
        pieces = copies(state, old, end, now)
        while (records := self._beside.do(lambda: next(pieces, None))) is not None:
            kept += sum(type(record) is Enqueue for record in records)
            new.add(records)
        new.sync()
        self._beside.do(state.close)
        self._passage = Passage(self._session, self._files, self._lock_file, old, new, end)
        return self._passage, kept, total - kept

    def _close(self, new: NewLog) -> None:
        if not self._is_live():
            new.remove_unless_live()
        new.close()

    def _is_live(self) -> bool:
        return self._passage is not None and self._passage.live

    def _build_projection(self, passage: Passage) -> int:
        """The number of a projection of the new log, which is brought up to date with what was written meanwhile."""
        session, new = self._session, passage.new
        try:
            log = self._open(new.path, new.generation)
        except CorruptLogError as error:
            raise CompactionError(f"what was written reads otherwise: {error}; the queue is unchanged") from error
        projection = self._beside.do(
            lambda: Projection.create(
                self._files,
                self._layout,
                log,
                after=self._last_build,
                dir_mode=session.dir_mode,
                file_mode=session.file_mode,
            )
        )
        self._beside.closes(lambda: self._close_projection(projection))
        self._fold(projection, new.size)
        while not passage.round():
            if not passage.braking:  # what is not folded now is folded by the verbs
                self._fold(projection, new.size)
        self._beside.do(projection.close)
        return projection.build

    def _close_projection(self, projection: Projection) -> None:
        projection.close()
        if not self._is_live():
            try:
                for end in ("", "-wal", "-shm"):
                    self._files.unlink(f"{projection.path}{end}")
            except OSError as error:
                logger.warning("could not remove the unfinished projection %s: %s", projection.path, error)

    def _fold(self, projection: Projection, stop: int) -> None:
        def fold() -> bool:
            with projection.unit() as unit:
                return unit.fold(stop, _PIECE_SECONDS)

        while not self._beside.do(fold):
            pass


def rows_were_wrong(name: str) -> CompactionError:
    """A compaction met what looked like damage, and the log turned out to be sound."""
    return CompactionError(
        f"the projection of {name!r} was wrong and has been made anew; the log is sound and unchanged. Compact again."
    )


def _private(log: Log, shared: Projection | None) -> Projection:
    """A copy of the shared projection, as it is being read, for one's own use; an empty one if it is damaged."""
    try:
        state = Projection.private(log, copy_of=shared)
    except (Stale, *UNREADABLE):
        state = Projection.private(log)
    state.connection.execute("PRAGMA temp_store = FILE")  # what has to be sorted may be larger than the memory
    return state
