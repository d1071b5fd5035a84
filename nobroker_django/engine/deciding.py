"""Verbs that decide by the replayed state: fold the log's tail, look, append, fold what was appended.

``decide`` runs one such verb under the log's lock, on a projection that is up to date. A long backlog is folded by one
process at a time and in short pieces, between which the lock is free, so that producers never wait long.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from .clock import Deadline, sleep
from .control import FOLD_BYTE
from .durability import WITNESS_BYTES, Promise
from .errors import CorruptLogError, LockTimeoutError, OutcomeUnknownError, StorageError
from .framing import Frame, FrameDamage, encode_frame
from .held import Held
from .job import TakenBack
from .log import Log
from .records import (
    Enqueue,
    Lease,
    Nack,
    Reclaim,
    Record,
    Release,
    Requeue,
    check_batch_size,
    encode_body,
    with_batch_fields,
)
from .schema import Stale
from .session import Session
from .unit import Unit

logger = logging.getLogger("nobroker_django")

PIECE_SECONDS = 0.01
QUIET_PIECE_SECONDS = 0.02  # when nobody has appended between so many pieces
QUIET_PIECES = 4
LONGEST_PIECE_SECONDS = 1.0
PAUSE_SECONDS = 0.002
PROMOTE_ROWS = 2000
BACKLOG_BYTES = 1024 * 1024
_MOST_REBUILDS = 3
# What may make a job leasable, or change when the next one will be.
_WORK = frozenset({Enqueue, Nack, Reclaim, Release, Requeue})

T = TypeVar("T")


@dataclass(slots=True)
class Decision:
    """The lock is held and ``unit`` shows the state of the log's very end, at the moment ``now`` (Unix seconds).

    ``written``: how many records. ``rings``: what was written may be work for somebody who waits. ``taken_back``: what
    is to be told of it when the lock is free again.
    """

    held: Held
    unit: Unit
    now: float
    written: int = 0
    rings: bool = False
    behind: bool = False
    taken_back: list[TakenBack] = field(default_factory=list)
    _witness: tuple[int, bytes] = field(default=(0, b""))

    behind_bytes: ClassVar[int] = 0

    @property
    def log(self) -> Log:
        """The live log, which the offsets of rows mean."""
        return self.held.log

    def write(self, records: Sequence[Record]) -> list[int]:
        """Append the records as one batch and fold them; returns their offsets. Leases get their fencing tokens here.

        Raises:
            StorageError, SerializationError: nothing was written.
        """
        held, unit = self.held, self.unit
        at, frames, starts, body = held.end, [], [], b""
        for index, record in enumerate(records):
            if type(record) is Lease:
                record.token = fencing_token(unit.open_seq, unit.base + at)
            elif type(record) in _WORK:
                self.rings = True
            body = encode_body(record)
            if index == 0:
                body = with_batch_fields(body, len(records), held.unsynced)
            frame = encode_frame(record.TYPE, body)
            starts.append(at)
            frames.append(frame)
            at += len(frame)
        check_batch_size(at - held.end)
        held.append(b"".join(frames), starts[-1] - held.end)
        self.written += len(records)
        self._witness = starts[-1], frames[-1][:WITNESS_BYTES]
        try:
            for record, start in zip(records, starts, strict=True):
                unit.apply(record, start)
            unit.advance(Frame(starts[-1], int(records[-1].TYPE), body, at))
        except sqlite3.Error as error:
            logger.warning("the projection of %s stays behind the log: %s", held.log.path, error)
            self.behind = True
        return starts

    def promise(self, job_ids: tuple[str, ...] = ()) -> Promise:
        """What has to be durable before the verb may answer by what it saw or wrote."""
        if not self.written:
            start = self.unit.head_offset
            self._witness = start, self.held.log.peek(start, WITNESS_BYTES)
        return Promise.of(self.held, *self._witness, job_ids, self.rings)


def fencing_token(open_seq: int, seq: int) -> str:
    """The token of the lease with this ``seq``: 16 hex digits of the last ``OPEN``'s seq, 12 of the distance to it.

    A power cut that takes unsynced leases away is always followed by a new ``OPEN``, which is synced before anything
    else is written: tokens only rise, as text too.
    """
    return f"{open_seq:016x}{seq - open_seq:012x}"


def decide(session: Session, act: Callable[[Decision], T], *, promote: bool = False) -> T:
    """Run ``act`` under the log's lock, with everything folded in.

    Args:
        act: called once; looks at ``unit``, may ``write``.
        promote: first make due all jobs whose time has come.

    Raises:
        LockTimeoutError, CorruptLogError, StorageError, OutcomeUnknownError, and what ``act`` raises.
    """
    with ExitStack() as folder:
        verb = _Verb(session, act, promote, folder)
        while True:
            with session.locked() as held:
                if verb.attempt(held):
                    return verb.outcome[0]
            verb.check_patience()
            sleep(PAUSE_SECONDS)


class _Behind(Exception):
    """The verb has succeeded, but its transaction on the projection has to be rolled back."""


class _Verb(Generic[T]):
    """One verb on its way: attempts, each under the log's lock, until the backlog is folded and ``act`` has run."""

    def __init__(self, session: Session, act: Callable[[Decision], T], promote: bool, folder: ExitStack) -> None:
        self.outcome: list[T] = []
        self._session = session
        self._act = act
        self._promote = promote
        self._folder = folder
        self._may_fold = False
        self._piece = PIECE_SECONDS
        self._last_end = self._quiet = 0
        self._last_backlog = 1 << 62
        self._reached = -1
        self._rebuilds = 0
        self._doubted = False
        self._patience = Deadline(session.lock_timeout)

    def attempt(self, held: Held) -> bool:
        """Fold a piece, and if that was all there was, act; whether the verb is over."""
        decision: Decision | None = None
        try:
            with held.projection().unit() as unit:
                now = self._session.clock()
                if not self._fold(unit, held) or not (not self._promote or unit.promote(now, PROMOTE_ROWS)):
                    return False
                decision = Decision(held, unit, now)
                self.outcome.append(self._act(decision))
                if decision.behind:
                    raise _Behind
                return True
        except FrameDamage as damage:
            error = held.log.corrupt(damage)
            held.mark_damaged(error)
            raise error from None
        except CorruptLogError as error:
            if self._is_the_projection_wrong(held, decision, error):
                return False
            held.mark_damaged(error)
            raise
        except _Behind:
            return True
        except (Stale, sqlite3.Error, OSError) as error:
            return self._give_up_projection(held, decision, error)

    def _fold(self, unit: Unit, held: Held) -> bool:
        """Fold what has been appended since; whether all of it was, by whoever is to do it."""
        backlog = held.end - unit.applied
        if backlog < 0:
            raise Stale("it is ahead of the log")
        if backlog > BACKLOG_BYTES and not self._may_fold:
            self._may_fold = self._try_to_be_the_folder(held)
        if self._may_fold and backlog >= self._last_backlog:
            self._piece = min(2 * self._piece, LONGEST_PIECE_SECONDS)
        self._quiet = self._quiet + 1 if held.end == self._last_end else 0
        self._last_end = held.end
        seconds = max(self._piece, QUIET_PIECE_SECONDS) if self._quiet >= QUIET_PIECES else self._piece
        done = (backlog <= BACKLOG_BYTES or self._may_fold) and unit.fold(held.end, seconds)
        if unit.applied > self._reached:
            self._patience = Deadline(self._session.lock_timeout)
        self._reached, self._last_backlog = max(self._reached, unit.applied), backlog
        return done

    def _is_the_projection_wrong(self, held: Held, decision: Decision | None, error: CorruptLogError) -> bool:
        """A row points to what is not its record: is the log damaged, or the row wrong?

        The replay for a new projection will tell, once: it reads all of the log.
        """
        if self._doubted or error.path != held.log.name or (decision is not None and decision.written):
            return False
        self._doubted = True
        self.outcome.clear()
        held.discard_projection()
        return True

    def _give_up_projection(self, held: Held, decision: Decision | None, error: Exception) -> bool:
        """The projection failed: damaged, or the disk refuses. What is in the log counts; True if the verb wrote it.

        Raises:
            StorageError: nothing was written, and building a new projection would not help.
            OutcomeUnknownError: the verb wrote, but cannot tell what.
        """
        if isinstance(error, Stale):
            held.discard_projection()
        else:
            self._session.cache.drop()
        if decision is not None and decision.written:
            logger.warning("the projection of %s stays behind the log: %s", held.log.path, error)
            if not self.outcome:
                raise OutcomeUnknownError("finish a call on", held.log.path, error) from error
            return True
        self.outcome.clear()
        self._rebuilds += 1
        if not isinstance(error, Stale) or self._rebuilds > _MOST_REBUILDS:
            raise StorageError("read or write the files of", self._session.layout.directory, error) from error
        return False

    def _try_to_be_the_folder(self, held: Held) -> bool:
        """Try to be the one process that folds a long backlog, until the verb is over."""
        attempt = ExitStack()
        had = attempt.enter_context(self._session.long_work.try_lock(held.lock_file, FOLD_BYTE))
        if had:
            self._folder.push(attempt)
        else:
            attempt.close()
        return had

    def check_patience(self) -> None:
        """Waiting for others to fold ends when nothing moves for ``lock_timeout``.

        Raises:
            LockTimeoutError: that long.
        """
        if self._patience.passed():
            raise LockTimeoutError(
                f"the log of {self._session.layout.name!r} was not folded by the process that is at it within "
                f"{self._patience.seconds:g} s. Nothing of this call was stored; try again.",
                path=str(self._session.layout.directory),
                seconds=self._patience.seconds,
            )
