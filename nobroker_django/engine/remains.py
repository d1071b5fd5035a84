"""A damaged log, open for reading what is left of it.

Invariant: only intact records are given, in their order; what of an unfinished write nobody had been told was durable
is left out. The survey, made once when the log is opened, says where the damage is and how far the log reaches.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .control import Words, offset_of
from .errors import CorruptLogError
from .files import Files
from .framing import HEADER_BYTES, Frame, FrameDamage, decode_header, read_frame
from .gaps import Gap, frames_and_gaps
from .lenient import Losses, Lost
from .log import FIRST_OFFSET, Log
from .old_log import OldLog
from .records import BUILT_TYPES, Enqueue, Record, Snapshot, batch_fields, decode_record
from .transitions import State

MOST_NAMES = 100  # ids that the damaged bytes still show
_PEEK_BYTES = 1024 * 1024
_ID = re.compile(rb'"id":"((?:[^"\\\x00-\x1f]|\\.){1,1200})"')
# A generation's base of ``seq`` lies below this times its number: no log, and no step to the next one, is longer.
LARGEST_STEP = 1 << 41


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a log that are no intact records; ``names`` are the ids of jobs that can still be read in them."""

    start: int
    stop: int
    reason: str
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Survey:
    """What is left: ``records`` intact ones up to ``end`` (bytes), with ``damage`` between them.

    Behind ``end`` there may be a torn tail, up to ``size``. ``beginning_lost``: the first record is among the damage.
    """

    size: int
    end: int = FIRST_OFFSET
    records: int = 0
    jobs: int = 0
    damage: list[Damage] = field(default_factory=list)
    beginning_lost: bool = False


class Remains(Log):
    """A log of the current version, whatever is wrong with it."""

    def __init__(self, files: Files, path: Path, generation: int, words: Words) -> None:
        """Open and survey it.

        Args:
            words: the control words; behind what those of this log call durable, a hole ends it.

        Raises:
            OSError: it cannot be read.
            CorruptLogError: it holds intact records that only a newer release understands.
        """
        self.losses = Losses()
        self._words = words
        self._header_problem = ""
        super().__init__(files, path, generation, read_only=True)
        try:
            self.survey = self._survey()
        except BaseException:
            self.release()
            raise
        self.losses.watched_from = self.survey.damage[-1].stop if self.survey.damage else 0

    def _read_beginning(self) -> tuple[Snapshot, int]:
        """Never refuses: what is lost of the beginning is made up, so that ``seq`` and tokens rise all the same."""
        try:
            version, generation = decode_header(self.files.pread(self.fd, HEADER_BYTES, 0))
            if (version, generation) != (self.version, self.generation):
                self._header_problem = f"the header says version {version}, generation {generation}"
        except FrameDamage as damage:
            self._header_problem = damage.reason
        try:
            frame = read_frame(self.files, self.fd, FIRST_OFFSET, self.version)
            record = decode_record(frame.type, frame.body, frame.offset)
            if isinstance(record, Snapshot):
                int(record.log_id, 16)
                return record, frame.end
        except (FrameDamage, ValueError):
            pass
        # The words that lie beside it are most likely its own; if there are none, no others may pass for them.
        log_id = self._words.log_id or int.from_bytes(os.urandom(8), "big") | 1
        return Snapshot(log_id=f"{log_id:016x}", at=0.0, base=self.generation * LARGEST_STEP), FIRST_OFFSET

    def frames(self, start: int, stop: int) -> Iterator[Frame]:
        """The intact frames between two offsets (bytes), whatever is between them."""
        for item in frames_and_gaps(self, start, stop):
            if isinstance(item, Frame) and self._record(item) is not None:
                yield item

    def fold(self, state: State, record: Record, offset: int) -> None:
        """Fold the record at ``offset`` into the state, presuming what is missing before it."""
        self.losses.apply(state, record, offset)

    def _record(self, frame: Frame) -> Record | None:
        """The record of a frame; ``None`` when it is malformed: what no writer makes is damage.

        Raises:
            CorruptLogError: a newer release wrote it.
        """
        try:
            self._begins(frame)
            return self.decode(frame)
        except FrameDamage as damage:
            if frame.type in BUILT_TYPES:
                return None
            raise CorruptLogError(
                self.path, frame.offset, f"{damage.reason}. Salvage the queue with the release that wrote it"
            ) from None

    def _begins(self, frame: Frame) -> tuple[int, int] | None:
        """``(n, u)`` of a record that begins a write; ``FrameDamage`` when they make no sense."""
        return batch_fields(frame.type, frame.body, frame.offset)

    def _survey(self) -> Survey:
        """Walk over everything once."""
        found = Survey(self.data_end(), beginning_lost=self.first_end == FIRST_OFFSET and self.version != 1)
        if self._header_problem:
            found.damage.append(Damage(0, HEADER_BYTES, self._header_problem))
        believed = self._words.belong_to(self.log_id, self.generation)
        certified = offset_of(self._words.synced) if believed else self.first_end
        write, left = 0, 0  # where the write begins that is being read, and how many of its records are to come
        before = FIRST_OFFSET, 0, 0
        for item in frames_and_gaps(self, FIRST_OFFSET, found.size):
            record = self._record(item) if isinstance(item, Frame) else None
            if not isinstance(item, Frame) or record is None:
                start, stop, reason = _bad(item)
                if believed and start >= certified:
                    break  # a torn tail, like any other
                found.damage.append(Damage(start, stop, reason, self._names(start, stop)))
                left = 0
                continue
            begins = self._begins(item)
            if begins is not None:
                write, left = item.offset, begins[0]
                before = found.end, found.records, found.jobs
            left -= 1
            found.end, found.records = item.end, found.records + 1
            found.jobs += isinstance(record, Enqueue)
            if not believed and found.records <= self.snapshot.copies:
                certified = item.end  # the pointer named this log only when all of its copies were synced
        if left > 0 and write >= certified:
            found.end, found.records, found.jobs = before  # nobody had been told that this write is durable
        if certified > found.size:
            found.damage.append(Damage(found.size, certified, "the file ends before what was known to be durable"))
        elif 0 < found.records <= self.snapshot.copies:
            there = f"of {self.snapshot.copies} copied records {found.records - 1} are there"
            found.damage.append(Damage(found.size, found.size, there))
        return found

    def _names(self, start: int, stop: int) -> list[str]:
        """Ids that can be read in damaged bytes."""
        names: dict[str, None] = {}
        for at in range(start, stop, _PEEK_BYTES):
            for match in _ID.finditer(self.peek(at, min(_PEEK_BYTES, stop - at))):
                names[_text(match[1])] = None
                if len(names) == MOST_NAMES:
                    return list(names)
        return list(names)


def _bad(item: Frame | Gap) -> tuple[int, int, str]:
    """Where something that is no record begins and ends, and what is wrong with it."""
    if isinstance(item, Gap):
        return item
    return item.offset, item.end, f"the record of type {item.type} is malformed"


def _text(quoted: bytes) -> str:
    """What stands in a JSON string, or its bytes as they are."""
    try:
        return str(json.loads(b'"%b"' % quoted))
    except ValueError:
        return quoted.decode("utf-8", "backslashreplace")


class OldRemains(Remains, OldLog):
    """A log of version 1: no SNAPSHOT, no writes of several records, nothing that says what was durable."""

    def _begins(self, frame: Frame) -> tuple[int, int]:
        return 1, frame.offset

    def fold(self, state: State, record: Record, offset: int) -> None:
        """Fold the record at ``offset`` into the state, as version 1 did."""
        job_id: str | None = getattr(record, "id", None)
        if job_id is not None:
            if offset >= self.losses.watched_from:
                self.losses.touched.append(job_id)
            if not isinstance(record, Enqueue) and state.find(job_id) is None:
                self.losses.lost[job_id] = Lost(job_id, offset, record.TYPE.name)
        OldLog.fold(self, state, record, offset)


def open_remains(files: Files, path: Path, generation: int, words: Words) -> Remains:
    """A damaged log, open for reading what is left; see ``Remains``."""
    remains = Remains(files, path, generation, words)
    if remains.survey.records:
        return remains
    remains.release()
    return OldRemains(files, path, generation, words)
