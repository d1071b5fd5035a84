"""The columns of the lists and the fields of a job's page: one method each, from a row to what is shown.

What stands in the row is shown from the row; payload, result and errors are read from the log (``records``), once a
page.
"""

from __future__ import annotations

import time

from django.contrib import admin
from django.utils.safestring import SafeString

from nobroker_django.engine.job import Job as EngineJob
from nobroker_django.engine.transitions import DEAD, DONE, LEASED, WAITING
from nobroker_django.engine.wording import count_of
from nobroker_django.models import Job

from . import records, showing


class JobColumns:
    """For a ``ModelAdmin`` of jobs."""

    @admin.display(description="job", ordering="key")
    def short_id(self, job: Job) -> str:
        """The id, on one line."""
        return showing.cell(job.job_id)

    @admin.display(description="task", ordering="task")
    def task_name(self, job: Job) -> str:
        """The task, or nothing for a payload that is no task's."""
        return showing.cell(job.task)

    @admin.display(description="arguments")
    def arguments(self, job: Job) -> str:
        """The beginning of the arguments."""
        return records.arguments(job)

    @admin.display(description="state", ordering="state")
    def state_name(self, job: Job) -> SafeString:
        """The state as people know it, at this moment."""
        return showing.state(state_of(job, time.time()))

    @admin.display(description="attempts", ordering="attempts")
    def attempts_of(self, job: Job) -> str:
        """Deliveries so far, and how many there may be."""
        return f"{job.attempts} of {job.max_attempts}"

    @admin.display(description="enqueued", ordering="seq")
    def enqueued(self, job: Job) -> str | SafeString:
        """When; the order is that of insertion, whatever the clock did."""
        return showing.moment(job.enqueued_at)

    @admin.display(description="due, running or finished")
    def changes(self, job: Job) -> str | SafeString:
        """What matters in this state: when it is due, for how long it has been running, when it ended."""
        if job.state in (DONE, DEAD):
            return showing.moment(job.finished_at)
        if job.state == LEASED and job.started_at is not None:
            return showing.run(job.started_at, job.extensions, time.time())
        return showing.moment(job.lease_deadline if job.state == LEASED else job.available_at)

    @admin.display(description="died", ordering="finished_at")
    def died(self, job: Job) -> str | SafeString:
        """When the last attempt failed."""
        return showing.moment(job.finished_at)

    @admin.display(description="last error", ordering="error_class")
    def error(self, job: Job) -> str:
        """Class and beginning of the message."""
        return showing.cell(f"{job.error_class or ''}: {job.last_error or ''}".strip(": "))

    @admin.display(description="job")
    def whole_id(self, job: Job) -> str:
        """The whole id."""
        return showing.printable(job.job_id)

    @admin.display(description="queue")
    def queue_name(self, job: Job) -> str:
        """The queue."""
        return job.queue

    @admin.display(description="payload")
    def payload(self, job: Job) -> str | SafeString:
        """The payload as JSON; or why it cannot be read."""
        full = self._full(job)
        return showing.warning(full) if isinstance(full, str) else showing.block(showing.as_json(full.payload))

    @admin.display(description="options")
    def meta(self, job: Job) -> str | SafeString:
        """What stands beside the payload."""
        full = self._full(job)
        return showing.NOTHING if isinstance(full, str) or not full.meta else showing.block(showing.as_json(full.meta))

    @admin.display(description="result")
    def result(self, job: Job) -> str | SafeString:
        """What the task returned."""
        full = self._full(job)
        if isinstance(full, str) or job.state != DONE:
            return showing.NOTHING
        return showing.block(showing.as_json(full.result))

    @admin.display(description="failed attempts")
    def error_history(self, job: Job) -> str | SafeString:
        """The failed attempts that are kept, the last one first."""
        full = self._full(job)
        return showing.NOTHING if isinstance(full, str) else showing.errors(full.errors)

    @admin.display(description="enqueued")
    def enqueued_exactly(self, job: Job) -> str | SafeString:
        """When it was enqueued."""
        return showing.moment(job.enqueued_at, exact=True)

    @admin.display(description="due")
    def due(self, job: Job) -> str | SafeString:
        """From when on it may be, or might have been, leased."""
        return showing.moment(job.available_at, exact=True)

    @admin.display(description="running since")
    def running_since(self, job: Job) -> str | SafeString:
        """When the attempt began that runs now, and how long that is."""
        if job.state != LEASED or job.started_at is None:
            return showing.NOTHING
        return showing.since(job.started_at, time.time())

    @admin.display(description="lease extended")
    def extended(self, job: Job) -> str | SafeString:
        """How often the current lease was extended."""
        return count_of(job.extensions, "time") if job.state == LEASED else showing.NOTHING

    @admin.display(description="leased until")
    def lease_until(self, job: Job) -> str | SafeString:
        """When the lease ends."""
        return showing.moment(job.lease_deadline, exact=True)

    @admin.display(description="finished")
    def finished(self, job: Job) -> str | SafeString:
        """When it was done or died."""
        return showing.moment(job.finished_at, exact=True)

    @admin.display(description="kept until")
    def kept_until(self, job: Job) -> str | SafeString:
        """From when on a compaction may drop it."""
        return showing.moment(job.keep_until, exact=True)

    @admin.display(description="visibility timeout")
    def lease_length(self, job: Job) -> str:
        """How long its leases last, if it is not what the worker asks for."""
        return showing.NOTHING if job.visibility_timeout is None else f"{job.visibility_timeout:g} s"

    @admin.display(description="offset of its record")
    def place(self, job: Job) -> str:
        """Where ``nobroker_inspect`` shows it."""
        return showing.bytes_of(job.payload_offset)

    @admin.display(description="lease token")
    def token(self, job: Job) -> str:
        """The fencing token of the current lease."""
        return job.lease_token if job.state == LEASED and job.lease_token else showing.NOTHING

    def _full(self, job: Job) -> EngineJob | str:
        """The job with its records, read once a page."""
        found: EngineJob | str | None = job.__dict__.get("_nobroker_full")
        if found is None:
            found = job.__dict__["_nobroker_full"] = records.full(job)
        return found


def state_of(job: Job, now: float) -> str:
    """The state of a row at a moment (Unix seconds)."""
    if job.state == WAITING and job.available_at > now:
        return "delayed"
    return {LEASED: "leased", DONE: "done", DEAD: "dead"}.get(job.state, "ready")
