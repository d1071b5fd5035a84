"""Adding work: one job, many at once, and jobs under an id of the caller's.

A job without an id of the caller's needs no look at the queue: its cost does not grow with what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Raw

from . import options
from .core import Core
from .deciding import Decision
from .durability import Promise
from .errors import InvalidOptionError, JobConflictError, SerializationError
from .framing import FRAME_BYTES
from .job import Job, JobState, new_job_id, new_job_ids
from .payload import decode_payload, encode_payload, encode_payloads, payload_digest
from .records import NULL, Enqueue, EnqueueTemplate, check_batch_size, encode_batch, encode_body
from .snapshots import ack_record, enqueue_record, job_of
from .transitions import DONE, Row

_MAX_META_BYTES = 8 * 1024
_ENQUEUE = int(Enqueue.TYPE)


class Adding(Core):
    """The verbs ``enqueue`` and ``enqueue_many``."""

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
        unique: bool = False,
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
            unique: the ``job_id`` is a key of work that need not be there twice at a time: a job under it that waits,
                runs or is a dead letter is returned whatever its payload is, one that is done makes way for this one.

        Raises:
            SerializationError, InvalidOptionError: nothing was stored.
            JobConflictError: the id is known with another payload; nothing was stored.
            StorageError, LockTimeoutError: see their ``stored``.
            OutcomeUnknownError: written, but not known to survive.
        """
        if unique and job_id is None:
            raise InvalidOptionError("unique", "is about a job_id, and there is none")
        now = self._clock()
        record = self._record(
            "payload", payload, job_id, now, priority=priority, delay=delay, max_attempts=max_attempts, meta=meta,
            visibility_timeout=visibility_timeout,
        )  # fmt: skip
        if job_id is None:
            return self._append_jobs([record])[0]
        return self._enqueue_known([record], [True], unique=[bool(unique)])[0]

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
        unique: bool | Sequence[bool] = False,
    ) -> list[Job]:
        """Add many jobs with one write and one sync: after a crash all of them are there, or none.

        Options may be one value for all, or a sequence with one for each payload. A conflict of one id refuses the
        whole call. Raises what ``enqueue`` raises; ``SerializationError`` also when all together take over 256 MiB.
        """
        if not isinstance(payloads, Iterable):
            raise InvalidOptionError("payloads", f"something to iterate over is needed, not {options.shown(payloads)}")
        values = list(payloads)
        ids = list(job_ids) if job_ids is not None else [None] * len(values)
        some = list(metas) if metas is not None else [None] * len(values)
        for option, given in (("job_ids", ids), ("metas", some)):
            if len(given) != len(values):
                raise InvalidOptionError(option, f"has {len(given)} entries for {len(values)} payloads")
        keys = [False] * len(values)
        if unique is not False:
            keys = [bool(is_key) for is_key in _each("unique", unique, len(values))]
        if any(keys) and any(is_key and job_id is None for is_key, job_id in zip(keys, ids, strict=True)):
            raise InvalidOptionError("unique", "is about job_ids, and one is missing")
        if not values:
            return []
        now = self._clock()
        shared = not any(
            isinstance(value, list | tuple) for value in (priority, delay, max_attempts, visibility_timeout)
        )
        if shared and job_ids is None and metas is None:
            return self._append_alike(
                values, now, priority=priority, delay=delay, max_attempts=max_attempts,
                visibility_timeout=visibility_timeout,
            )  # fmt: skip
        priorities = _each("priority", priority, len(values))
        delays = _each("delay", delay, len(values))
        limits = _each("max_attempts", max_attempts, len(values))
        leases = _each("visibility_timeout", visibility_timeout, len(values))
        records = [
            self._record(
                f"payloads[{index}]", payload, ids[index], now, priority=priorities[index], delay=delays[index],
                max_attempts=limits[index], meta=some[index], visibility_timeout=leases[index],
            )
            for index, payload in enumerate(values)
        ]  # fmt: skip
        if all(job_id is None for job_id in ids):
            return self._append_jobs(records)
        return self._enqueue_known(records, [job_id is not None for job_id in ids], unique=keys)

    def _append_alike(
        self, values: list[Any], now: float, *, priority: Any, delay: Any, max_attempts: Any, visibility_timeout: Any
    ) -> list[Job]:
        """Append many jobs that share all options, quickly."""
        first = self._record(
            "payloads[0]", None, None, now, priority=priority, delay=delay, max_attempts=max_attempts, meta=None,
            visibility_timeout=visibility_timeout,
        )  # fmt: skip
        payloads, values = encode_payloads(values)
        ids = new_job_ids(len(values))
        template = EnqueueTemplate(
            enqueued_at=now, max_attempts=first.max_attempts, priority=first.priority,
            available_at=first.available_at, visibility_timeout=first.visibility_timeout,
        )  # fmt: skip
        base, starts = self._append_bodies(list(map(template.body, ids, payloads)), ids)
        example = _new_job(first, base)
        rank, limit, due, lease = (
            example.priority,
            example.max_attempts,
            example.available_at,
            first.visibility_timeout,
        )
        ready = JobState.READY
        return [
            Job(job_id, value, rank, ready, 0, limit, due, now, seq=base + at, visibility_timeout=lease)
            for job_id, value, at in zip(ids, values, starts, strict=True)
        ]

    def _record(
        self,
        what: str,
        payload: Any,
        job_id: str | None,
        now: float,
        *,
        priority: Any,
        delay: Any,
        max_attempts: Any,
        meta: Any,
        visibility_timeout: Any,
    ) -> Enqueue:
        """The checked record of one new job."""
        later = options.seconds("delay", delay) if delay != 0 or type(delay) not in (float, int) else 0.0
        return Enqueue(
            id=new_job_id() if job_id is None else options.job_id(job_id),
            payload=Raw(encode_payload(payload, what=what)),
            enqueued_at=now,
            max_attempts=(
                self.max_attempts if max_attempts is None else options.integer("max_attempts", max_attempts, least=1)
            ),
            priority=0 if type(priority) is int and priority == 0 else options.priority(priority),
            available_at=options.moment("delay", now, later) if later else None,
            visibility_timeout=(
                None if visibility_timeout is None else options.lease_length("visibility_timeout", visibility_timeout)
            ),
            meta=NULL if meta is None else Raw(_encode_meta(meta)),
        )

    def _append_jobs(self, records: list[Enqueue]) -> list[Job]:
        """Append jobs whose ids nobody else can have: no look at the queue is needed."""
        base, starts = self._append_bodies(
            [encode_body(record) for record in records], [record.id for record in records]
        )
        return [_new_job(record, base + at) for record, at in zip(records, starts, strict=True)]

    def _append_bodies(self, bodies: list[bytes], ids: list[str]) -> tuple[int, list[int]]:
        """Append and make durable; what has to be added to each start to get the job's seq, and the starts."""
        if len(bodies) > 1:
            check_batch_size(sum(map(len, bodies)) + FRAME_BYTES * len(bodies))
        kinds = [_ENQUEUE] * len(bodies)
        with self._session.locked() as held:
            data, last, starts = encode_batch(kinds, bodies, held.unsynced)
            start = held.append(data, last)
            base = held.log.base + start
            promise = Promise.of(held, start + last, data[last:], tuple(ids), True)
        self._keep(promise)
        return base, starts

    def _enqueue_known(
        self,
        records: list[Enqueue],
        given: list[bool],
        *,
        unique: list[bool],
        check: Callable[[float], None] | None = None,
    ) -> list[Job]:
        """Append the jobs whose ids are not known yet; the others are returned as they are.

        Args:
            given: whose ids were given by the caller, so that they may be known.
            unique: whose ids are keys of work that need not be there twice at a time.
            check: called with the time (Unix seconds) at which it is decided; what it raises leaves all as it was.
        """

        def act(decision: Decision) -> tuple[list[Job], Promise]:
            if check is not None:
                check(decision.now)
            unit = decision.unit
            new: dict[str, Enqueue] = {}
            found: dict[str, tuple[Row, bool]] = {}
            for record, has_given_id, is_key in zip(records, given, unique, strict=True):
                if record.id in new:
                    if not is_key:
                        self._check_same(record, new[record.id])
                    continue
                row = unit.find(record.id) if has_given_id else None
                if row is not None and (known := self._known(record, row, decision, is_key)) is not None:
                    if not is_key:
                        self._check_same(record, known)
                    found[record.id] = row, record.known_until is not None and record.known_until == known.known_until
                else:
                    new[record.id] = record
            base = unit.base
            starts = decision.write(list(new.values())) if new else []
            seqs = dict(zip(new, (base + start for start in starts), strict=True))
            jobs, seen = [], set[str]()
            for record in records:
                if record.id in found:
                    row, same_write = found[record.id]
                    jobs.append(job_of(row, decision.held.log, unit.failures_of(row), created=same_write))
                else:
                    job = _new_job(new[record.id], seqs[record.id])
                    job.created = record.id not in seen
                    seen.add(record.id)
                    jobs.append(job)
            return jobs, decision.promise(tuple(new))

        jobs, promise = self._decide(act)
        self._keep(promise)
        return jobs

    def _known(self, record: Enqueue, row: Row, decision: Decision, is_key: bool) -> Enqueue | None:
        """What was enqueued as ``row``, if that is the same work as ``record``; ``None``: the id is free again.

        A finished job whose retention is over is kept for the sake of a write that may come again: for that one, and
        for those before it, it is known. Whatever takes its place remembers it. So is any finished job under a key.

        Raises:
            CorruptLogError: one of the job's records is damaged.
        """
        if row.state == DONE and (row.keep_until or 0.0) <= decision.now:
            return None
        known = enqueue_record(decision.held.log, row)
        if row.state != DONE:
            return known
        if known.known_until is None:
            return None if is_key else known
        if not is_key and (
            known.known_until < (row.keep_until or 0.0) or ack_record(decision.held.log, row).keep_until > decision.now
        ):
            return known
        if record.known_until is not None and record.known_until <= known.known_until:
            return known
        record.known_until = max(record.known_until or 0.0, known.known_until)
        return None

    def _check_same(self, record: Enqueue, other: Enqueue) -> None:
        """Refuse another payload under a known id."""
        if bytes(record.payload) != bytes(other.payload) and payload_digest(record.payload) != payload_digest(
            other.payload
        ):
            raise JobConflictError(record.id, self.name)


def _each(name: str, value: Any, count: int) -> list[Any]:
    """One value for all, or a sequence with one for each."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise InvalidOptionError(name, f"has {len(value)} entries for {count} payloads")
    return list(value)


def _encode_meta(meta: Any) -> bytes:
    if type(meta) is not dict:
        raise SerializationError(f"must be a dict, not {type(meta).__name__}. Nothing was stored.", path="meta")
    return encode_payload(meta, what="meta", limit=_MAX_META_BYTES)


def _new_job(record: Enqueue, seq: int) -> Job:
    return Job(
        id=record.id,
        payload=decode_payload(record.payload),
        priority=record.priority,
        max_attempts=record.max_attempts,
        available_at=record.enqueued_at if record.available_at is None else record.available_at,
        enqueued_at=record.enqueued_at,
        seq=seq,
        meta=None if record.meta is NULL else decode_payload(record.meta),
        visibility_timeout=record.visibility_timeout,
    )
