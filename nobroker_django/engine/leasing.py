"""Leases: taking jobs, ending a lease in one of the ways it can end, taking back what has run out.

``attempts`` is counted when the lease is taken. The fencing token in the ``Job`` proves that a lease is the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from . import options
from .clock import Deadline
from .core import Core
from .deciding import Decision
from .durability import Promise
from .endings import Ended
from .errors import AlreadyDoneError, JobNotFoundError, NotLeasedError
from .failures import in_one_line
from .job import Job, JobState, TakenBack
from .liveness import Liveness
from .records import Ack, Dead, Extend, Lease, Nack, Reclaim, Record, Release
from .snapshots import job_of
from .transitions import DEAD, DONE, DUE, LEASED, Row

logger = logging.getLogger("nobroker_django")

_RECLAIM_ROWS = 200
_COUNT_SECONDS = 0.25  # between looks for workers that have ended, while there is enough to do
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
        return self._lease_as(None, count, visibility_timeout=visibility_timeout, timeout=timeout)

    def _lease_as(
        self, holder: str | None, count: int, *, visibility_timeout: float | None = None, timeout: float = 0.0
    ) -> list[Job]:
        """``lease`` for a registered worker, which begins at once with all that it gets."""
        options.integer("count", count, least=1)
        if visibility_timeout is not None:
            options.lease_length("visibility_timeout", visibility_timeout)
        deadline = Deadline(options.seconds("timeout", timeout))
        while True:
            seen = self._session.look()
            jobs, next_change = self._lease_now(count, visibility_timeout, holder)
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

    def _lease_now(
        self, count: int, visibility_timeout: float | None, holder: str | None = None
    ) -> tuple[list[Job], float | None]:
        def act(decision: Decision) -> tuple[list[Job], float | None, bool]:
            self._reclaim(decision)
            if decision.behind:
                return [], decision.now, decision.rings
            jobs = self._take(
                decision, count, visibility_timeout=visibility_timeout, holder=holder, begin=count if holder else 0
            )
            more = decision.rings or decision.unit.counts[DUE] > 0
            return jobs, None if jobs else decision.unit.next_change(), more

        jobs, next_change, more = self._decide(act, promote=True)
        if more:
            self._session.ring()  # the next one who waits: a byte wakes one alone
        return jobs, next_change

    def _take(
        self,
        decision: Decision,
        count: int,
        *,
        visibility_timeout: float | None = None,
        holder: str | None = None,
        begin: int = 0,
    ) -> list[Job]:
        """Lease up to ``count`` due jobs, of which the first ``begin`` are run at once."""
        unit, log, now = decision.unit, decision.held.log, decision.now
        rows = unit.due(count)
        if (len(rows) < count or self._count_workers.passed()) and self._reclaim_dead(decision, {}, punish=True):
            if decision.behind:
                return []
            rows = unit.due(count)
        if not rows:
            return []
        jobs = [job_of(row, log, unit.failures_of(row)) for row in rows]
        records = [
            Lease(
                id=row.id,
                at=now,
                deadline=options.latest(now, visibility_timeout or row.visibility_timeout or self.visibility_timeout),
                attempts=row.attempts + 1,
                token="",
                holder=holder,
                begins=number < begin,
            )
            for number, row in enumerate(rows)
        ]
        decision.write(records)
        for job, record in zip(jobs, records, strict=True):
            job.state = JobState.LEASED
            job.attempts = record.attempts
            job.lease_deadline = record.deadline
            job.lease_token = record.token
            job.started_at = now if record.begins else None
        return jobs

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
            self._note_taken_back(rows, records, decision)
            if decision.behind:
                return
            decision.unit.promote(decision.now, _RECLAIM_ROWS)

    def _reclaim_dead(self, decision: Decision, known: Mapping[str, str | None], *, punish: bool) -> int:
        """Take back what workers held that have ended; how many leases that were.

        A job that such a worker had begun has failed; the first time that this happens to a job it is ready at once.
        What was only fetched gets its attempt back.

        Args:
            known: holders that have ended for certain, with the reason; of others the kernel is asked.
            punish: whether what was begun counts as a failed attempt.
        """
        self._count_workers = Deadline(_COUNT_SECONDS)
        unit, taken = decision.unit, 0
        for holder in unit.holders():
            if holder not in known and not self._census.is_dead(holder):
                continue
            why = known.get(holder) or "the process that ran it has ended without an outcome"
            while not decision.behind and (rows := unit.held_by(holder, _RECLAIM_ROWS)):
                records = [self._verdict(row, decision, why, punish=punish) for row in rows]
                decision.write(records)
                self._note_taken_back(rows, records, decision)
                taken += len(rows)
        self._holders, self._seen = unit.holders(), decision.log.position(decision.held.end)
        return taken

    def _verdict(self, row: Row, decision: Decision, why: str, *, punish: bool) -> Record:
        """What becomes of a job whose worker has ended."""
        if row.started_at is None or not punish:
            return Release(id=row.id, at=decision.now, token=row.lease_token or "")
        fields: dict[str, Any] = {
            "id": row.id, "at": decision.now, "attempts": row.attempts, "error": f"worker died: {why}",
            "error_class": "WorkerDied", "died": True,
        }  # fmt: skip
        if row.attempts >= row.max_attempts:
            return Dead(**fields)
        return Reclaim(available_at=self._retry_at(row, decision) if row.deaths else None, **fields)

    def _note_taken_back(self, rows: Sequence[Row], records: Sequence[Record], decision: Decision) -> None:
        """To be told when the lock is free again."""
        for row, record in zip(rows, records, strict=True):
            if isinstance(record, Dead | Reclaim):
                again = (record.available_at or decision.now) if isinstance(record, Reclaim) else None
                decision.taken_back.append(
                    TakenBack(
                        job_id=row.id,
                        task=row.task,
                        attempts=record.attempts,
                        max_attempts=row.max_attempts,
                        error=in_one_line(record.error_class, record.error) or "unknown",
                        state=JobState.DEAD if again is None else JobState.READY,
                        available_at=again or 0.0,
                    )
                )

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
        lost = self._end_all([Ended.succeeded(job, result)])
        if lost:
            raise lost[0][1]

    def ack_many(self, jobs: Iterable[Job]) -> list[Job]:
        """Ack several jobs with one write and one sync; returns those whose lease was lost."""
        return [job for job, _ in self._end_all([Ended.succeeded(job) for job in jobs]) if isinstance(job, Job)]

    def _end_all(self, ends: Sequence[Ended]) -> list[tuple[Job | str, NotLeasedError | JobNotFoundError]]:
        """Record how these deliveries ended, with one write and one sync; those whose lease was lost, and why."""
        if not ends:
            return []

        def act(decision: Decision) -> tuple[list[tuple[Job | str, NotLeasedError | JobNotFoundError]], Promise]:
            found, records = self._ends_of(ends, decision)
            if records:
                decision.write(records)
            lost = [(end.job, one) for end, one in zip(ends, found, strict=True) if not isinstance(one, Row)]
            return lost, decision.promise()

        lost, promise = self._decide(act)
        self._keep(promise)
        return lost

    def _ends_of(
        self, ends: Sequence[Ended], decision: Decision
    ) -> tuple[list[Row | NotLeasedError | JobNotFoundError], list[Record]]:
        """Of each delivery its row, or why its end does not count; and the records of those that end now."""
        found: list[Row | NotLeasedError | JobNotFoundError] = []
        records: dict[str, Record] = {}
        for end in ends:
            try:
                row = self._leased(decision, end.job, done_is_fine=end.result is not None)
            except (NotLeasedError, JobNotFoundError) as error:
                found.append(error)
                continue
            found.append(row)
            if row.state != DONE:
                records[row.id] = self._end_of(end, row, decision)
        return found, list(records.values())

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
        end = Ended.failed(job, error, delay=delay)
        return self._end_lease(job, lambda row, decision: self._end_of(end, row, decision))

    def bury(self, job: Job | str, *, error: str | BaseException | None = None) -> Job:
        """The job will never succeed: it becomes a dead letter at once, whatever attempts are left.

        Raises:
            NotLeasedError, JobNotFoundError: nothing was changed.
        """

        end = Ended.failed(job, error, final=True)
        return self._end_lease(job, lambda row, decision: self._end_of(end, row, decision))

    def release(self, jobs: Iterable[Job]) -> list[Job]:
        """Give leases back unused: the attempt is not counted, the job returns to its place. Returns the lost ones."""
        return [job for job, _ in self._end_all([Ended.given_back(job) for job in jobs]) if isinstance(job, Job)]

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

    def _end_of(self, end: Ended, row: Row, decision: Decision) -> Record:
        """The record of how a delivery ended."""
        now, token = decision.now, row.lease_token or ""
        if end.result is not None:
            keep_until = options.latest(now, self.retention)
            return Ack(id=row.id, at=now, keep_until=keep_until, token=token, result=end.result, worker=end.worker)
        if end.failure is None:
            return Release(id=row.id, at=now, token=token)
        text = end.failure
        fields: dict[str, Any] = {
            "id": row.id, "at": now, "attempts": row.attempts, "token": token,
            "error": text.message, "error_class": text.error_class, "traceback": text.traceback, "worker": end.worker,
        }  # fmt: skip
        if end.final or row.attempts >= row.max_attempts:
            return Dead(**fields)
        if end.delay is None:
            when = self._retry_at(row, decision)
        else:
            when = options.moment("delay", now, end.delay) if end.delay else None
        return Nack(available_at=when, **fields)

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

    def _register_worker(self) -> Liveness:
        """A worker of this queue, whose leases come back as soon as it has ended.

        Raises:
            OSError: the file system refused; without one, the deadlines decide.
        """
        session = self._session
        return Liveness(self._files, self._layout, dir_mode=session.dir_mode, file_mode=session.file_mode)

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
