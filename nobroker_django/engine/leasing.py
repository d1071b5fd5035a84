"""Leases: taking jobs, ending a lease in one of the ways it can end, taking back what has run out.

``attempts`` is counted when the lease is taken. The fencing token in the ``Job`` proves that a lease is the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Raw

from . import options
from .clock import Deadline
from .core import Core
from .deciding import Decision
from .durability import Promise
from .errors import AlreadyDoneError, JobNotFoundError, NobrokerError, NotLeasedError
from .failures import describe
from .job import Job, JobState
from .payload import MAX_RESULT_BYTES, encode_payload
from .records import NULL, Ack, Dead, Extend, Lease, Nack, Reclaim, Record, Release
from .snapshots import job_of
from .transitions import DEAD, DONE, DUE, LEASED, Row

logger = logging.getLogger("nobroker_django")

_RECLAIM_ROWS = 200
_LONGEST_WAIT_SECONDS = 10.0


class Leasing(Core):
    """The verbs ``lease``, ``ack``, ``nack``, ``bury``, ``release``, ``extend`` and their kin."""

    def lease(self, count: int = 1, *, visibility_timeout: float | None = None, timeout: float = 0.0) -> list[Job]:
        """Take up to ``count`` jobs, by priority, time and insertion; nobody else gets them until the deadline.

        Args:
            count: at most this many, 1 or more.
            visibility_timeout: seconds that the leases last, instead of the job's or the queue's.
            timeout: seconds to wait for the first job when none is eligible.

        Raises:
            InvalidOptionError, LockTimeoutError, CorruptLogError, StorageError: no lease was taken.
        """
        options.integer("count", count, least=1)
        if visibility_timeout is not None:
            options.lease_length("visibility_timeout", visibility_timeout)
        deadline = Deadline(options.seconds("timeout", timeout))
        while True:
            seen = self._session.look()
            jobs, next_change = self._lease_now(count, visibility_timeout)
            if jobs or deadline.passed():
                return jobs
            self._wait_for_change(seen, next_change, deadline)

    def lease_one(self, *, visibility_timeout: float | None = None, timeout: float = 0.0) -> Job | None:
        """As ``lease``, for one job; ``None`` when there is none."""
        jobs = self.lease(1, visibility_timeout=visibility_timeout, timeout=timeout)
        return jobs[0] if jobs else None

    @contextmanager
    def processing(self, *, timeout: float = 0.0, visibility_timeout: float | None = None) -> Iterator[Job | None]:
        """Lease one job for a block: acked when the block ends, nacked with the exception when it raises.

        The exception goes on to the caller. ``None`` stands for "there was no job". A lease that was lost meanwhile is
        a ``NotLeasedError`` at the end of a block that succeeded; after one that raised, its own exception counts.

        Args:
            timeout: seconds to wait for a job.
            visibility_timeout: seconds that the lease lasts; it is not extended here.

        Raises:
            As ``lease``, ``ack`` and ``nack``.
        """
        job = self.lease_one(visibility_timeout=visibility_timeout, timeout=timeout)
        try:
            yield job
        except BaseException as error:
            if job is not None:
                try:
                    self.nack(job, error=error)
                except NotLeasedError as lost:
                    logger.warning("job %s failed too late: %s", job.id, lost)
            raise
        if job is not None:
            self.ack(job)

    def _lease_now(self, count: int, visibility_timeout: float | None) -> tuple[list[Job], float | None]:
        def act(decision: Decision) -> tuple[list[Job], float | None, bool]:
            unit, log, now = decision.unit, decision.held.log, decision.now
            self._reclaim(decision)
            if decision.behind:
                return [], now, decision.rings
            rows = unit.due(count)
            if not rows:
                return [], unit.next_change(), decision.rings
            jobs = [job_of(row, log, unit.failures_of(row)) for row in rows]
            records = [
                Lease(
                    id=row.id,
                    at=now,
                    deadline=options.latest(
                        now, visibility_timeout or row.visibility_timeout or self.visibility_timeout
                    ),
                    attempts=row.attempts + 1,
                    token="",
                )
                for row in rows
            ]
            decision.write(records)
            for job, record in zip(jobs, records, strict=True):
                job.state = JobState.LEASED
                job.attempts = record.attempts
                job.lease_deadline = record.deadline
                job.lease_token = record.token
            return jobs, None, decision.rings or unit.counts[DUE] > 0

        jobs, next_change, more = self._decide(act, promote=True)
        if more:
            self._session.ring()  # the next one who waits: a byte wakes one alone
        return jobs, next_change

    def _reclaim(self, decision: Decision) -> None:
        """Take back the leases that have run out: as a failed attempt each, "lease expired"."""
        while rows := decision.unit.expired(decision.now, _RECLAIM_ROWS):
            reason = "lease expired: the job was neither finished nor extended before its deadline"
            records: list[Record] = []
            for row in rows:
                if row.attempts >= row.max_attempts:
                    records.append(Dead(id=row.id, at=decision.now, attempts=row.attempts, error=reason))
                else:
                    when = self._retry_at(row, decision)
                    records.append(
                        Reclaim(id=row.id, at=decision.now, attempts=row.attempts, error=reason, available_at=when)
                    )
            decision.write(records)
            if decision.behind:
                return
            decision.unit.promote(decision.now, _RECLAIM_ROWS)

    def _retry_at(self, row: Row, decision: Decision) -> float | None:
        """When a job that has just failed is eligible again, by the backoff; ``None``: at once."""
        pause = self.backoff.delay_for(row.attempts)
        return options.latest(decision.now, pause) if pause else None

    def _wait_for_change(self, seen: int | None, next_change: float | None, deadline: Deadline) -> None:
        """Wait until work was appended since ``seen``, a job's time has come, or the deadline has passed."""
        longest = Deadline(_LONGEST_WAIT_SECONDS)
        while not deadline.passed() and not longest.passed():
            seconds = min(deadline.left(), longest.left())
            if next_change is not None:
                seconds = min(seconds, next_change - self._clock())
                if seconds <= 0.0:
                    return
            with self._session.listen() as listening:
                if listening.end != seen or listening.wait(seconds):
                    return

    def ack(self, job: Job | str, *, result: Any = None) -> None:
        """The job is done; durable when this returns. The same ack again returns quietly.

        Args:
            job: the leased job; or an id alone, without a fencing token: the operator's tool.
            result: any JSON value of at most 1 MiB.

        Raises:
            NotLeasedError: the lease is not the caller's any more; ``AlreadyDoneError``: another delivery finished it.
            JobNotFoundError, SerializationError: nothing was changed.
        """
        encoded = NULL if result is None else Raw(encode_payload(result, what="result", limit=MAX_RESULT_BYTES))
        lost = self._ack([job], encoded)
        if lost:
            raise lost[0][1]

    def ack_many(self, jobs: Iterable[Job]) -> list[Job]:
        """Ack several jobs with one write and one sync; returns those whose lease was lost."""
        return [job for job, _ in self._ack(list(jobs), NULL) if isinstance(job, Job)]

    def _ack(self, jobs: Sequence[Job | str], result: Raw) -> list[tuple[Job | str, NobrokerError]]:
        if not jobs:
            return []

        def act(decision: Decision) -> tuple[list[tuple[Job | str, NobrokerError]], Promise]:
            lost: list[tuple[Job | str, NobrokerError]] = []
            records: dict[str, Record] = {}
            for job in jobs:
                try:
                    row = self._leased(decision, job, done_is_fine=True)
                except (NotLeasedError, JobNotFoundError) as error:
                    lost.append((job, error))
                    continue
                if row.state != DONE:
                    records[row.id] = Ack(
                        id=row.id,
                        at=decision.now,
                        keep_until=options.latest(decision.now, self.retention),
                        token=_token(job),
                        result=result,
                    )
            if records:
                decision.write(list(records.values()))
            return lost, decision.promise()

        lost, promise = self._decide(act)
        self._keep(promise)
        return lost

    def nack(self, job: Job | str, *, error: str | BaseException | None = None, delay: float | None = None) -> Job:
        """The attempt failed: the job is retried after a delay, or becomes a dead letter when it is out of attempts.

        Args:
            error: text, or the exception, of which class, message and traceback are kept (cut).
            delay: seconds before the next attempt, instead of the backoff's.

        Returns:
            The job as it is now.

        Raises:
            NotLeasedError, JobNotFoundError, InvalidOptionError: nothing was changed.
        """
        wait = None if delay is None else options.seconds("delay", delay)

        def failed(row: Row, decision: Decision) -> Record:
            text = describe(error)
            fields: dict[str, Any] = {
                "id": row.id, "at": decision.now, "attempts": row.attempts, "token": _token(job),
                "error": text.message, "error_class": text.error_class, "traceback": text.traceback,
            }  # fmt: skip
            if row.attempts >= row.max_attempts:
                return Dead(**fields)
            if wait is not None:
                when = options.moment("delay", decision.now, wait) if wait else None
            else:
                when = self._retry_at(row, decision)
            return Nack(available_at=when, **fields)

        return self._end_lease(job, failed)

    def bury(self, job: Job | str, *, error: str | BaseException | None = None) -> Job:
        """The job will never succeed: it becomes a dead letter at once, whatever attempts are left.

        Raises:
            NotLeasedError, JobNotFoundError: nothing was changed.
        """

        def buried(row: Row, decision: Decision) -> Record:
            text = describe(error)
            return Dead(
                id=row.id, at=decision.now, attempts=row.attempts, token=_token(job),
                error=text.message, error_class=text.error_class, traceback=text.traceback,
            )  # fmt: skip

        return self._end_lease(job, buried)

    def release(self, jobs: Iterable[Job]) -> list[Job]:
        """Give leases back unused: the attempt is not counted, the job returns to its place. Returns the lost ones."""
        given = list(jobs)

        def act(decision: Decision) -> tuple[list[Job], Promise]:
            lost, records = [], dict[str, Record]()
            for job in given:
                try:
                    row = self._leased(decision, job)
                except (NotLeasedError, JobNotFoundError):
                    lost.append(job)
                    continue
                records[row.id] = Release(id=row.id, at=decision.now, token=row.lease_token or "")
            if records:
                decision.write(list(records.values()))
            return lost, decision.promise()

        if not given:
            return []
        lost, promise = self._decide(act)
        self._keep(promise)
        return lost

    def extend(self, job: Job | str, seconds: float) -> Job:
        """The lease lasts ``seconds`` longer than its deadline (or than now, if that has passed). Needs no sync.

        Raises:
            NotLeasedError, JobNotFoundError, InvalidOptionError: nothing was changed.
        """
        more = options.seconds("seconds", seconds)

        def extended(row: Row, decision: Decision) -> Record:
            deadline = options.moment("seconds", max(row.lease_deadline or decision.now, decision.now), more)
            return Extend(id=row.id, at=decision.now, deadline=deadline, token=_token(job))

        return self._end_lease(job, extended, durable=False)

    def _end_lease(self, job: Job | str, make: Callable[[Row, Decision], Record], *, durable: bool = True) -> Job:
        """Write one record about a lease that the caller holds; the job afterwards."""

        def act(decision: Decision) -> tuple[Job, Promise]:
            row = self._leased(decision, job)
            record = make(row, decision)
            starts = decision.write([record])
            unit, log = decision.unit, decision.held.log
            if decision.behind:
                return job_of(row, log), decision.promise()
            after = unit.find(row.id)
            assert after is not None and starts
            return job_of(after, log, unit.failures_of(after)), decision.promise()

        result, promise = self._decide(act)
        if durable:
            self._keep(promise)
        else:
            promise.drop()
        return result

    def _leased(self, decision: Decision, job: Job | str, *, done_is_fine: bool = False) -> Row:
        """The row of a job whose lease the caller holds.

        Raises:
            JobNotFoundError, AlreadyDoneError, NotLeasedError: the caller does not.
        """
        job_id = job.id if isinstance(job, Job) else options.job_id(job)
        row = decision.unit.find(job_id)
        if row is None:
            raise JobNotFoundError(job_id, self.name)
        mine = not isinstance(job, Job) or (job.lease_token is not None and job.lease_token == row.lease_token)
        if row.state == DONE:
            if done_is_fine and mine:
                return row
            raise AlreadyDoneError(job_id, "it was finished already, by another delivery")
        if row.state != LEASED:
            state = (
                "it is a dead letter" if row.state == DEAD else "it waits (its lease has ended, or it never had one)"
            )
            raise NotLeasedError(job_id, f"nobody holds a lease of it: {state}")
        if not mine:
            raise NotLeasedError(job_id, "the lease is not yours any more: the job was delivered again")
        return row


def _token(job: Job | str) -> str | None:
    return job.lease_token if isinstance(job, Job) else None
