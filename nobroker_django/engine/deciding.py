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
from typing import TypeVar

from .clock import Deadline, sleep
from .control import FOLD_BYTE
from .durability import WITNESS_BYTES, Promise
from .errors import LockTimeoutError, OutcomeUnknownError, StorageError
from .framing import Frame, FrameDamage, encode_frame
from .records import Lease, Record, check_batch_size, encode_body, with_batch_fields
from .schema import Stale
from .session import Held, Session
from .unit import Unit

logger = logging.getLogger("nobroker_django")

PIECE_SECONDS = 0.02
LONGEST_PIECE_SECONDS = 1.0
PAUSE_SECONDS = 0.002
PROMOTE_ROWS = 2000
BACKLOG_BYTES = 1024 * 1024
_MOST_REBUILDS = 3

T = TypeVar("T")


@dataclass(slots=True)
class Decision:
    """The lock is held and ``unit`` shows the state of the log's very end, at the moment ``now`` (Unix seconds)."""

    held: Held
    unit: Unit
    now: float
    written: bool = False
    behind: bool = False
    _witness: tuple[int, bytes] = field(default=(0, b""))

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
            body = encode_body(record)
            if index == 0:
                body = with_batch_fields(body, len(records), held.unsynced)
            frame = encode_frame(record.TYPE, body)
            starts.append(at)
            frames.append(frame)
            at += len(frame)
        check_batch_size(at - held.end)
        held.append(b"".join(frames), starts[-1] - held.end)
        self.written = True
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
            self._witness = self.unit.head_offset, self.held.log.peek(self.unit.head_offset, WITNESS_BYTES)
        return Promise.of(self.held, *self._witness, job_ids)


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
        LockTimeoutError, CorruptLogError, StorageError, and what ``act`` raises.
    """
    piece, rebuilds, reached, last_backlog = PIECE_SECONDS, 0, -1, 1 << 62
    patience = Deadline(session.lock_timeout)
    with ExitStack() as folder:
        may_fold = False
        while True:
            with session.locked() as held:
                decision: Decision | None = None
                outcomes: list[T] = []
                try:
                    with held.projection().unit() as unit:
                        backlog = held.end - unit.applied
                        if backlog < 0:
                            raise Stale("it is ahead of the log")
                        if backlog > BACKLOG_BYTES and not may_fold:
                            may_fold = _try_to_be_the_folder(session, held, folder)
                        if may_fold and backlog >= last_backlog:
                            piece = min(2 * piece, LONGEST_PIECE_SECONDS)
                        if backlog <= BACKLOG_BYTES or may_fold:
                            now = session.clock()
                            if unit.fold(held.end, piece) and (not promote or unit.promote(now, PROMOTE_ROWS)):
                                decision = Decision(held, unit, now)
                                outcomes.append(act(decision))
                                if decision.behind:
                                    raise _Behind
                                return outcomes[0]
                        if unit.applied > reached:
                            patience = Deadline(session.lock_timeout)
                        reached, last_backlog = max(reached, unit.applied), backlog
                except FrameDamage as damage:
                    raise held.log.corrupt(damage) from None
                except _Behind:
                    return outcomes[0]
                except (Stale, sqlite3.Error, OSError) as error:
                    if isinstance(error, Stale):
                        held.discard_projection()
                    else:
                        session.cache.drop()
                    if decision is not None and decision.written:
                        logger.warning("the projection of %s stays behind the log: %s", held.log.path, error)
                        if not outcomes:
                            raise OutcomeUnknownError("finish a call on", held.log.path, error) from error
                        return outcomes[0]
                    rebuilds += 1
                    if not isinstance(error, Stale) or rebuilds > _MOST_REBUILDS:
                        raise StorageError("read or write the files of", session.layout.directory, error) from error
            if patience.passed():
                raise LockTimeoutError(
                    f"the log of {session.layout.name!r} was not folded by the process that is at it within "
                    f"{patience.seconds:g} s. Nothing of this call was stored; try again.",
                    path=str(session.layout.directory),
                    seconds=patience.seconds,
                )
            sleep(PAUSE_SECONDS)


class _Behind(Exception):
    """The verb has succeeded, but its transaction on the projection has to be rolled back."""


def _try_to_be_the_folder(session: Session, held: Held, folder: ExitStack) -> bool:
    """Try to be the one process that folds a long backlog, until ``folder`` is closed."""
    attempt = ExitStack()
    had = attempt.enter_context(session.long_work.try_lock(held.lock_file, FOLD_BYTE))
    if had:
        folder.push(attempt)
    else:
        attempt.close()
    return had
