"""The queue: its verbs, for threads of any number of processes on one machine.

A plain ``enqueue`` appends one record and knows nothing of the others. Every other verb folds the log's tail into the
projection first (``deciding``). What a verb promises is durable when it returns (``durability``), unless the queue was
opened with ``fsync=False``, which is not durable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Raw

from . import options
from .backoff import BackoffPolicy
from .clock import Clock, Deadline, sleep, system_clock
from .compaction import CompactionResult, compact, remove_retired
from .control import COMPACTION_BYTE
from .deciding import Decision, decide
from .durability import Promise
from .errors import (
    AlreadyDoneError,
    CompactionError,
    InvalidOptionError,
    JobConflictError,
    JobNotFoundError,
    NobrokerError,
    NotLeasedError,
    SerializationError,
)
from .failures import describe
from .files import Files
from .framing import encode_frame
from .generations import Layout
from .job import Job, JobState, QueueStats, new_job_id
from .payload import MAX_RESULT_BYTES, decode_payload, encode_payload, payload_digest
from .records import (
    NULL,
    Ack,
    Dead,
    Enqueue,
    Extend,
    Lease,
    Nack,
    Purge,
    Reclaim,
    Record,
    Release,
    Requeue,
    encode_batch,
    encode_body,
    with_batch_fields,
)
from .recovery import RecoveryReport
from .session import Session
from .snapshots import ROW_STATES, enqueue_record, job_of
from .transitions import DEAD, DONE, LEASED, Row

_RECLAIM_ROWS = 200
_PAGE_ROWS = 1000
_REQUEUE_ROWS = 5000
_MAX_META_BYTES = 8 * 1024
_WAIT_SECONDS = 0.01
_LONGEST_WAIT_SECONDS = 1.0


class Queue:
    """A durable job queue in the files ``NAME.*`` of one directory.

    Args:
        path: the directory; created when it is not there.
        name: 1 to 64 ASCII letters, digits, ``_`` and ``-``. Each queue has a log of its own.
        fsync: False is **not durable**: what was acknowledged can be lost when the machine goes down.
        visibility_timeout: seconds that a lease lasts.
        max_attempts: deliveries before a job becomes a dead letter.
        backoff: delay between failed attempts.
        lock_timeout: seconds that a call waits for other processes.
        retention: seconds that finished jobs, and their ids, stay known.
        file_mode, dir_mode: permission bits of what is created.
        clock: Unix seconds as a float; for tests.
        files: the system calls; for tests.

    Raises:
        InvalidOptionError: an option is not valid.
        CorruptLogError: acknowledged data are damaged, or the pointer file is missing or unreadable.
        StorageError: the file system refused something.
        LockTimeoutError: another process held the lock for too long.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str = "default",
        *,
        fsync: bool = True,
        visibility_timeout: float = 30.0,
        max_attempts: int = 5,
        backoff: BackoffPolicy | None = None,
        lock_timeout: float = 10.0,
        retention: float = 0.0,
        file_mode: int = 0o600,
        dir_mode: int = 0o700,
        clock: Clock = system_clock,
        files: Files | None = None,
    ) -> None:
        self.name = name
        self.fsync = bool(fsync)
        self.visibility_timeout = options.seconds("visibility_timeout", visibility_timeout, zero=False)
        self.max_attempts = options.integer("max_attempts", max_attempts, least=1)
        self.backoff = backoff if backoff is not None else BackoffPolicy()
        self.retention = options.seconds("retention", retention)
        self._clock = clock
        self._layout = Layout.of(path, name)
        self._files = files or Files()
        self._session = Session(
            self._layout,
            self._files,
            clock,
            lock_timeout=options.seconds("lock_timeout", lock_timeout, zero=False),
            file_mode=file_mode,
            dir_mode=dir_mode,
        )
        try:
            with self._session.locked():
                pass
        except BaseException:
            self._session.abandon()
            raise

    # -- properties

    @property
    def dir(self) -> Path:
        """The queue's directory, absolute."""
        return self._layout.directory

    @property
    def path(self) -> Path:
        """The live log file."""
        with self._session.locked() as held:
            return held.log.path

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found at the end of the log; ``repaired`` tells whether a torn tail was cut."""
        return self._session.recovery

    def now(self) -> float:
        """The queue's clock: Unix seconds."""
        return self._clock()

    def close(self) -> None:
        """Close the files; the object cannot be used afterwards. Closing again does nothing."""
        self._session.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return self.stats().total

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Queue({os.fspath(self.dir)!r}, {self.name!r})"

    # -- adding work

    def enqueue(
        self,
        payload: Any,
        *,
        priority: int = 0,
        delay: float = 0.0,
        max_attempts: int | None = None,
        job_id: str | None = None,
        meta: dict[str, Any] | None = None,
        visibility_timeout: float | None = None,
    ) -> Job:
        """Add one job; it is on the disk when this returns.

        Args:
            payload: any JSON value (tuples come back as lists).
            priority: a 32-bit integer, higher first.
            delay: seconds before the job becomes eligible.
            max_attempts: deliveries before it becomes a dead letter, instead of the queue's.
            job_id: makes the call idempotent: when a job with this id is known, that job is returned, with ``created``
                False, and nothing is added.
            meta: a small JSON object kept beside the payload.
            visibility_timeout: seconds that a lease of this job lasts, instead of the queue's.

        Raises:
            SerializationError, InvalidOptionError: nothing was stored.
            JobConflictError: the id is known with another payload; nothing was stored.
            StorageError, LockTimeoutError: see their ``stored``.
            OutcomeUnknownError: written, but not known to survive.
        """
        return self._enqueue(
            [payload], [job_id], priority=priority, delay=delay, max_attempts=max_attempts, metas=[meta],
            visibility_timeout=visibility_timeout,
        )[0]  # fmt: skip

    def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int | Sequence[int] = 0,
        delay: float | Sequence[float] = 0.0,
        max_attempts: int | Sequence[int | None] | None = None,
        job_ids: Sequence[str | None] | None = None,
        metas: Sequence[dict[str, Any] | None] | None = None,
        visibility_timeout: float | Sequence[float | None] | None = None,
    ) -> list[Job]:
        """Add many jobs with one write and one sync: after a crash all of them are there, or none.

        Options may be one value for all, or a sequence with one for each payload. A conflict of one id refuses the
        whole call. Raises what ``enqueue`` raises; ``SerializationError`` also when all together take over 256 MiB.
        """
        values = list(payloads)
        ids = list(job_ids) if job_ids is not None else [None] * len(values)
        some = list(metas) if metas is not None else [None] * len(values)
        for option, given in (("job_ids", ids), ("metas", some)):
            if len(given) != len(values):
                raise InvalidOptionError(option, f"has {len(given)} entries for {len(values)} payloads; nothing was stored")
        if not values:
            return []
        return self._enqueue(
            values, ids, priority=priority, delay=delay, max_attempts=max_attempts, metas=some,
            visibility_timeout=visibility_timeout, many=True,
        )  # fmt: skip

    def _enqueue(
        self,
        payloads: list[Any],
        ids: Sequence[str | None],
        *,
        priority: Any,
        delay: Any,
        max_attempts: Any,
        metas: Sequence[dict[str, Any] | None],
        visibility_timeout: Any,
        many: bool = False,
    ) -> list[Job]:
        now = self._clock()
        count = len(payloads)
        priorities = [options.priority(value) for value in _each("priority", priority, count)]
        delays = [options.seconds("delay", value) for value in _each("delay", delay, count)]
        limits = [
            self.max_attempts if value is None else options.integer("max_attempts", value, least=1)
            for value in _each("max_attempts", max_attempts, count)
        ]
        leases = [
            None if value is None else options.seconds("visibility_timeout", value, zero=False)
            for value in _each("visibility_timeout", visibility_timeout, count)
        ]
        records = [
            Enqueue(
                id=new_job_id() if job_id is None else options.job_id(job_id),
                payload=Raw(encode_payload(payload, what=f"payloads[{index}]" if many else "payload")),
                enqueued_at=now,
                max_attempts=limits[index],
                priority=priorities[index],
                available_at=options.moment("delay", now, delays[index]) if delays[index] else None,
                visibility_timeout=leases[index],
                meta=NULL if metas[index] is None else Raw(_encode_meta(metas[index])),
            )
            for index, (payload, job_id) in enumerate(zip(payloads, ids, strict=True))
        ]
        if all(job_id is None for job_id in ids):
            return self._append_jobs(records, payloads, metas)
        return self._enqueue_known(records, [job_id is not None for job_id in ids])

    def _append_jobs(
        self, records: list[Enqueue], payloads: list[Any], metas: Sequence[dict[str, Any] | None]
    ) -> list[Job]:
        """Append jobs whose ids nobody else can have: no look at the queue is needed."""
        bodies = [(int(record.TYPE), encode_body(record)) for record in records]
        job_ids = tuple(record.id for record in records)
        alone = len(bodies) == 1
        if not alone:
            encode_batch(bodies, 0)  # refuses what is too large, before the lock is taken
        with self._session.locked() as held:
            if alone:
                kind, body = bodies[0]
                data = encode_frame(kind, with_batch_fields(body, 1, held.unsynced))
                last, starts = 0, [0]
            else:
                data, last, starts = encode_batch(bodies, held.unsynced)
            start = held.append(data, last)
            base = held.log.base
            promise = Promise.of(held, start + last, data[last:], job_ids)
        self._keep(promise)
        return [
            _new_job(record, base + start + at, payload=decode_payload(record.payload), meta=meta)
            for record, at, meta in zip(records, starts, metas, strict=True)
        ]

    def _enqueue_known(self, records: list[Enqueue], given: list[bool]) -> list[Job]:
        """Append the jobs whose ids are not known yet; the others are returned as they are."""

        def act(decision: Decision) -> tuple[list[tuple[Row, bool]], Decision]:
            unit = decision.unit
            new: dict[str, Enqueue] = {}
            found: dict[str, Row] = {}
            for record, check in zip(records, given, strict=True):
                if record.id in new:
                    self._check_same(record, new[record.id])
                    continue
                row = unit.find(record.id) if check else None
                if row is None or (row.state == DONE and (row.keep_until or 0.0) <= decision.now):
                    new[record.id] = record
                else:
                    self._check_same(record, enqueue_record(decision.held.log, row))
                    found[record.id] = row
            base = unit.base
            starts = decision.write(list(new.values())) if new else []
            seqs = dict(zip(new, (base + start for start in starts), strict=True))
            jobs, seen = [], set[str]()
            for record in records:
                if record.id in found:
                    row = found[record.id]
                    jobs.append(job_of(row, decision.held.log, unit.failures_of(row)))
                else:
                    job = _new_job(
                        record,
                        seqs[record.id],
                        payload=decode_payload(record.payload),
                        meta=decode_payload(record.meta),
                    )
                    job.created = record.id not in seen
                    seen.add(record.id)
                    jobs.append(job)
            return jobs, decision.promise(tuple(new))

        jobs, promise = self._decide(act)
        self._keep(promise)
        return jobs

    def _check_same(self, record: Enqueue, other: Enqueue) -> None:
        """Refuse another payload under a known id."""
        if bytes(record.payload) != bytes(other.payload) and payload_digest(record.payload) != payload_digest(other.payload):
            raise JobConflictError(record.id, self.name)

    # -- leases

    def lease(
        self, count: int = 1, *, visibility_timeout: float | None = None, timeout: float = 0.0
    ) -> list[Job]:
        """Take up to ``count`` jobs, in order of priority, time and insertion; nobody else gets them until the deadline.

        Args:
            count: at most this many, 1 or more.
            visibility_timeout: seconds that the leases last, instead of the job's or the queue's.
            timeout: seconds to wait for the first job when none is eligible.

        Raises:
            InvalidOptionError, LockTimeoutError, CorruptLogError, StorageError: no lease was taken.
        """
        options.integer("count", count, least=1)
        if visibility_timeout is not None:
            options.seconds("visibility_timeout", visibility_timeout, zero=False)
        deadline = Deadline(options.seconds("timeout", timeout))
        while True:
            jobs, next_change = self._lease_now(count, visibility_timeout)
            if jobs or deadline.passed():
                return jobs
            self._wait_for_change(next_change, deadline)

    def lease_one(self, *, visibility_timeout: float | None = None, timeout: float = 0.0) -> Job | None:
        """As ``lease``, for one job; ``None`` when there is none."""
        jobs = self.lease(1, visibility_timeout=visibility_timeout, timeout=timeout)
        return jobs[0] if jobs else None

    def _lease_now(self, count: int, visibility_timeout: float | None) -> tuple[list[Job], float | None]:
        def act(decision: Decision) -> tuple[list[Job], float | None]:
            unit, log, now = decision.unit, decision.held.log, decision.now
            self._reclaim(decision)
            if decision.behind:
                return [], now
            rows = unit.due(count)
            if not rows:
                return [], unit.next_change()
            jobs = [job_of(row, log, unit.failures_of(row)) for row in rows]
            records = [
                Lease(
                    id=row.id,
                    at=now,
                    deadline=now + (visibility_timeout or row.visibility_timeout or self.visibility_timeout),
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
            return jobs, None

        return self._decide(act, promote=True)

    def _reclaim(self, decision: Decision) -> None:
        """Take back the leases that have run out: as a failed attempt each, "lease expired"."""
        while rows := decision.unit.expired(decision.now, _RECLAIM_ROWS):
            reason = "lease expired: the job was neither finished nor extended before its deadline"
            records: list[Record] = []
            for row in rows:
                if row.attempts >= row.max_attempts:
                    records.append(Dead(id=row.id, at=decision.now, attempts=row.attempts, error=reason))
                else:
                    delay = self.backoff.delay_for(row.attempts)
                    records.append(
                        Reclaim(
                            id=row.id, at=decision.now, attempts=row.attempts, error=reason,
                            available_at=decision.now + delay if delay else None,
                        )
                    )  # fmt: skip
            decision.write(records)
            if decision.behind:
                return
            decision.unit.promote(decision.now, _RECLAIM_ROWS)

    def _wait_for_change(self, next_change: float | None, deadline: Deadline) -> None:
        """Sleep until something was appended, time alone makes a job eligible, or the deadline has passed."""
        seen = self._session.look()
        longest = Deadline(_LONGEST_WAIT_SECONDS)
        while not deadline.passed() and not longest.passed():
            if next_change is not None and self._clock() >= next_change:
                return
            sleep(min(_WAIT_SECONDS, max(deadline.left(), 0.001)))
            if self._session.look() != seen:
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
                        id=row.id, at=decision.now, keep_until=decision.now + self.retention, token=_token(job), result=result
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
            pause = self.backoff.delay_for(row.attempts) if wait is None else wait
            return Nack(available_at=options.moment("delay", decision.now, pause) if pause else None, **fields)

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
            deadline = max(row.lease_deadline or decision.now, decision.now) + more
            return Extend(id=row.id, at=decision.now, deadline=deadline, token=_token(job))

        return self._end_lease(job, extended, durable=False)

    def _end_lease(self, job: Job | str, make: Any, *, durable: bool = True) -> Job:
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
            state = "a dead letter" if row.state == DEAD else "ready again: the lease has ended"
            raise NotLeasedError(job_id, f"it is not leased, it is {state}")
        if not mine:
            raise NotLeasedError(job_id, "the lease is not yours any more: the job was delivered again")
        return row

    # -- dead letters

    def requeue_dead(self, job_id: str | None = None) -> int:
        """Dead letters become ready again, with a fresh budget of attempts; how many.

        Args:
            job_id: one of them; by default all.

        Raises:
            JobNotFoundError: there is no such job. NotLeasedError: it is no dead letter.
        """
        total = 0
        while True:

            def act(decision: Decision) -> tuple[int, Promise]:
                if job_id is None:
                    rows = decision.unit.dead(_REQUEUE_ROWS)
                else:
                    row = decision.unit.find(options.job_id(job_id))
                    if row is None:
                        raise JobNotFoundError(job_id, self.name)
                    if row.state != DEAD:
                        raise NotLeasedError(job_id, "it is not in the dead-letter queue")
                    rows = [row]
                if rows:
                    decision.write([Requeue(id=row.id, at=decision.now) for row in rows])
                return len(rows), decision.promise()

            count, promise = self._decide(act)
            self._keep(promise)
            total += count
            if job_id is not None or count < _REQUEUE_ROWS:
                return total

    def dlq(self, *, limit: int | None = None) -> list[Job]:
        """The dead letters in insertion order."""
        return self.list_jobs(JobState.DEAD, limit=limit)

    def purge(self) -> int:
        """Forget every job of the queue, in any state; how many there were."""

        def act(decision: Decision) -> tuple[int, Promise]:
            count = sum(decision.unit.counts)
            decision.write([Purge(at=decision.now)])
            return count, decision.promise()

        count, promise = self._decide(act)
        self._keep(promise)
        return count

    # -- looking

    def get(self, job_id: str) -> Job:
        """One job, with its error history.

        Raises:
            JobNotFoundError: no job of that id is known.
        """

        def act(decision: Decision) -> Job:
            row = decision.unit.find(options.job_id(job_id))
            if row is None:
                raise JobNotFoundError(job_id, self.name)
            return job_of(row, decision.held.log, decision.unit.failures_of(row))

        return self._decide(act)

    def stats(self) -> QueueStats:
        """The jobs by state, now."""

        def act(decision: Decision) -> QueueStats:
            unit = decision.unit
            waiting, due, leased, done, dead = unit.counts
            oldest = unit.oldest_due()
            return QueueStats(
                ready=due,
                delayed=waiting,
                leased=leased,
                done=done,
                dead=dead,
                total=sum(unit.counts),
                enqueued_total=unit.enqueued_total,
                oldest_ready_age=None if oldest is None else max(0.0, decision.now - oldest),
            )

        return self._decide(act, promote=True)

    def list_jobs(self, state: JobState | str | None = None, *, limit: int | None = None) -> list[Job]:
        """Jobs in insertion order, of one state or of all, ``limit`` at the most.

        Raises:
            InvalidOptionError: no such state, or a negative limit.
        """
        try:
            states = JobState if state is None else [JobState(state)]
        except ValueError:
            names = ", ".join(known.value for known in JobState)
            raise InvalidOptionError("state", f"{state!r} is none of {names}") from None
        if limit is not None:
            options.integer("limit", limit, least=0)
        wanted = [number for known in states for number in ROW_STATES[known]]
        jobs: list[Job] = []
        after = -1
        while limit is None or len(jobs) < limit:
            count = _PAGE_ROWS if limit is None else min(_PAGE_ROWS, limit - len(jobs))

            def act(decision: Decision, after: int = after, count: int = count) -> Any:
                unit = decision.unit
                rows = unit.listed(wanted, after, count)
                return decision.held.log.retain(), [(row, unit.failures_of(row) if row.failures else ()) for row in rows]

            log, page = self._decide(act)
            try:
                jobs.extend(job_of(row, log, failures) for row, failures in page)
            finally:
                log.release()
            if len(page) < count:
                break
            after = page[-1][0].seq
        return jobs

    # -- maintenance

    def compact(self) -> CompactionResult:
        """Write the log anew without finished history; all or nothing.

        Raises:
            CompactionError: it was given up (no space, or another compaction is running); the queue is unchanged.
            CorruptLogError: a record is damaged; the queue is unchanged.
        """
        session = self._session
        with session.locked() as held:
            lock_file = held.lock_file.retain()
        try:
            with session.byte_locked(lock_file, COMPACTION_BYTE) as had:
                if not had:
                    raise CompactionError(f"another compaction of {self.name!r} is running; the queue is unchanged")
                result, retired = self._decide(
                    lambda decision: (
                        compact(decision, self._layout, self._files, file_mode=session.file_mode),
                        decision.held.log.generation,
                    )
                )
                with session.locked() as held:
                    live = held.log.generation
                remove_retired(self._files, self._layout, live, retired)
        finally:
            lock_file.release()
        return result

    # -- inside

    def _decide(self, act: Any, *, promote: bool = False) -> Any:
        return decide(self._session, act, promote=promote)

    def _keep(self, promise: Promise) -> None:
        if self.fsync:
            promise.keep()
        else:
            promise.drop()


def _each(name: str, value: Any, count: int) -> list[Any]:
    """One value for all, or a sequence with one for each."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise InvalidOptionError(name, f"has {len(value)} entries for {count} payloads; nothing was stored")
    return list(value)


def _encode_meta(meta: Any) -> bytes:
    if type(meta) is not dict:
        raise SerializationError(f"must be a dict, not {type(meta).__name__}. Nothing was stored.", path="meta")
    return encode_payload(meta, what="meta", limit=_MAX_META_BYTES)


def _new_job(record: Enqueue, seq: int, *, payload: Any, meta: Any) -> Job:
    return Job(
        id=record.id,
        payload=payload,
        priority=record.priority,
        max_attempts=record.max_attempts,
        available_at=record.enqueued_at if record.available_at is None else record.available_at,
        enqueued_at=record.enqueued_at,
        seq=seq,
        meta=meta,
        visibility_timeout=record.visibility_timeout,
    )


def _token(job: Job | str) -> str | None:
    return job.lease_token if isinstance(job, Job) else None


