"""From a row of the projection and the records that it points to, the ``Job`` that a caller sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from .errors import CorruptLogError
from .job import Job, JobError, JobState
from .log import Log
from .payload import decode_payload
from .records import Ack, Enqueue
from .transitions import DEAD, DONE, DUE, LEASED, WAITING, Row

_Kept = TypeVar("_Kept", Enqueue, Ack)
STATE_OF = {
    WAITING: JobState.READY,
    DUE: JobState.READY,
    LEASED: JobState.LEASED,
    DONE: JobState.DONE,
    DEAD: JobState.DEAD,
}
ROW_STATES = {
    JobState.READY: (WAITING, DUE),
    JobState.LEASED: (LEASED,),
    JobState.DONE: (DONE,),
    JobState.DEAD: (DEAD,),
}


def enqueue_record(log: Log, row: Row) -> Enqueue:
    """The ENQUEUE record of a job, checked to be this job's.

    Raises:
        CorruptLogError: it is not there, or damaged.
    """
    return _record_of(row, log, row.payload_offset, Enqueue)


def ack_record(log: Log, row: Row) -> Ack:
    """The ACK record of a finished job, checked to be this job's.

    Raises:
        CorruptLogError: it is not there, or damaged.
    """
    return _record_of(row, log, row.result_offset, Ack)


def _record_of(row: Row, log: Log, offset: int, kind: type[_Kept]) -> _Kept:
    record = log.record_at(offset)
    if not isinstance(record, kind) or record.id != row.id:
        raise CorruptLogError(log.path, offset, f"this is not the {kind.TYPE.name} record of job {row.id!r}")
    return record


def job_of(row: Row, log: Log, failures: Sequence[int] = (), *, created: bool = False) -> Job:
    """The detached snapshot of a job.

    Args:
        row: its row.
        log: the log that the row's offsets mean.
        failures: offsets of the records of its failed attempts, oldest first.

    Raises:
        CorruptLogError: one of its records is damaged.
    """
    record = enqueue_record(log, row)
    errors = [error_of(log, offset) for offset in failures]
    job = Job(
        id=row.id,
        payload=decode_payload(record.payload),
        priority=row.priority,
        state=STATE_OF[row.state],
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        available_at=row.available_at,
        enqueued_at=row.enqueued_at,
        lease_deadline=row.lease_deadline,
        lease_token=row.lease_token if row.state == LEASED else None,
        last_error=errors[-1].text if errors else None,
        seq=row.seq,
        created=created,
        finished_at=row.finished_at,
        errors=errors,
        meta=decode_payload(record.meta),
        visibility_timeout=row.visibility_timeout,
        started_at=row.started_at,
        extensions=row.extensions,
    )
    if row.state == DONE:
        ack = ack_record(log, row)
        job.outcome = "succeeded"
        job.result = decode_payload(ack.result)
        job.worker = ack.worker
    return job


def error_of(log: Log, offset: int) -> JobError:
    """The failed attempt that the record at ``offset`` tells of.

    Raises:
        CorruptLogError: it is damaged, or of another kind.
    """
    record = log.failure_at(offset)
    return JobError(
        record.attempts, record.at, record.error_class, record.error, record.traceback, worker=record.worker
    )
