"""What the rows of a list leave in the log: payloads, results, failed attempts.

Read from the very log that the rows' offsets mean, held open by the connection that the rows came from.
"""

from __future__ import annotations

from nobroker_django.engine.errors import NobrokerError
from nobroker_django.engine.framing import FRAME_BYTES
from nobroker_django.engine.job import Job as EngineJob
from nobroker_django.engine.payload import decode_payload
from nobroker_django.engine.snapshots import enqueue_record, job_of
from nobroker_django.models import Job

from . import showing
from .connection import connection_of

LARGEST_PREVIEW_BYTES = 64 * 1024


def full(job: Job) -> EngineJob | str:
    """The job with all that its records say, or a sentence why they cannot be read."""
    connection = connection_of(job._state.db or "")
    log = connection.source.log if connection.source is not None else None
    if log is None:
        return "The log is not open."
    with connection.cursor() as cursor:
        cursor.execute("SELECT at_offset FROM main.failures WHERE job = %s ORDER BY at_offset", [job.seq])
        failures = [offset for (offset,) in cursor.fetchall()]
    try:
        return job_of(job.row(), log, failures)
    except (NobrokerError, OSError) as error:
        return str(error)


def arguments(job: Job) -> str:
    """The arguments of the call on one line, cut; the payload itself if it is no task's."""
    connection = connection_of(job._state.db or "")
    log = connection.source.log if connection.source is not None else None
    if log is None:
        return showing.NOTHING
    try:
        length = int.from_bytes(log.peek(job.payload_offset, FRAME_BYTES)[:4], "little")
        if length > LARGEST_PREVIEW_BYTES:
            return f"({showing.bytes_of(length)})"
        payload = decode_payload(enqueue_record(log, job.row()).payload)
    except (NobrokerError, OSError):
        return "(damaged)"
    args, kwargs = (payload.get("args"), payload.get("kwargs")) if isinstance(payload, dict) else (None, None)
    if job.task is None or not isinstance(args, list) or not isinstance(kwargs, dict):
        return showing.cell(showing.as_json(payload, indent=None))
    parts = [showing.as_json(value, indent=None) for value in args]
    parts += [f"{name}={showing.as_json(value, indent=None)}" for name, value in kwargs.items()]
    return showing.cell(", ".join(parts))
