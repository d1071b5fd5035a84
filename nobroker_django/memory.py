"""Jobs that are in no queue: run where they are enqueued, or only kept. For development and tests.

Invariant: what a queue would refuse is refused here, with the same errors, and the arguments and the return value make
the same way through JSON. Nothing is durable, other processes see nothing, and a job is tried once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from django.core.signals import setting_changed
from msgspec.structs import replace

from . import conf
from .engine.errors import JobConflictError, JobNotFoundError
from .engine.job import Job, JobState
from .engine.once import Entry
from .engine.payload import decode_payload, encode_payload

MOST = 10_000
"""How many jobs are remembered; of more the oldest are forgotten."""


class Memory:
    """The jobs of one backend, or of ``IMMEDIATE``.

    Args:
        runs: whether a job is run as soon as it is there.
        backend: the alias in ``TASKS`` of the backend whose jobs these are.
    """

    def __init__(self, *, runs: bool, backend: str | None = None) -> None:
        self.runs = runs
        self.backend = backend
        self._jobs: OrderedDict[tuple[str, str], Job] = OrderedDict()

    def add(self, queue: str, entries: Sequence[Entry]) -> list[Job]:
        """Take in jobs: all, or none.

        Raises:
            SerializationError: a payload is no exact JSON, or too large.
            JobConflictError: an id is taken by other work.
        """
        now = time.time()
        new: dict[str, Job] = {}
        jobs = []
        for entry in entries:
            kept = decode_payload(encode_payload(entry.payload))
            known = new.get(entry.job_id) or self._jobs.get((queue, entry.job_id))
            if known is not None and entry.unique and known.state is JobState.DONE:
                known = None
            if known is not None and not entry.unique and known.payload != kept:
                raise JobConflictError(known.id, queue)
            job = known if known is not None else Job(
                id=entry.job_id,
                payload=kept,
                priority=entry.priority,
                max_attempts=entry.max_attempts or conf.queue_settings(queue).max_attempts,
                available_at=now if entry.due is None else max(now, entry.due),
                enqueued_at=now,
                visibility_timeout=entry.visibility_timeout,
            )  # fmt: skip
            if known is None:
                new[job.id] = job
            jobs.append(replace(job, created=known is None))
        for job in new.values():
            self._jobs[queue, job.id] = job
            while len(self._jobs) > MOST:
                self._jobs.popitem(last=False)
        return jobs

    def get(self, queue: str, job_id: str) -> Job:
        """A copy of a job.

        Raises:
            JobNotFoundError: it is not there.
        """
        job = self._jobs.get((queue, job_id))
        if job is None:
            raise JobNotFoundError(job_id, queue)
        return replace(job, created=False)

    def ids(self) -> list[str]:
        """Of all jobs, oldest first."""
        return [job_id for _, job_id in self._jobs]

    def run(self, queue: str, job_id: str) -> Job:
        """Run a job in this thread, whatever time it was to wait for, and return how it stands then.

        Raises:
            KeyboardInterrupt: somebody wants to stop the program, not the task.
        """
        from .execution import as_ended, perform_here

        key = queue, job_id
        job = replace(self._jobs[key], state=JobState.LEASED, attempts=1, max_attempts=1, started_at=time.time())
        self._jobs[key] = job
        performed = perform_here(queue, job, self)
        ended = as_ended(job, performed.ended)
        assert ended is not None, "one attempt is all that there is"
        self._jobs[key] = ended
        if performed.interrupted:
            raise KeyboardInterrupt
        return replace(ended)

    def clear(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()


_immediate = Memory(runs=True)


def of_settings() -> Memory | None:
    """What takes the place of the queues while ``NOBROKER["IMMEDIATE"]`` is on, else None."""
    return _immediate if conf.get_settings().immediate else None


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in conf.READ_FROM:
        _immediate.clear()


setting_changed.connect(_forget, dispatch_uid="nobroker_django.memory")
