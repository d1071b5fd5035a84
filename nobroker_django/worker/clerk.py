"""The one thread of a worker process that talks to the queues: fetches, begins, records.

Invariant: nothing is run that the queue has not recorded as begun, and of what is recorded as begun nothing is left
lying. What was fetched and finds no free place soon is given back, so that an idle process can have it.

It sleeps on descriptors: the end of a job, an order of the process (both through a pipe), the bells of the queues.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from nobroker_django.engine.bell import SAFETY_SECONDS
from nobroker_django.engine.clock import Deadline
from nobroker_django.engine.errors import CorruptLogError, NobrokerError, QueueClosedError
from nobroker_django.engine.job import Job
from nobroker_django.engine.wording import count_of
from nobroker_django.execution import Performed, is_coroutine

from .budget import Budget
from .confirming import Confirming
from .console import Console
from .damaged import Damaged
from .desk import Desk
from .guards import Guards
from .memory import resident_bytes
from .options import EXIT_BROKEN, EXIT_DAMAGE, EXIT_FINISHED, EXIT_RECYCLED, EXIT_STOPPED, WorkerOptions
from .places import Places
from .shutdown import read_available, wait_readable

POLL_SECONDS = 0.05
"""How often an idle process looks into its queues where no bell can be had."""
UNTOLD_SECONDS = 10.0
"""How often where there is one. Its supervisor looks once a second, and tells it; but that may have been stopped."""
STALE_SECONDS = 0.05
"""What was fetched and is not begun after so long is given back."""
AHEAD_SECONDS = 0.02
"""So much work, going by the last jobs, is fetched beyond the free places."""
MOST_AHEAD = 100
SETTLING = 2.0
"""Seconds that an immediate end leaves to what is under way."""


class Clerk:
    """``finished`` is called, from its thread, when nothing runs any more and everything is recorded."""

    def __init__(
        self,
        desks: list[Desk],
        places: Places,
        guards: Guards,
        options: WorkerOptions,
        budget: Budget,
        damaged: Damaged,
        console: Console,
        finished: Callable[[], object],
    ) -> None:
        self._desks = desks
        self._places = places
        self._guards = guards
        self._options = options
        self._budget = budget
        self._damaged = damaged
        self._console = console
        self._finished = finished
        self._confirming = Confirming(console)
        self._inbox: deque[tuple[Desk, Performed]] = deque()
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ring, False)
        self._first = 0  # which queue is asked first
        self._allowed = 0  # taken from the budget and not yet used
        self._pace = AHEAD_SECONDS  # seconds that a job takes, going by the last ones
        self._ended = 0
        self._last_job = time.monotonic()
        self._code: int | None = None  # why nothing more is fetched
        self._leave_at_once = False
        self._told = False
        self._over = threading.Event()
        self._alone = False  # whether the supervisor is gone, which would extend the leases
        self._beat_seconds = min(SAFETY_SECONDS, *(desk.queue.visibility_timeout / 6 for desk in desks))
        self._beats = Deadline(0.0)
        self.exit_code = EXIT_BROKEN
        self.given_back = 0

    def start(self) -> None:
        """Start all threads (after the fork)."""
        self._places.start()
        self._confirming.start()
        threading.Thread(target=self._run, name="nobroker-clerk", daemon=True).start()

    def stop(self) -> None:
        """Fetch nothing more; running jobs go on. Callable from any thread."""
        self._stop(EXIT_STOPPED)

    def leave(self) -> None:
        """Give back what runs, and end at once. Returns when that is done, or after ``SETTLING`` seconds."""
        self._leave_at_once = True
        self._stop(EXIT_STOPPED)
        self._over.wait(SETTLING)

    def look(self) -> None:
        """Something was written to a queue, perhaps unheard. Callable from any thread."""
        self._told = True
        self._wake()

    def left_alone(self) -> None:
        """The supervisor is gone. Callable from any thread."""
        self._alone = True
        self._wake()

    @property
    def running(self) -> int:
        """How many jobs run now."""
        return self._places.running

    def _stop(self, code: int) -> None:
        if self._code is None:
            self._code = code
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._ring, b"x")
        except BlockingIOError:
            pass  # there is enough in it

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._collect()
                if self._alone and self._beats.passed():
                    self._beats = Deadline(self._beat_seconds)
                    self._beat()
                if not self._serve():
                    self._wait()
            self.exit_code = self._code if self._code is not None else EXIT_STOPPED
            if self._leave_at_once:
                self._give_back()
            self._confirming.wait(SETTLING)
        except QueueClosedError as error:
            self._console.warning(f"a queue of this process was closed, which ends now: {error}")
        except Exception as error:
            self._console.warning(f"the process ends because of a fault: {type(error).__name__}: {error}")
        self._over.set()
        self._finished()

    def _is_over(self) -> bool:
        if self._code is None:
            return False
        return self._leave_at_once or not (
            self._places.running or self._inbox or any(desk.ended or desk.fetched for desk in self._desks)
        )

    def _collect(self) -> None:
        """Take in what has ended, and what the process was told."""
        read_available(self._bell)
        if self._told:
            self._told = False
            for desk in self._desks:
                desk.told()
        some = bool(self._inbox)
        while self._inbox:
            desk, performed = self._inbox.popleft()
            self._places.left(performed.job)
            desk.finished(performed)
            self._pace += (performed.seconds - self._pace) / 8
            self._ended += 1
            self._last_job = time.monotonic()
        if some:
            for desk in self._desks:
                desk.place_is_free()
            if self._code is None and self._is_used_up():
                self._stop(EXIT_RECYCLED)

    def _is_used_up(self) -> bool:
        """Whether this process is to make room for a new one."""
        most = self._options.max_jobs_per_process
        if most is not None and self._ended >= most:
            self._console.line(f"{count_of(self._ended, 'job has run', 'jobs have run')}: a new process takes over")
            return True
        limit = self._options.max_memory
        used = resident_bytes() if limit is not None else None
        if limit is not None and used is not None and used > limit:
            self._console.line(f"{used / 1e6:.0f} MB are in use: a new process takes over")
            return True
        return False

    def _serve(self) -> bool:
        """One exchange with each queue that needs one; whether there was any."""
        did = False
        line = self._desks[self._first :] + self._desks[: self._first]
        for desk in line:
            if desk.rest:
                continue
            starting, returned, free = self._sort(desk)
            self._allowed -= len(starting)
            count, begin = self._appetite(desk, free)
            if not (desk.ended or starting or returned or count):
                continue
            begun = self._exchange(desk, starting, returned, count, begin)
            did = True
            if begun:
                self._last_job = time.monotonic()
                if not self._options.in_order:
                    self._first = (self._desks.index(desk) + 1) % len(self._desks)
        if not self._desks:
            self._console.warning("no queue is left to work on, nothing more is fetched")
            self._stop(EXIT_DAMAGE)
        elif self._code is None and not self._places.running:
            # What runs may put a job into a queue behind a look. It counts as running until it is collected, and that
            # is before the look that was had here.
            self._perhaps_finish()
        return did

    def _sort(self, desk: Desk) -> tuple[list[Job], list[Job], int]:
        """Of what was fetched: what begins now, and what is given back. Threads that are free then."""
        starting: list[Job] = []
        returned: list[Job] = []
        room = {kind: self._places.free(coroutine=kind) for kind in (False, True)}
        if not desk.fetched:
            return starting, returned, room[False]
        stale = time.monotonic() - STALE_SECONDS
        kept = deque(desk.fetched)
        desk.fetched.clear()
        for one in kept:
            kind = is_coroutine(one.job)
            if self._code is None and room[kind] > 0 and self._allow(len(starting) + 1) > len(starting):
                room[kind] -= 1
                starting.append(one.job)
            elif self._code is not None or one.since <= stale:
                returned.append(one.job)
                desk.probing = False
            else:
                desk.fetched.append(one)
        return starting, returned, room[False]

    def _appetite(self, desk: Desk, free: int) -> tuple[int, int]:
        """How many jobs to fetch, and how many of them begin at once."""
        if self._code is not None or desk.fetched or not (desk.more or desk.ended):
            return 0, 0
        if free <= 0:
            # The event loop may have a place for what comes next. What cannot run goes back, and ends the probing.
            return int(desk.probing and self._places.free(coroutine=True) > 0), 0
        begin = self._allow(free)
        if begin == 0:
            if self._allow(1) == 0 and not self._places.running:
                self._stop(EXIT_FINISHED)
            return 0, 0
        if self._options.max_jobs is not None:
            return begin, begin
        ahead = min(MOST_AHEAD, int(AHEAD_SECONDS / max(self._pace, 1e-6)) * self._places.threads.number)
        return begin + ahead, begin

    def _allow(self, wanted: int) -> int:
        """How many of the wanted jobs the budget of all processes lets this one begin."""
        if self._allowed < wanted:
            self._allowed += self._budget.take(wanted - self._allowed)
        return min(self._allowed, wanted)

    def _exchange(self, desk: Desk, starting: list[Job], returned: list[Job], count: int, begin: int) -> list[Job]:
        """Talk to the queue and run what begins."""
        try:
            begun, answer = desk.exchange(starting, returned, count=count, begin=begin)
        except CorruptLogError as error:
            self._damaged.add(desk.name)
            self._desks.remove(desk)
            desk.deaf()
            self._first = 0
            self._console.warning(f"{desk.name}: this queue is damaged and is not worked on any more: {error}")
            return []
        if answer is not None and answer.promise is not None:
            self._confirming.add(desk.name, answer)
        self._allowed += len(starting) - len(begun)
        for job in begun:
            announce = partial(self._announce, desk)
            self._places.run(desk.name, job, *self._guards.around(desk.name, job), announce)
        return begun

    def _announce(self, desk: Desk, performed: Performed) -> None:
        """From the place where the job ran."""
        self._inbox.append((desk, performed))
        self._wake()

    def _perhaps_finish(self) -> None:
        """Nothing runs and nothing was found: is that a reason to end?"""
        if any(desk.more or desk.failing or desk.fetched or desk.ended for desk in self._desks):
            return
        idle = self._options.idle_timeout
        if self._options.drain or (idle is not None and time.monotonic() - self._last_job >= idle):
            self._stop(EXIT_FINISHED)

    def _wait(self) -> None:
        """Until a job ends, a bell rings, or a time has come."""
        now, wall = time.monotonic(), time.time()
        pauses = [self._beat_seconds if self._alone else UNTOLD_SECONDS]
        threads, loop = (self._places.free(coroutine=kind) > 0 for kind in (False, True))
        bells: dict[int, Desk] = {}
        for desk in self._desks:
            if desk.fetched:
                pauses.append(desk.fetched[0].since + STALE_SECONDS - now)
            if desk.rest:
                pauses.append(desk.rest)
            if desk.rest or self._code is not None or not (threads or (loop and desk.probing)):
                desk.does_not_wait()
            else:
                if desk.next_change is not None:
                    pauses.append(desk.next_change - wall)
                if desk.unsure:
                    pauses.append(SAFETY_SECONDS)
                if not desk.listen():
                    desk.look_again()  # what was added between its answer and now has rung for nobody
                    pauses.append(0.0)
                if desk.bell is None:
                    pauses.append(POLL_SECONDS)
                else:
                    bells[desk.bell] = desk
        if self._options.idle_timeout is not None and not self._places.running:
            pauses.append(self._last_job + self._options.idle_timeout - now)
        ready = wait_readable({self._bell, *bells}, max(0.0, min(pauses)))
        if not ready:
            for desk in self._desks:
                desk.time_has_passed()
        for fd in ready & bells.keys():
            bells[fd].rung()

    def _give_back(self) -> None:
        """End now: what runs, and what was fetched, is anybody's at once."""
        self._collect()
        for desk in self._desks:
            running, ended = {id(job) for job in desk.running.values()}, len(desk.ended)
            held = desk.held()
            if not (held or ended):
                continue
            try:
                _, answer = desk.exchange((), held)
                if answer is not None:
                    answer.confirm()
            except NobrokerError:
                answer = None
            if answer is None:
                self.given_back += len(running)
                self._console.warning(
                    f"{desk.name}: {count_of(len(held), 'job')} could not be given back and will be when it has ended"
                )
                continue
            for job, settled in zip(held, answer.settled[ended:], strict=True):
                if id(job) in running and settled.lost is None:
                    self.given_back += 1
                    self._console.line(f"{desk.name}: job {job.id} was stopped while running and given back")

    def _beat(self) -> None:
        """The supervisor is gone: extend the leases from here."""
        for desk in self._desks:
            try:
                desk.queue.keep_alive([desk.holder])
            except NobrokerError as error:
                self._console.warning(f"{desk.name}: leases could not be extended: {error}")
