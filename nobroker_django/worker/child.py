"""One worker process: imports the tasks, opens the queues, runs the threads, obeys the supervisor.

Invariant: it ends with an exit code of ``options``, and what it leased is finished, given back, or left to its
deadline only if the process is killed. The main thread does nothing but wait for signals, orders and the end.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from typing import TextIO

from nobroker_django.discovery import discover
from nobroker_django.engine.errors import CorruptLogError, NobrokerError
from nobroker_django.engine.queue import Queue
from nobroker_django.queues import get_queue

from .budget import Budget
from .console import Console
from .damaged import Damaged
from .fetcher import Fetcher
from .heartbeat import Heartbeat
from .options import EXIT_DAMAGE, EXIT_GIVEN_BACK, EXIT_REFUSED, EXIT_STOPPED, WorkerOptions
from .shutdown import NOW, STOP_SIGNALS, SignalPipe, read_available, wait_readable


class Child:
    """Runs in the forked process. ``orders`` is the reading end of the supervisor's pipe to it."""

    def __init__(
        self,
        number: int,
        options: WorkerOptions,
        budget: Budget,
        damaged: Damaged,
        orders: int,
        stream: TextIO | None,
    ) -> None:
        self._options = options
        self._budget = budget
        self._damaged = damaged
        self._orders = orders
        self._console = Console(stream, prefix=f"worker {number} (pid {os.getpid()})", verbosity=options.verbosity)

    def run(self) -> int:
        """Work until told to stop or nothing is left; returns the exit code."""
        signals = SignalPipe(STOP_SIGNALS)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            discover()
            queues = self._open_queues()
        except Exception as error:
            if not isinstance(error, NobrokerError):
                traceback.print_exc()  # of the project's own modules
            self._console.warning(f"cannot start: {type(error).__name__}: {error}")
            return EXIT_REFUSED
        if not queues:
            self._console.warning("cannot start: no queue is left to work on")
            return EXIT_DAMAGE

        done, done_write = os.pipe()
        heartbeat = Heartbeat(self._console)
        fetcher = Fetcher(
            queues,
            self._options,
            self._budget,
            self._damaged,
            heartbeat,
            self._console,
            finished=lambda: os.close(done_write),
        )
        heartbeat.start()
        fetcher.start()
        self._console.line(
            f"ready for {', '.join(queue.name for queue in queues)} with {self._options.threads} threads"
        )
        code = self._attend(signals, done, fetcher, heartbeat)
        counts = ", ".join(f"{count} {outcome.value}" for outcome, count in fetcher.counts.items() if count)
        self._console.line(f"stopped: {counts or 'no jobs'}")
        return code

    def _open_queues(self) -> list[Queue]:
        """The queues, without those that are damaged.

        Raises:
            NobrokerError: one of them cannot be opened for another reason.
        """
        queues = []
        for name in self._options.queues:
            try:
                queues.append(get_queue(name))
            except CorruptLogError as error:
                self._damaged.add(name)
                self._console.warning(f"{name}: this queue is damaged and is not worked on: {error}")
        return queues

    def _attend(self, signals: SignalPipe, done: int, fetcher: Fetcher, heartbeat: Heartbeat) -> int:
        """Wait for the end of the work, a signal or an order."""
        watched = {signals.fd, self._orders, done}
        grace_ends: float | None = None
        while True:
            ready = wait_readable(watched, None if grace_ends is None else grace_ends - time.monotonic())
            if done in ready:
                return fetcher.exit_code
            stop = bool(signals.read()) if signals.fd in ready else False
            if self._orders in ready:
                orders = read_available(self._orders)
                if NOW in orders:
                    return self._give_back(fetcher, heartbeat)
                if not orders:
                    watched.discard(self._orders)  # the supervisor is gone
                stop = True
            if stop and grace_ends is None:
                fetcher.stop()
                grace_ends = time.monotonic() + self._options.grace
                running = len(heartbeat.held())
                if running:
                    self._console.line(f"stopping: {running} running, up to {self._options.grace:g} s to finish")
            if grace_ends is not None and time.monotonic() >= grace_ends:
                return self._give_back(fetcher, heartbeat)

    def _give_back(self, fetcher: Fetcher, heartbeat: Heartbeat) -> int:
        """End now: release what still runs, so that others can take it at once."""
        code = EXIT_STOPPED
        fetcher.stop_leasing()
        running = heartbeat.held()
        for held in running:
            name = f"{held.queue.name}: job {held.job.id}"
            try:
                lost = held.queue.release([held.job])
            except NobrokerError as error:
                code = EXIT_GIVEN_BACK
                self._console.warning(f"{name} could not be given back; it comes back when its lease ends: {error}")
            else:
                # Lost: it ended in this very moment, and its outcome is in the queue.
                if not lost:
                    code = EXIT_GIVEN_BACK
                    self._console.line(f"{name} was stopped while running and given back")
        fetcher.wait_for_records(len(running))
        return code
