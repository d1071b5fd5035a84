"""Extends the leases of the jobs that run in this process, each three times within its length.

Invariant: a job is extended from ``track`` to ``untrack`` and not after. Time is the monotonic clock: a jump of
the wall clock stops no heartbeat. A lease that is lost is reported once and left alone; the task goes on, and the
queue refuses its outcome. (A task that holds the interpreter's lock in C code stops this thread too.)
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from nobroker_django.engine.errors import JobNotFoundError, NobrokerError, NotLeasedError
from nobroker_django.engine.job import Job
from nobroker_django.engine.queue import Queue

from .console import Console

BEATS_PER_LEASE = 3
LONGEST_PAUSE = 3600.0
"""Seconds: what a condition can wait for is limited by the platform."""


@dataclass(slots=True, eq=False)
class Held:
    """A running job and when its lease is to be extended (monotonic seconds)."""

    queue: Queue
    job: Job
    length: float
    due: float
    key: int


class Heartbeat:
    """One thread a process."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._changed = threading.Condition()
        self._held: dict[int, Held] = {}
        self._lost: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="nobroker-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread (after the fork)."""
        self._thread.start()

    def track(self, queue: Queue, job: Job, length: float) -> None:
        """Extend the job's lease by ``length`` seconds again and again from now on."""
        with self._changed:
            due = time.monotonic() + length / BEATS_PER_LEASE
            self._held[id(job)] = Held(queue, job, length, due, id(job))
            self._changed.notify()

    def untrack(self, job: Job) -> None:
        """Stop extending: the job's outcome is about to be recorded."""
        with self._changed:
            self._held.pop(id(job), None)
            self._lost.discard(id(job))

    def held(self) -> list[Held]:
        """The jobs that are tracked now and whose lease is not known to be lost."""
        with self._changed:
            return [held for key, held in self._held.items() if key not in self._lost]

    def _run(self) -> None:
        while True:
            with self._changed:
                active = [held for key, held in self._held.items() if key not in self._lost]
                pause = min((held.due for held in active), default=None)
                now = time.monotonic()
                if pause is None or pause > now:
                    self._changed.wait(None if pause is None else min(pause - now, LONGEST_PAUSE))
                    continue
                due = [held for held in active if held.due <= now]
            for held in due:
                self._beat(held)

    def _beat(self, held: Held) -> None:
        held.due = time.monotonic() + held.length / BEATS_PER_LEASE
        # extend() counts from the deadline: ask for what makes the lease last its full length from now, no more.
        deadline = held.job.lease_deadline or 0.0
        missing = min(held.length, max(0.0, time.time() + held.length - deadline))
        try:
            held.job = held.queue.extend(held.job, missing)
        except (NotLeasedError, JobNotFoundError) as error:
            with self._changed:
                if self._held.get(held.key) is not held:
                    return  # finished meanwhile: nothing was lost
                self._lost.add(held.key)
            self._console.warning(f"{held.queue.name}: the lease of job {held.job.id} was lost while it runs: {error}")
        except NobrokerError as error:
            # Two more beats lie within the lease.
            self._console.warning(f"{held.queue.name}: the lease of job {held.job.id} could not be extended: {error}")
