"""From the queues to the threads of one process.

Invariant: a job is leased only when a thread is free to start it at once, so every lease that is taken is a
delivery that begins. One thread asks the queues for all others (an idle process has one poller, however many
threads it has). Several queues take turns (``turns``). One that is damaged is left alone, and the others go on.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from nobroker_django.engine.errors import CorruptLogError, NobrokerError, QueueClosedError
from nobroker_django.engine.job import Job
from nobroker_django.engine.queue import Queue
from nobroker_django.execution import Outcome, Report, execute

from .budget import Budget
from .console import Console
from .damaged import Damaged
from .heartbeat import Heartbeat
from .options import EXIT_BROKEN, EXIT_DAMAGE, EXIT_FINISHED, EXIT_STOPPED, WorkerOptions
from .turns import Turns

IDLE_WAIT = 0.2
"""Seconds that one look into the queues waits for a job, and so how late a stop may be noticed."""
SETTLING = 2.0
"""Seconds that an immediate end leaves to calls into the queue that are under way."""


class Fetcher:
    """Leases, hands out, counts. ``finished`` is called, from its thread, when no job runs any more."""

    def __init__(
        self,
        queues: list[Queue],
        options: WorkerOptions,
        budget: Budget,
        damaged: Damaged,
        heartbeat: Heartbeat,
        console: Console,
        finished: Callable[[], None],
    ) -> None:
        self._turns = Turns(queues)
        self._options = options
        self._budget = budget
        self._damaged = damaged
        self._heartbeat = heartbeat
        self._console = console
        self._finished = finished
        self._allowed = 0  # taken from the budget and not yet used
        self._stopping = False
        self._running = 0
        self._changed = threading.Condition()
        self._work: SimpleQueue[tuple[Queue, Job]] = SimpleQueue()
        self._leasing_ended = threading.Event()
        self.counts = dict.fromkeys(Outcome, 0)
        self.exit_code = EXIT_BROKEN

    def start(self) -> None:
        """Start the threads (after the fork)."""
        for number in range(self._options.threads):
            threading.Thread(target=self._perform, name=f"nobroker-job-{number + 1}", daemon=True).start()
        threading.Thread(target=self._run, name="nobroker-fetcher", daemon=True).start()

    def stop(self) -> None:
        """Lease nothing more; running jobs go on."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self.exit_code = self._fetch()
        except QueueClosedError as error:
            self._console.warning(f"a task has closed a queue of this process, which ends now: {error}")
        except Exception as error:
            self._console.warning(f"the process ends because of a fault: {type(error).__name__}: {error}")
        self._leasing_ended.set()
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: self._running == 0)
        self._finished()

    def stop_leasing(self) -> None:
        """Stop, and wait (not for ever) until no lease is being taken, so that what is held is all there is."""
        self.stop()
        self._leasing_ended.wait(SETTLING)

    def wait_for_records(self, unfinished: int) -> None:
        """Wait (not for ever) until what has ended is recorded, all but ``unfinished`` jobs that still run."""
        with self._changed:
            self._changed.wait_for(lambda: self._running <= unfinished, SETTLING)

    def _fetch(self) -> int:
        """Lease and hand out until there is a reason to end; returns the exit code for it."""
        last_job = time.monotonic()
        patience = 0.0 if self._options.drain else self._options.idle_timeout
        if patience is None:
            patience = math.inf
        while (free := self._wait_for_free_thread()) is not None:
            self._allowed += self._budget.take(free - self._allowed) if free > self._allowed else 0
            if self._allowed == 0:
                return EXIT_FINISHED
            # Before the look: what runs now may put a job into a queue behind it, and have ended when it returns.
            running = self._running
            queue, jobs = self._lease(min(free, self._allowed))
            if queue is not None:
                self._hand_out(queue, jobs)
                last_job = time.monotonic()
            elif not self._turns:
                self._console.warning("no queue is left to work on, nothing more is leased")
                return EXIT_DAMAGE
            elif running or self._turns.resting:
                last_job = time.monotonic()
                if self._options.drain:
                    self._wait_for_fewer(running)
            elif time.monotonic() - last_job >= patience:
                return EXIT_FINISHED
        return EXIT_STOPPED

    def _wait_for_free_thread(self) -> int | None:
        """How many threads have nothing to do, once one has; None when stopping."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._running < self._options.threads)
            return None if self._stopping else self._options.threads - self._running

    def _wait_for_fewer(self, running: int) -> None:
        """Until less than that runs, or for a moment: another process may put work in."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._running < running, IDLE_WAIT)

    def _lease(self, count: int) -> tuple[Queue | None, list[Job]]:
        """Jobs of the first queue in turn that has any; waits up to ``IDLE_WAIT`` seconds when none has."""
        line = self._turns.now()
        if not line and self._turns:
            self._wait(IDLE_WAIT)
        wait = 0.0 if self._options.drain or not line else IDLE_WAIT / len(line)
        for waiting in (0.0, wait) if len(line) > 1 and wait else (wait,):
            for queue in tuple(line):
                jobs = self._ask(queue, count, waiting)
                if jobs is None:
                    line.remove(queue)
                elif jobs:
                    return queue, jobs
                if self._stopping:
                    return None, []
        return None, []

    def _ask(self, queue: Queue, count: int, waiting: float) -> list[Job] | None:
        """Jobs of one queue; ``None`` when it failed."""
        try:
            jobs = queue.lease(count, timeout=waiting)
        except QueueClosedError:
            raise
        except CorruptLogError as error:
            self._damaged.add(queue.name)
            self._turns.drop(queue)
            self._console.warning(f"{queue.name}: this queue is damaged and is not worked on any more: {error}")
        except NobrokerError as error:
            pause = self._turns.failed(queue)
            self._console.warning(f"{queue.name}: no job could be leased, trying again in {pause:g} s: {error}")
        else:
            self._turns.answered(queue, had_jobs=bool(jobs))
            return jobs
        return None

    def _wait(self, seconds: float) -> None:
        """That long, or until the work is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    def _hand_out(self, queue: Queue, jobs: list[Job]) -> None:
        with self._changed:
            stopping = self._stopping
            if not stopping:
                self._running += len(jobs)
        if stopping:
            # The stop came while the lease was taken: nothing of it has begun.
            try:
                queue.release(jobs)
            except NobrokerError as error:
                self._console.warning(
                    f"{queue.name}: {len(jobs)} jobs could not be given back; they come back when their leases end: "
                    f"{error}"
                )
            return
        self._allowed -= len(jobs)
        for job in jobs:
            length = job.visibility_timeout if job.visibility_timeout is not None else queue.visibility_timeout
            self._heartbeat.track(queue, job, length)
            self._work.put((queue, job))

    def _perform(self) -> None:
        """A thread: run what is handed out, for ever."""
        while True:
            queue, job = self._work.get()
            report: Report | None = None
            try:
                report = execute(queue, job, before_recording=partial(self._heartbeat.untrack, job))
                self._console.job(queue.name, report)
            except BaseException as error:
                # Nothing of the user's can end up here; the lease will end and the job come back.
                self._console.warning(f"job {job.id}: {type(error).__name__} in the worker itself: {error}")
            finally:
                self._heartbeat.untrack(job)
                with self._changed:
                    if report is not None:
                        self.counts[report.outcome] += 1
                    self._running -= 1
                    self._changed.notify_all()
                del queue, job
