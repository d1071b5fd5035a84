"""What a damaged log still says: replayed into a state of its own, and copied from there for a new log.

Nothing in here changes a file of the queue; ``salvage`` decides where the copies go.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .control import MAX_OFFSET, Words
from .errors import CorruptLogError
from .files import Files
from .generations import Layout
from .lenient import Changed, Lost
from .old_log import OldLog
from .projection import Projection
from .records import Ack, Enqueue, Note, Record, Snapshot
from .remains import Damage, open_remains
from .snapshots import enqueue_record
from .transitions import DEAD, DONE, DUE, LEASED, WAITING, Row
from .unit import Unit

KEPT_SECONDS = 86_400.0  # how long the id of a job stays known whose end is recorded, but not until when
_PAGE_ROWS = 1000
_FOLD_SECONDS = 1.0
_STATES = (WAITING, DUE, LEASED, DONE, DEAD)
_NAMES = {WAITING: "ready", DUE: "due", LEASED: "leased", DONE: "leased", DEAD: "dead"}


@dataclass(slots=True)
class SalvageReport:
    """What a salvage found and kept, or would keep.

    Attributes:
        generation: the damaged one; ``new_generation`` is ``None`` as long as nothing was changed.
        damage: the damaged bytes. ``torn_bytes`` more at the end were never known to be durable.
        records: how many intact ones there are.
        jobs: how many jobs the new log holds, by state.
        lost: jobs of which later records speak, but whose own record is gone.
        changed: jobs in whose history something is missing.
        undecided: how many unfinished jobs have no record behind the last damage: what the damaged bytes said of
            them, if anything, is not known. They are kept as they were before. ``report_path`` names each.
        kept_path: where the damaged log is kept.
    """

    queue: str
    log_path: Path
    generation: int
    damage: list[Damage] = field(default_factory=list)
    torn_bytes: int = 0
    records: int = 0
    jobs: dict[str, int] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    undecided: int = 0
    new_generation: int | None = None
    kept_path: Path | None = None
    report_path: Path | None = None


class Rescue:
    """A damaged log, and the state that its intact records make. Use it in ``with``."""

    def __init__(self, files: Files, layout: Layout, generation: int, words: Words, now: float) -> None:
        """Open what is left of log ``generation``.

        Args:
            words: the control words.
            now: the moment that is written into the new log (Unix seconds).

        Raises:
            CorruptLogError: nothing of it is intact, or a newer release wrote it. OSError: it cannot be read.
        """
        self._now = now
        self.log = open_remains(files, layout.log(generation), generation, words)
        survey, log = self.log.survey, self.log
        try:
            if not survey.records:
                raise CorruptLogError(log.path, survey.size, "not one record of it is intact")
            self._state = Projection.private(log)
        except BaseException:
            log.release()
            raise
        self.report = SalvageReport(layout.name, log.path, generation)

    def __enter__(self) -> Rescue:
        try:
            self._replay()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._state.close()
        self.log.release()

    def _replay(self) -> None:
        log, report, connection = self.log, self.report, self._state.connection
        connection.execute("CREATE TEMP TABLE touched (id TEXT PRIMARY KEY) WITHOUT ROWID")
        done = False
        while not done:
            with self._state.unit() as unit:
                done = unit.fold(log.survey.end, _FOLD_SECONDS)
                touched, log.losses.touched = log.losses.touched, []
                connection.executemany("INSERT OR IGNORE INTO touched VALUES (?)", ((one,) for one in touched))
        with self._state.unit() as unit:
            self._finish_copies(unit)
        survey, losses = log.survey, log.losses
        report.damage, report.records = survey.damage, survey.records
        report.torn_bytes = max(0, survey.size - max([survey.end, *(one.stop for one in survey.damage)]))
        report.lost, report.changed = list(losses.lost.values()), losses.changed
        report.undecided = sum(1 for _ in self._undecided())
        with self._state.reading() as unit:
            waiting, due, leased, finished, dead = unit.counts
        report.jobs = {"ready": waiting + due, "leased": leased, "done": finished, "dead": dead}

    def _finish_copies(self, unit: Unit) -> None:
        """A finished job is copied as leased, without a deadline, and its ACK behind it: that one may be gone."""
        for row in _rows(unit, (LEASED,)):
            if row.lease_deadline is None:
                self.log.losses.note(row, row.payload_offset, "it was finished; when, and with which result, is lost")
                row.result_offset = 0
                unit.change(row, DONE)

    def _undecided(self) -> Iterator[tuple[str, int]]:
        """Id and state of each unfinished job without a record behind the last damage."""
        if not self.log.survey.damage:
            return
        yield from self._state.connection.execute(
            f"SELECT id, state FROM jobs WHERE state != {DONE} AND id NOT IN (SELECT id FROM touched) ORDER BY seq"
        )

    def report_lines(self) -> Iterator[str]:
        """The whole report, one JSON object a line."""
        report = self.report
        yield _line(
            "salvage", queue=report.queue, at=self._now, damaged=str(report.log_path), generation=report.generation,
            new_generation=report.new_generation, kept=str(report.kept_path), records=report.records,
            torn_bytes=report.torn_bytes, jobs=report.jobs, lost=len(report.lost), changed=len(report.changed),
            undecided=report.undecided,
        )  # fmt: skip
        for damage in report.damage:
            yield _line("damage", **asdict(damage))
        for lost in report.lost:
            yield _line("lost", job=lost.job_id, offset=lost.offset, record=lost.kind)
        for changed in report.changed:
            yield _line("changed", job=changed.job_id, offset=changed.offset, what=changed.what)
        for job_id, state in self._undecided():
            yield _line("undecided", job=job_id, state=_NAMES[state])

    # -- for the new log

    def snapshot(self) -> Snapshot:
        """Its first record: a new id, and a base above all that the damaged log can have given out."""
        base = self.log.base + MAX_OFFSET + 1
        ranks = self._state.connection.execute("SELECT max(rank) FROM jobs WHERE NOT waits").fetchone()
        with self._state.reading() as unit:
            return Snapshot(
                log_id=f"{int.from_bytes(os.urandom(8), 'big') | 1:016x}",
                at=self._now,
                base=base,
                open=base,
                clock=max(unit.clock, ranks[0] or 0.0),
                enqueued_total=max(unit.enqueued_total, sum(unit.counts)) + len(self.report.lost),
                ignored=unit.ignored,
            )

    @contextmanager
    def copies(self) -> Iterator[Iterator[Iterator[Record]]]:
        """The records of each job, until the end of the ``with`` block."""
        with self._state.reading() as unit:
            yield (self._copies(unit, row) for row in _rows(unit))

    def _copies(self, unit: Unit, row: Row) -> Iterator[Record]:
        """The records that tell the new log all that is known of one job."""
        log = self.log
        record = enqueue_record(log, row)
        yield Enqueue(
            id=row.id,
            payload=record.payload,
            enqueued_at=row.enqueued_at,
            max_attempts=row.max_attempts,
            priority=row.priority,
            available_at=row.available_at,
            visibility_timeout=row.visibility_timeout,
            meta=record.meta,
            seq=row.seq,
            state=_NAMES[row.state],
            attempts=row.attempts,
            rank=row.rank,
            waits=bool(row.waits),
            lease_deadline=row.lease_deadline,
            lease_token=row.lease_token,
            holder=row.holder,
            started_at=row.started_at,
            extensions=row.extensions,
            deaths=row.deaths,
            finished_at=row.finished_at if row.state == DEAD else None,
        )
        for offset in unit.failures_of(row):
            failure = log.failure_at(offset)
            yield Note(
                id=row.id,
                at=failure.at,
                attempts=failure.attempts,
                error=failure.error,
                error_class=failure.error_class,
                traceback=failure.traceback,
                worker=failure.worker,
            )
        if row.state == DONE:
            yield self._end_of(row)

    def _end_of(self, row: Row) -> Ack:
        """How a finished job ended, as far as that is recorded."""
        ack = self.log.record_at(row.result_offset) if row.result_offset else None
        if not isinstance(ack, Ack):
            return Ack(id=row.id, at=self.log.snapshot.at, keep_until=self._now + KEPT_SECONDS)
        keep_until = self._now + KEPT_SECONDS if isinstance(self.log, OldLog) else ack.keep_until
        return Ack(id=row.id, at=ack.at, keep_until=keep_until, result=ack.result, worker=ack.worker)


def _rows(unit: Unit, states: Sequence[int] = _STATES) -> Iterator[Row]:
    after = -1
    while rows := unit.listed(states, after, _PAGE_ROWS):
        after = rows[-1].seq
        yield from rows


def _line(kind: str, **facts: Any) -> str:
    return json.dumps({"kind": kind, **facts}) + "\n"
