"""What a process of many jobs says to the queue in one breath: outcomes, what it begins, and what it wants next.

Each job then costs a worker one write that waits for no sync. What is durable when is the worker's own affair:
``Exchange.confirm`` waits for all that was said until then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from . import options
from .bell import Listening
from .clock import Deadline
from .deciding import Decision
from .durability import Promise
from .endings import Ended
from .errors import JobNotFoundError, NobrokerError, NotLeasedError, StorageError
from .failures import describe, in_one_line
from .job import Job, JobState, TakenBack
from .once import Once
from .queue import Queue
from .records import Extend, Record, Started
from .snapshots import STATE_OF
from .transitions import DUE, Row

logger = logging.getLogger("nobroker_django")

_EXTEND_BELOW = 2 / 3  # of a lease's length: then it is extended
_LEASES = 1000


@dataclass(slots=True)
class Settled:
    """What became of a delivery that ended: the job's state and when it is tried again, or why it does not count.

    ``task``, ``attempts`` and ``max_attempts``: as the queue knows the job.
    """

    job: Job | str
    state: JobState | None = None
    available_at: float = 0.0
    task: str | None = None
    attempts: int = 0
    max_attempts: int = 0
    lost: NotLeasedError | JobNotFoundError | None = None

    def as_taken_back(self, error: BaseException) -> TakenBack:
        """For a delivery that somebody else has ended, with this error."""
        text = describe(error)
        return TakenBack(
            job_id=self.job.id if isinstance(self.job, Job) else self.job,
            task=self.task,
            attempts=self.attempts,
            max_attempts=self.max_attempts,
            error=in_one_line(text.error_class, text.message) or "unknown",
            state=self.state or JobState.READY,
            available_at=self.available_at,
        )


@dataclass(slots=True)
class Exchange:
    """The queue's answer.

    ``settled`` in the order of what had ended; ``lost`` of what was to begin: their lease is gone, they must not be
    run; ``leased`` the new deliveries; ``more`` whether others could be had; ``next_change`` the moment (Unix seconds)
    at which time alone makes a job leasable; ``end`` where the log ended then.
    """

    settled: list[Settled] = field(default_factory=list)
    lost: list[Job] = field(default_factory=list)
    leased: list[Job] = field(default_factory=list)
    more: bool = False
    next_change: float | None = None
    end: int = 0
    promise: Promise | None = None

    def confirm(self) -> None:
        """Wait until all that was said is durable.

        Raises:
            OutcomeUnknownError, LockTimeoutError: it is said, and not known to be durable.
        """
        promise, self.promise = self.promise, None
        if promise is not None:
            promise.keep()

    def drop(self) -> None:
        """Do not wait."""
        promise, self.promise = self.promise, None
        if promise is not None:
            promise.drop()


class WorkerQueue(Queue, Once):
    """A queue as the processes of a worker use it: all of ``Queue``, and verbs for many jobs at a time."""

    _unsynced: tuple[int | None, Deadline] = (None, Deadline(0.0))  # what `sync_older` has seen, and when it is old

    def exchange(
        self,
        ended: Sequence[Ended] = (),
        started: Sequence[Job] = (),
        *,
        count: int = 0,
        begin: int = 0,
        holder: str | None = None,
    ) -> Exchange:
        """Record outcomes and beginnings, and lease. Not durable before ``confirm`` on the answer.

        Args:
            ended: deliveries that have ended.
            started: leased jobs that are run from now on.
            count: lease at most so many jobs.
            begin: of which the first so many are run at once.
            holder: the worker that has them (``Liveness.holder``).

        Raises:
            LockTimeoutError, CorruptLogError, StorageError: nothing was recorded.
            OutcomeUnknownError: it is not known what was recorded.
        """

        def act(decision: Decision) -> tuple[Exchange, bool]:
            answer = Exchange()
            self._settle(decision, ended, started, answer)
            if count:
                self._lease_more(decision, count, begin, holder, answer)
            # Where the projection could not follow, nobody knows what there is: it is asked again.
            answer.end = 0 if decision.behind else decision.held.log.position(decision.held.end)
            rings, decision.rings = decision.rings or answer.more, False
            if self.fsync and decision.written:
                answer.promise = decision.promise()
            return answer, rings

        answer, rings = self._decide(act, promote=count > 0)
        if rings:
            self._session.ring()
        return answer

    def _lease_more(self, decision: Decision, count: int, begin: int, holder: str | None, answer: Exchange) -> None:
        """Lease, for the answer; where the disk refuses that, what was settled stays, and the answer has no leases."""
        settled = decision.written
        try:
            if not decision.behind:
                self._reclaim(decision)
            if not decision.behind:
                answer.leased = self._take(decision, count, holder=holder, begin=begin)
                answer.more = decision.unit.counts[DUE] > 0
                if len(answer.leased) < count:
                    answer.next_change = decision.unit.next_change()
        except StorageError as error:
            if not settled or error.stored is not False:
                raise
            logger.warning("%s: no jobs were leased: %s", self.name, error)
            answer.more = True

    def _settle(self, decision: Decision, ended: Sequence[Ended], started: Sequence[Job], answer: Exchange) -> None:
        """Write what can be written of what ended and what begins; the answer tells of the rest."""
        found, records = self._ends_of(ended, decision)
        begun: list[Job] = []
        for job in started:
            try:
                row = self._leased(decision, job)
            except (NotLeasedError, JobNotFoundError):
                answer.lost.append(job)
                continue
            records.append(Started(id=row.id, at=decision.now, token=row.lease_token or ""))
            begun.append(job)
        if records:
            decision.write(records)
        for job in begun:
            job.started_at = decision.now
        for end, one in zip(ended, found, strict=True):
            if isinstance(one, Row):
                answer.settled.append(
                    Settled(
                        end.job, STATE_OF[one.state], one.available_at,
                        task=one.task, attempts=one.attempts, max_attempts=one.max_attempts,
                    )
                )  # fmt: skip
            else:
                answer.settled.append(Settled(end.job, lost=one))

    def keep_alive(self, holders: Iterable[str]) -> float | None:
        """Extend the leases of these workers of which less than two thirds are left, in one write without a sync.

        Returns:
            The moment (Unix seconds) at which the next one is to be extended; ``None`` when they hold none.

        Raises:
            LockTimeoutError, CorruptLogError, StorageError: none was extended.
        """
        wanted = list(holders)

        def act(decision: Decision) -> float | None:
            records: list[Record] = []
            next_due: float | None = None
            for holder in wanted:
                for row in decision.unit.held_by(holder, _LEASES):
                    length = row.visibility_timeout or self.visibility_timeout
                    due = (row.lease_deadline or 0.0) - _EXTEND_BELOW * length
                    if due <= decision.now:
                        deadline = options.latest(decision.now, length)
                        records.append(Extend(id=row.id, at=decision.now, deadline=deadline, token=row.lease_token))
                        due = deadline - _EXTEND_BELOW * length
                    next_due = due if next_due is None else min(next_due, due)
            if records:
                decision.write(records)
            return next_due

        return self._decide(act)

    def reclaim_dead(self, known: Mapping[str, str | None] | None = None, *, punish: bool = True) -> int:
        """Take back what workers held that have ended; cheap when nothing has changed since the last time.

        A job that such a worker had begun has failed with the class ``WorkerDied``: the first time that this happens
        to it, it is ready again at once, later after the backoff, and without attempts left it is a dead letter. What
        was only fetched gets its attempt back.

        Args:
            known: holders that have ended for certain, with the reason; of others the kernel is asked.
            punish: False: what was begun gets its attempt back as well.

        Returns:
            How many leases were taken back.

        Raises:
            LockTimeoutError, CorruptLogError, StorageError: see ``stored``.
        """
        if not known and self._session.look() == self._seen and not any(map(self._census.is_dead, self._holders)):
            return 0

        def act(decision: Decision) -> tuple[int, Promise | None]:
            try:
                taken = self._reclaim_dead(decision, known or {}, punish=punish)
            except NobrokerError as error:
                error.comes_after(decision.written)
                raise
            return taken, decision.promise() if taken else None

        taken, promise = self._decide(act)
        if promise is not None:
            self._keep(promise)
        return taken

    def sync_older(self, seconds: float) -> bool:
        """Sync what was written so long ago, without a sync of its own, and was not synced by others since.

        Returns:
            Whether there is something that is younger, and not known to be durable.

        Raises:
            LockTimeoutError, OutcomeUnknownError: it is not known to be durable.
        """
        end = self._session.unsynced_end()
        if end is None or end != self._unsynced[0]:
            self._unsynced = end, Deadline(seconds)
        elif self._unsynced[1].passed():
            self._unsynced = None, self._unsynced[1]
            self._keep(self._decide(lambda decision: decision.promise()))
            return False
        return end is not None

    @property
    def has_holders(self) -> bool:
        """Whether workers held leases when that was last looked at."""
        return bool(self._holders)

    def listen(self, *, lightly: bool = False) -> Listening:
        """Wait for the bell from now on: see ``bell``, and for ``lightly`` the session's ``listen``."""
        return self._session.listen(lightly=lightly)

    def look(self) -> int | None:
        """Where the log ends now: to notice, without a lock, that something was written."""
        return self._session.look()
