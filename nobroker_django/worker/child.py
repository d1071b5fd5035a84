"""One worker process: imports the tasks, opens the queues, runs the jobs, obeys the supervisor.

Invariant: it ends with an exit code of ``options``, and what it leased is finished or given back; if it is killed, the
supervisor, or whoever works on the queue next, takes it back. As long as there is work, the main thread does nothing
but wait for signals, orders and the end.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from nobroker_django import conf
from nobroker_django.discovery import TasksImportError, discover
from nobroker_django.engine.clock import Deadline
from nobroker_django.engine.errors import CorruptLogError, NobrokerError
from nobroker_django.engine.liveness import Liveness, Unregistered
from nobroker_django.engine.wording import count_of
from nobroker_django.queues import open_queue

from .budget import Budget
from .clerk import Clerk
from .console import Console
from .damaged import Damaged
from .desk import Desk
from .guards import Guards
from .notices import Notices
from .options import EXIT_DAMAGE, EXIT_GIVEN_BACK, EXIT_REFUSED, EXIT_STOPPED, WorkerOptions
from .places import Places
from .shutdown import LOOK, NOW, STOP, STOP_SIGNALS, SignalPipe, read_available, wait_readable
from .tally import Tally
from .waiting import Waiting

EXIT_SECONDS = 5.0
"""So long the functions may take that the process has registered with ``atexit``."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a child gets from its supervisor: the reading end of its orders, the writing end of its notices, its names
    in the queues, and what all children share."""

    orders: int
    notices: int
    liveness: Mapping[str, Liveness | Unregistered]
    budget: Budget
    damaged: Damaged
    waiting: Waiting


class Child:
    """Runs in the forked process."""

    def __init__(self, number: int, options: WorkerOptions, inherited: Inheritance, stream: TextIO | None) -> None:
        self._number = number
        self._options = options
        self._inherited = inherited
        self._console = Console(stream, prefix=f"worker {number} (pid {os.getpid()})", verbosity=options.verbosity)
        self._tally = Tally(self._console)

    def run(self) -> int:
        """Work until told to stop or nothing is left; returns the exit code."""
        signals = SignalPipe(STOP_SIGNALS)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        atexit._clear()  # what was registered so far is the parent's to run, as with ``multiprocessing``
        for liveness in self._inherited.liveness.values():
            liveness.adopt()
        try:
            discover()
            desks = self._open_desks()
        except TasksImportError as error:
            traceback.print_exception(error.__cause__)  # of the project's own modules
            self._console.warning(f"cannot start: {error}")
            return EXIT_REFUSED
        except Exception as error:
            if not isinstance(error, NobrokerError):
                traceback.print_exc()
            self._console.warning(f"cannot start: {type(error).__name__}: {error}")
            return EXIT_REFUSED
        if not desks:
            self._console.warning("cannot start: no queue is left to work on")
            return EXIT_DAMAGE

        # A byte, not the end of the pipe: that may be held open by a process that a task has forked.
        done, done_write = os.pipe()
        notices = Notices(self._inherited.notices)
        clerk = Clerk(
            list(desks),
            Places(self._options.threads, self._options.coroutines),
            Guards(notices),
            self._options,
            self._inherited.budget,
            self._inherited.damaged,
            self._console,
            finished=partial(os.write, done_write, b"x"),
        )
        if wait_readable({signals.fd, self._inherited.orders}, 0.0):
            clerk.stop()  # told to stop, or left alone, before it has begun
        clerk.start()
        notices.ready()
        self._console.line(
            f"ready for {', '.join(desk.name for desk in desks)} with {count_of(self._options.threads, 'thread')}"
        )
        code = self._attend(signals, done, clerk)
        self._console.line(f"stopped: {self._tally.text()}")
        if not clerk.running:  # of a task that still runs nobody knows what it holds
            self._run_exit_functions()
        return code

    def _run_exit_functions(self) -> None:
        """Call what was registered with ``atexit`` in this process; not for ever, and not if it is to end now."""
        ended, end = os.pipe()

        def run() -> None:
            atexit._run_exitfuncs()
            logging.shutdown()
            os.write(end, b"x")

        threading.Thread(target=run, name="nobroker-exit", daemon=True).start()
        watched, deadline = {ended, self._inherited.orders}, Deadline(EXIT_SECONDS)
        while ended not in (ready := wait_readable(watched, deadline.left())):
            heard = read_available(self._inherited.orders) if ready else b""
            if NOW in heard or deadline.passed():
                self._console.warning("functions registered with atexit were still running when the process ended")
                return
            if ready and not heard:
                watched.discard(self._inherited.orders)  # the supervisor is gone

    def _open_desks(self) -> list[Desk]:
        """The queues, without those that are damaged.

        Raises:
            NobrokerError: one of them cannot be opened for another reason.
        """
        desks = []
        for name in self._options.queues:
            holder = self._inherited.liveness[name].holder
            try:
                # Not the object that tasks get: they may close theirs.
                queue = open_queue(name, conf.queue_settings(name))
            except CorruptLogError as error:
                self._inherited.damaged.add(name)
                self._console.warning(f"{name}: this queue is damaged and is not worked on: {error}")
            else:
                say = partial(self._inherited.waiting.say, self._number, name)
                queue.tell_taken_back = partial(self._console.taken_back, name)
                desks.append(Desk(queue, holder, self._console, self._tally, say))
        return desks

    def _attend(self, signals: SignalPipe, done: int, clerk: Clerk) -> int:
        """Wait for the end of the work, a signal or an order."""
        orders = self._inherited.orders
        watched = {signals.fd, orders, done}
        grace_ends: float | None = None
        while True:
            ready = wait_readable(watched, None if grace_ends is None else grace_ends - time.monotonic())
            if done in ready:
                return clerk.exit_code
            stop = bool(signals.read()) if signals.fd in ready else False
            if orders in ready:
                heard = read_available(orders)
                if NOW in heard:
                    return self._leave(clerk)
                if not heard:
                    watched.discard(orders)  # the supervisor is gone
                    clerk.left_alone()
                if LOOK in heard:
                    clerk.look()
                stop = stop or not heard or STOP in heard
            if stop and grace_ends is None:
                running = clerk.running
                clerk.stop()
                grace_ends = time.monotonic() + self._options.grace
                if running:
                    self._console.line(f"stopping: {running} running, up to {self._options.grace:g} s to finish")
            if grace_ends is not None and time.monotonic() >= grace_ends:
                return self._leave(clerk)

    def _leave(self, clerk: Clerk) -> int:
        """End now: what still runs is given back, so that others can take it at once."""
        clerk.leave()
        return EXIT_GIVEN_BACK if clerk.given_back else EXIT_STOPPED
