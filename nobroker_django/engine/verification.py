"""Is a queue what its log says, and does its log say nothing impossible? The self-check, for people and for tests.

Invariant: as in ``inspection``, nothing in here can write, and nothing waits for a writer. Everything is read: each
frame and its checksum, each write and how many records it has, each record's transition in a replay of its own, the
control words, and the shared projection, row by row against that replay.

Beside running processes the check goes up to the published end that it saw. What it finds is looked at again, until
two looks agree: a finding is none that a write or a compaction under way would explain.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from .comparison import differences
from .control import Words, generation_of, offset_of
from .errors import CorruptLogError, StorageError
from .examination import settled_tail
from .findings import Finding, Kind, Verification, problem_finding, why_not
from .framing import Frame, FrameDamage
from .gaps import Gap, frames_and_gaps
from .generations import Layout, list_generations
from .inspection import ReadingFiles, live_log, read_words
from .log import FIRST_OFFSET, Log
from .old_log import OldLog
from .projection import Projection, index_path
from .records import Enqueue, Lease, Record, Snapshot, batch_fields
from .recovery import Tail
from .schema import STATES, Stale
from .unit import Unit
from .wording import count_of

_ATTEMPTS = 3
_PIECE_FRAMES = 1000
_PIECE_BYTES = 1024 * 1024
_LITTLE_BYTES = 1024 * 1024

Progress = Callable[[int, int], None]  # bytes checked, of how many


def verify_queue(directory: str | os.PathLike[str], name: str, *, progress: Progress | None = None) -> Verification:
    """Check everything that can be checked of one queue, without opening it.

    Args:
        progress: called now and then with the bytes that are checked, and of how many.

    Returns:
        What was found; damage is among the ``findings``, not raised.

    Raises:
        InvalidOptionError: there is no such queue. StorageError: a file cannot be read, or there is no room for the
            replay (a temporary file of SQLite's).
    """
    layout, files = Layout.of(directory, name), ReadingFiles()
    before: list[Finding] = []
    for _ in range(_ATTEMPTS):
        try:
            log = live_log(files, layout)
        except CorruptLogError as problem:
            found = Verification(name, layout.directory)
            found.add(problem_finding(problem))
            return found
        except OSError as error:
            raise StorageError("read", getattr(error, "filename", None) or directory, error) from error
        check = _Check(files, layout, log, progress)
        try:
            check.run()
        except OSError as error:
            raise StorageError("read", getattr(error, "filename", None) or log.path, error) from error
        finally:
            check.close()
        if check.found.findings == before:
            break
        before = check.found.findings
    return check.found


class _Check:
    """One look at everything."""

    def __init__(self, files: ReadingFiles, layout: Layout, log: Log, progress: Progress | None) -> None:
        self.found = Verification(layout.name, layout.directory, log.generation, log.version, log.path)
        self._files, self._layout, self._log = files, layout, log
        self._progress = progress or (lambda done, total: None)
        self._replayed = Projection.private(log)
        self._at = FIRST_OFFSET  # up to here everything was read
        self._goal = FIRST_OFFSET
        self._sound = True  # whether all of that was intact
        self._folded: Frame | None = None  # the last one that was
        self._left = 0  # records that the current write still has to have
        self._last_write = FIRST_OFFSET
        self._token, self._seq = "", -1
        self._words = read_words(files, layout)
        self._boundaries = {
            offset_of(word) for word in (self._words.end, self._words.last, self._words.synced)
        }  # where writes should begin or end, and none was met yet

    def close(self) -> None:
        """Let go of everything."""
        self._replayed.close()
        self._log.release()

    def run(self) -> None:
        """Check everything, in order.

        Raises:
            StorageError: there is no room for the replay.
        """
        words, tail = settled_tail(self._files, self._layout, self._log)
        stop = self._log.data_end() if isinstance(tail, CorruptLogError) else tail.good
        self._goal = stop
        if isinstance(tail, CorruptLogError):
            self.found.projection = "skipped"
        else:
            self._compare_projection()
        self._replay(max(stop, self._at))
        self._check_end(words, tail)
        self._check_words(words)
        self._note_the_rest()
        with self._replayed.reading() as unit:
            counts = dict(zip(STATES, unit.counts, strict=True))
        counts["ready"] = counts.pop("waiting") + counts.pop("due")
        self.found.jobs, self.found.end = counts, self._at

    # -- the log

    def _replay(self, stop: int) -> None:
        """Check and replay everything up to ``stop`` (bytes), where a write ends."""
        items = frames_and_gaps(self._log, self._at, stop)
        while piece := _piece(items):
            try:
                with self._replayed.unit() as unit:
                    for item in piece:
                        self._look_at(unit, item)
                    if self._folded is not None:
                        unit.advance(self._folded)
            except (sqlite3.Error, Stale) as error:
                raise StorageError("replay", self._log.path, error) from error
            last = piece[-1]
            self._at = last.stop if isinstance(last, Gap) else last.end
            self._progress(self._at, max(self._goal, stop))

    def _look_at(self, unit: Unit, item: Frame | Gap) -> None:
        if isinstance(item, Gap):
            self._sound = False
            behind = f"; intact records follow from byte {item.stop} on" if item.stop < self._log.data_end() else ""
            self._add(Kind.DAMAGE, f"{item.reason}{behind}", item.start)
            return
        self.found.records += 1
        if not self._sound:
            return
        try:
            self._count(item)
            record = self._log.decode(item)
            if isinstance(record, Snapshot) != (item.offset == FIRST_OFFSET and not isinstance(self._log, OldLog)):
                raise FrameDamage(item.offset, "a SNAPSHOT record in the middle of a log")
        except FrameDamage as damage:
            self._sound = False
            self._add(Kind.DAMAGE, damage.reason, damage.offset)
            return
        self._fold(unit, item, record)

    def _count(self, frame: Frame) -> None:
        """Where the frame stands in its write.

        Raises:
            FrameDamage: the write before it lacks records, or it belongs to none.
        """
        if isinstance(self._log, OldLog):
            self.found.writes += 1
            return
        begins = batch_fields(frame.type, frame.body, frame.offset)
        if begins is None and not self._left:
            raise FrameDamage(frame.offset, "a record outside any write")
        if begins is not None:
            if self._left:
                raise FrameDamage(frame.offset, f"the write before it lacks {self._left} of its records")
            self._left = begins[0]
            self._last_write = frame.offset
            self._boundaries.discard(frame.offset)
            self.found.writes += 1
        self._left -= 1
        if not self._left:
            self._boundaries.discard(frame.end)

    def _fold(self, unit: Unit, frame: Frame, record: Record) -> None:
        """Replay one record; what does not fit the state that it meets changes nothing, and is a finding."""
        if isinstance(record, Enqueue) and not self._seq_rises(record, frame.offset):
            return
        job_id = getattr(record, "id", None)
        row = None if job_id is None else unit.find(job_id)
        before = (None, None) if row is None else (row.state, row.lease_token)
        gone = [one for one in getattr(record, "ids", None) or () if unit.find(one) is None]
        ignored = unit.ignored
        self._log.fold(unit, record, frame.offset)
        self._folded = frame
        if unit.ignored != ignored and not isinstance(record, Snapshot):
            name = record.TYPE.name
            for job in gone or [job_id]:
                self._add(Kind.TRANSITION, f"{name} of a job that {why_not(record, *before)}", frame.offset, job)
        if isinstance(record, Lease) and not isinstance(self._log, OldLog):
            if record.token <= self._token:
                self._add(
                    Kind.TRANSITION,
                    f"the fencing token {record.token!r} is not above {self._token!r}, which was given out before",
                    frame.offset,
                    record.id,
                )
            self._token = max(self._token, record.token)

    def _seq_rises(self, record: Enqueue, offset: int) -> bool:
        """Whether the job's place in the order is behind that of all jobs before it; if not, the replay ends here."""
        if isinstance(self._log, OldLog):
            return True
        seq = record.seq if record.seq is not None else record.carried
        seq = self._log.base + offset if seq is None else seq
        if seq <= self._seq:
            self._add(Kind.TRANSITION, f"seq {seq} is not above that of the job before it", offset, record.id)
            self._sound = False
            return False
        self._seq = seq
        return True

    def _check_end(self, words: Words, tail: Tail | CorruptLogError) -> None:
        if isinstance(tail, CorruptLogError):
            if tail.offset not in (finding.offset for finding in self.found.findings):
                self._add(Kind.DAMAGE, tail.reason, tail.offset)
        elif tail.good < tail.size and self._at < tail.size:
            why = tail.damage.reason if tail.damage else "an incomplete write"
            self._add(
                Kind.TORN_TAIL,
                f"{count_of(tail.size - tail.good, 'byte')} ({why}). No acknowledged job is in there; the next writer "
                "cuts that off and keeps it",
                tail.good,
            )

    # -- the control words

    def _check_words(self, words: Words) -> None:
        if isinstance(self._log, OldLog):
            self.found.notes.append("format version 1: the next writer makes a new generation of it")
            return
        if not words.belong_to(self._log.log_id, self._log.generation):
            self.found.notes.append("there are no control words of this log: a copy, or left so by a crash")
            return
        if words.poisoned:
            self._words_say("poisoned: a sync failed or was interrupted; the next writer secures the end of the log")
        if words.damaged and generation_of(words.damaged) == self._log.generation:
            self._words_say(
                f"damage was met at byte {offset_of(words.damaged)}; nobody writes before every process has closed "
                "the queue and the log is sound"
            )
        if words.clean and words.clean != words.build:
            self._words_say(f"build {words.clean} was left clean, but the current one is {words.build}")
        if self._words.belong_to(self._log.log_id, self._log.generation) and self._sound and not words.poisoned:
            for offset in sorted(self._boundaries):
                self._words_say(f"they speak of byte {offset}, where no write begins or ends")

    def _words_say(self, reason: str) -> None:
        self.found.add(Finding(Kind.WORDS, reason, self._layout.lock))

    # -- the projection

    def _compare_projection(self) -> None:
        """Replay up to where the shared projection has come, and compare; it is held still for that moment alone."""
        while self._sound:
            words = read_words(self._files, self._layout)
            if not words.build or not words.belong_to(self._log.log_id, self._log.generation):
                return
            path = index_path(self._layout, self._log.generation, words.build)
            try:
                shared = Projection.read(self._files, self._layout, self._log, words.build)
            except CorruptLogError:
                break  # the record that it ends with: the replay will meet it, and say so
            except Stale as reason:
                self._cannot_compare(path, str(reason))
                return
            try:
                with shared.reading() as unit:
                    goal = unit.applied
                    if goal < self._at:
                        self.found.notes.append("the projection is being made anew: it was not compared")
                        return
                    if goal - self._at <= _LITTLE_BYTES:
                        self._replay(goal)
                        self._compare(path, shared)
                        return
            except Stale as reason:
                self._wrong(path, f"it cannot be read: {reason}")
                return
            finally:
                shared.close()
            self._replay(goal)
        self.found.projection = "skipped"

    def _compare(self, path: Path, shared: Projection) -> None:
        if not self._sound:
            self.found.projection = "skipped"
            return
        self.found.projection = "equal"
        for job_id, text in differences(shared.connection, self._replayed.connection):
            self._wrong(path, text, job_id)
        self.found.behind_bytes = max(0, self._goal - self._at)

    def _cannot_compare(self, path: Path, reason: str) -> None:
        """No shared projection: a cache that is not there is no fault, one that is there and unreadable is."""
        if self._files.path_identity(path) is None:
            self.found.notes.append("there is no projection: the next one who needs it makes it")
        elif self._files.path_identity(f"{path}-wal") and not self._files.path_identity(f"{path}-shm"):
            self.found.notes.append(f"the projection cannot be read without writing ({path}): it was not compared")
        else:
            self._wrong(path, f"it is not usable: {reason}")

    def _wrong(self, path: Path, reason: str, job_id: str | None = None) -> None:
        self.found.projection = "differs"
        self.found.add(Finding(Kind.PROJECTION, reason, str(path), None, job_id))

    def _note_the_rest(self) -> None:
        if self._log.snapshot.ignored:
            self.found.notes.append(
                f"{count_of(self._log.snapshot.ignored, 'record')} of earlier generations fitted no job"
            )
        for generation in list_generations(self._files, self._layout):
            if generation > self._log.generation:
                self.found.notes.append(
                    f"{self._layout.log(generation)} is newer than the live log: of a compaction that is under way "
                    "or was killed, or the pointer is older than it should be"
                )

    def _add(self, kind: Kind, reason: str, offset: int, job_id: str | None = None) -> None:
        self.found.add(Finding(kind, reason, str(self._log.path), offset, job_id))


def _piece(items: Iterator[Frame | Gap]) -> list[Frame | Gap]:
    """The next of them: some, but not many bytes."""
    piece: list[Frame | Gap] = []
    size = 0
    for item in items:
        piece.append(item)
        size += len(item.body) if isinstance(item, Frame) else 0
        if len(piece) >= _PIECE_FRAMES or size >= _PIECE_BYTES:
            break
    return piece
