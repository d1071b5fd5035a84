"""Running jobs in threads of this process: lease, call the handler, ack or nack.

A handler that raises anything is a failed attempt, never the end of the worker. While a handler runs its lease is
extended, by one heartbeat thread for all; when the process is killed, its jobs come back at once (see ``liveness``);
another thread compacts the queue when that pays.
``manage.py nobroker_work`` builds on processes instead.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

from . import options
from .clock import Deadline
from .errors import InvalidOptionError, JobNotFoundError, LockTimeoutError, NobrokerError, NotLeasedError
from .job import Job, JobState
from .queue import Queue
from .thresholds import CompactionPolicy
from .upkeep import Upkeep

logger = logging.getLogger("nobroker_django")
_LONGEST_WAIT = 3600.0
_DEFAULT_COMPACTION = CompactionPolicy()


@dataclass(slots=True)
class WorkerStats:
    """What a worker did: deliveries taken, and how they ended. ``lost_leases`` finished too late to count."""

    leased: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    lost_leases: int = 0

    def to_dict(self) -> dict[str, int]:
        """The counts as a dictionary of JSON values."""
        return asdict(self)


@dataclass(slots=True)
class _Running:
    queue: Queue
    job: Job
    seconds: float
    lost: bool = False
    wait: Deadline = field(init=False)

    def __post_init__(self) -> None:
        self.wait = Deadline(self.seconds / 3)


class Heartbeat:
    """One thread that extends the leases of running jobs, each after a third of its length."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def beating(self, queue: Queue, job: Job, seconds: float) -> Iterator[None]:
        """Keep the lease of ``job``, which lasts ``seconds``, alive until the end of the block."""
        key = job.lease_token or job.id
        with self._changed:
            self._running[key] = _Running(queue, job, seconds)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nobroker-heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._running.pop(key, None)

    def jobs(self) -> list[tuple[Queue, Job]]:
        """The jobs that are running now, with their queues."""
        with self._changed:
            return [(entry.queue, entry.job) for entry in self._running.values()]

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                waits = [entry.wait.left() for entry in self._running.values() if not entry.lost]
                self._changed.wait(min(*waits, _LONGEST_WAIT) if waits else None)
                if self._stopped:
                    return
                late = [entry for entry in self._running.values() if not entry.lost and entry.wait.passed()]
            for entry in late:
                self._extend(entry)

    def _extend(self, entry: _Running) -> None:
        entry.wait = Deadline(entry.seconds / 3)
        try:
            # The new deadline lies one lease length from now, not from the old deadline.
            deadline = entry.job.lease_deadline or 0.0
            more = entry.queue.now() + entry.seconds - deadline
            if more > 0:
                entry.job.lease_deadline = entry.queue.extend(entry.job, more).lease_deadline
        except (NotLeasedError, JobNotFoundError):
            entry.lost = True
            logger.warning(
                "job %s: the lease was lost while the job was running; its outcome will not count", entry.job.id
            )
        except NobrokerError as error:
            logger.warning("job %s: the lease could not be extended: %s", entry.job.id, error)


class Worker:
    """Threads that run the jobs of one queue.

    Args:
        queue: where from.
        handler: called with each ``Job``; returning is success, raising is a failed attempt.
        concurrency: number of threads.
        poll_interval: seconds between looks at an empty queue, at the most.
        max_jobs: stop after this many deliveries.
        idle_timeout: stop after this many seconds without a job, and one more look in vain.
        handle_signals: in the main thread, let SIGINT and SIGTERM stop the worker; a second one acts as usual.
        compaction: when to compact the queue, in a thread of its own; ``None``: never.

    Raises:
        InvalidOptionError: an option is not valid.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Callable[[Job], Any],
        *,
        concurrency: int = 1,
        poll_interval: float = 0.1,
        max_jobs: int | None = None,
        idle_timeout: float | None = None,
        handle_signals: bool = True,
        compaction: CompactionPolicy | None = _DEFAULT_COMPACTION,
    ) -> None:
        if not callable(handler):
            raise InvalidOptionError("handler", f"something callable is needed, not {handler!r}")
        self.queue = queue
        self.handler = handler
        self.concurrency = options.integer("concurrency", concurrency, least=1, most=10_000)
        self.poll_interval = options.seconds("poll_interval", poll_interval, zero=False)
        self.max_jobs = None if max_jobs is None else options.integer("max_jobs", max_jobs, least=0)
        self.idle_timeout = None if idle_timeout is None else options.seconds("idle_timeout", idle_timeout)
        self.handle_signals = handle_signals
        self.stats = WorkerStats()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._reserved = 0
        self._busy = 0
        self._idle = Deadline(0.0)
        self._error: BaseException | None = None
        self._heartbeat = Heartbeat()
        self._holder: str | None = None
        if not isinstance(compaction, CompactionPolicy | None):
            raise InvalidOptionError("compaction", f"a CompactionPolicy or None is needed, not {compaction!r}")
        self.compaction = compaction

    def stop(self) -> None:
        """Take no new job; ``run`` returns when the running ones have ended. Callable from any thread."""
        self._stop.set()

    def run(self) -> WorkerStats:
        """Work until stopped; what was done.

        Raises:
            NobrokerError: the queue cannot be used any more (damaged, disk failure).
        """
        self._idle = Deadline(self.idle_timeout or 0.0)
        with self._alive():
            self._run()
        return self.stats

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Let others know that this worker lives: when its process is killed, its jobs come back at once."""
        try:
            liveness = self.queue._register_worker()
        except OSError as error:
            logger.warning("when this worker is killed, its jobs come back by their deadlines alone: %s", error)
            yield
            return
        liveness.adopt()
        self._holder = liveness.holder
        try:
            yield
        finally:
            self._holder = None
            liveness.close()

    def _run(self) -> None:
        threads = [
            threading.Thread(target=self._work, name=f"nobroker-worker-{number}") for number in range(self.concurrency)
        ]
        upkeep = None if self.compaction is None else Upkeep(self.queue, self.compaction)
        with self._signals():
            for thread in threads:
                thread.start()
            if upkeep is not None:
                upkeep.start()
            try:
                for thread in threads:
                    while thread.is_alive():
                        thread.join(0.5)
            except BaseException:
                self.stop()
                self._give_back()
                raise
            finally:
                if upkeep is not None:
                    upkeep.stop()
        self._heartbeat.stop()
        if self._error is not None:
            raise self._error

    def _give_back(self) -> None:
        """A second signal ended the wait: the running jobs are somebody else's from now on."""
        for queue, job in self._heartbeat.jobs():
            try:
                queue.release([job])
            except NobrokerError as error:
                logger.warning("job %s: the lease could not be given back: %s", job.id, error)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                if not self._reserve():
                    return
                idle_since = self._idle_since()
                try:
                    jobs = self.queue._lease_as(self._holder, 1, timeout=self.poll_interval)
                except LockTimeoutError as error:
                    logger.warning("no job could be leased, trying again: %s", error)
                    jobs, idle_since = [], None
                if not jobs:
                    self._unreserve(idle_since)
                    continue
                self._run_one(jobs[0])
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self.stop()

    def _reserve(self) -> bool:
        """Whether one more job may be leased."""
        with self._lock:
            if self.max_jobs is not None and self._reserved >= self.max_jobs:
                return False
            self._reserved += 1
            return True

    def _idle_since(self) -> int | None:
        """How many jobs were taken when the idle time was over, or None: it is not over, or something runs."""
        with self._lock:
            over = self.idle_timeout is not None and self._busy == 0 and self._idle.passed()
            return self.stats.leased if over else None

    def _unreserve(self, idle_since: int | None) -> None:
        """A look in vain: it ends the worker if it began after the idle time, with no job taken since."""
        with self._lock:
            self._reserved -= 1
            if self.stats.leased == idle_since:
                self._stop.set()

    def _run_one(self, job: Job) -> None:
        with self._lock:
            self.stats.leased += 1
            self._busy += 1
        seconds = job.visibility_timeout or self.queue.visibility_timeout
        try:
            error: BaseException | None = None
            with self._heartbeat.beating(self.queue, job, seconds):
                process = os.getpid()
                try:
                    self.handler(job)
                except BaseException as raised:
                    error = raised
                if os.getpid() != process:
                    os._exit(1)  # a child that the handler forked and let run on: the job is its parent's
            self._finish(job, error)
        finally:
            with self._lock:
                self._busy -= 1
                self._idle = Deadline(self.idle_timeout or 0.0)

    def _finish(self, job: Job, error: BaseException | None) -> None:
        """Record how a delivery ended."""
        try:
            if error is None:
                self.queue.ack(job)
                counted = "succeeded"
            else:
                logger.warning(
                    "job %s: attempt %d of %d failed", job.id, job.attempts, job.max_attempts, exc_info=error
                )
                counted = "dead" if self.queue.nack(job, error=error).state is JobState.DEAD else "failed"
        except (NotLeasedError, JobNotFoundError) as lost:  # delivered again, or purged
            logger.warning("job %s finished too late: %s", job.id, lost)
            counted = "lost_leases"
        except LockTimeoutError as late:
            logger.warning(
                "job %s ended, but that could not be recorded; it comes back after its lease: %s", job.id, late
            )
            return
        with self._lock:
            setattr(self.stats, counted, getattr(self.stats, counted) + 1)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop the worker; after the first one they mean what they meant before."""
        if not self.handle_signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.stop()
            restore()

        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, on_signal)
        try:
            yield
        finally:
            restore()
