"""The process that was started: forks the children, answers for them at the queues, restarts those that die, ends
those whose job runs over its time, passes the stop on.

Invariant: it does no user code and starts no thread, so a fork is safe at any time. Every child is reaped, and when
this process ends, by whatever cause, its children stop too (their pipe of orders closes). A child that does not run at
all (SIGSTOP) is not answered for: its leases end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from typing import TextIO

from django.db import connections

from nobroker_django.engine.backoff import BackoffPolicy
from nobroker_django.engine.errors import NobrokerError
from nobroker_django.engine.upkeep import LOOK_SECONDS
from nobroker_django.engine.wording import count_of

from .budget import Budget
from .child import Child, Inheritance
from .console import Console
from .damaged import Damaged
from .logbook import Entry, Logbook, tell
from .notices import Notice, Reader
from .options import (
    EXIT_BROKEN,
    EXIT_DAMAGE,
    EXIT_FINISHED,
    EXIT_GIVEN_BACK,
    EXIT_RECYCLED,
    EXIT_REFUSED,
    EXIT_STOPPED,
    WorkerOptions,
)
from .progress import Counts, LiveLine
from .shutdown import LOOK, NOW, STOP, STOP_SIGNALS, SignalPipe, wait_readable
from .slots import Slot, collect, how_it_ended
from .sweeping import SweepChild, is_wanted
from .upkeep import UpkeepChild, is_due
from .waiting import Waiting
from .watch import Watch

FIRST_RESTART, LONGEST_RESTART = 0.2, 30.0
"""Pause before a dead child is replaced; it doubles with every death that follows soon."""
HEALTHY_AFTER = 60.0
"""A child that lived this long (seconds) starts the pauses anew."""
SWEEP_PATIENCE = 30.0
"""Seconds that ``--drain`` waits for the outbox to be swept before the first job is run."""
FALSE_STARTS = 3
"""After so many children in one place that ended before they could begin, where none has ever begun anywhere, the
command gives up."""
TELL_SECONDS = 5.0
"""At the end, the project's logging has so long to take the last records."""
KILL_AFTER = 15.0
"""Seconds that a child has to give its jobs back, before it is killed."""


class Supervisor:
    """Made and run once, in the main thread of the command."""

    def __init__(self, options: WorkerOptions, stream: TextIO | None) -> None:
        self._options = options
        self._stream = stream
        self._logbook = Logbook()
        prefix = f"supervisor (pid {os.getpid()})"
        self._console = Console(stream, prefix=prefix, verbosity=options.verbosity, note=self._logbook.note)
        self._slots = [Slot(number + 1) for number in range(options.processes)]
        self._upkeep, self._sweeper, self._teller = Slot(0), Slot(0), Slot(0, start_at=None)  # processes now and then
        self._has_begun = False  # whether any process has begun to work
        self._budget = Budget(options.max_jobs)
        self._damaged = Damaged()
        if options.drain:
            for slot in self._slots:
                slot.start_at = time.monotonic() + SWEEP_PATIENCE
        self._waiting = Waiting(options.processes, options.queues)
        self._watch = Watch(options.queues, self._waiting, self._console)
        self._live = LiveLine(stream if options.verbosity else None, self._counts, shared=True)
        self._at_start: tuple[int, int] | None = None  # jobs that were done and dead then
        self._stopping = False
        self._kill_at: float | None = None
        self._codes: set[int] = set()

    def _all_slots(self) -> tuple[Slot, ...]:
        return (*self._slots, self._upkeep, self._sweeper, self._teller)

    def run(self) -> int:
        """Supervise until all children have ended; returns the command's exit code."""
        # A connection that was opened while the project was loaded must not be shared with the children.
        connections.close_all()
        self._signals = SignalPipe((*STOP_SIGNALS, signal.SIGCHLD))
        self._console.line(
            f"started: {count_of(self._options.processes, 'process', 'processes')} with "
            f"{count_of(self._options.threads, 'thread')} for "
            f"{', '.join(self._options.queues)}"
        )
        try:
            self._show_progress()  # what is done and dead by now is not this command's
            while self._step():
                pass
            self._watch.close()
            self._note_damage()
            self._tell_the_rest()
        finally:
            self._live.close()
            self._watch.close()
            self._signals.close()
            self._budget.close()
            self._damaged.close()
        worst_first = (EXIT_DAMAGE, EXIT_REFUSED, EXIT_GIVEN_BACK)
        code = next((code for code in worst_first if code in self._codes), EXIT_STOPPED)
        self._console.line(f"stopped with exit code {code}")
        return code

    def _tell_the_rest(self) -> None:
        """Nobody has to be seen to any more: wait for the project's logging, but not for ever."""
        deadline = time.monotonic() + TELL_SECONDS
        while (self._teller.pid or self._logbook) and time.monotonic() < deadline:
            if not self._teller.pid:
                self._start(self._teller)
            wait_readable([self._signals.fd], deadline - time.monotonic())
            if any(number in STOP_SIGNALS for number in self._signals.read()):
                break
            self._reap()
        if self._teller.pid:
            os.kill(self._teller.pid, signal.SIGKILL)

    def _note_damage(self) -> None:
        """The exit code tells of a damaged queue, however well the others did."""
        names = self._damaged.names()
        if names:
            self._codes.add(EXIT_DAMAGE)
            self._console.warning(
                f"damaged, and not worked on: {', '.join(names)}. Nothing of it was changed. nobroker_recover shows "
                "where; restore it from a backup while no process has it open, and start again"
            )

    def _step(self) -> bool:
        """Start what is due, wait for the next event, deal with it; returns whether a child is left or to come."""
        now = time.monotonic()
        if self._logbook and not self._teller.pid:
            self._teller.start_at = now
        for slot in self._all_slots():
            if slot.start_at is not None and slot.start_at <= now:
                self._start(slot)
        moments = [slot.start_at for slot in self._all_slots() if slot.start_at is not None]
        moments += [self._kill_at] if self._kill_at is not None else []
        moments += [deadline for slot in self._slots for deadline, _ in slot.limits.values()]
        readers = {slot.notices.fd: slot for slot in self._slots if slot.notices is not None}
        ready = wait_readable([self._signals.fd, *readers], min([*moments, now + self._watch.pause]) - now)
        for fd in ready & readers.keys():
            self._hear(readers[fd])
        for number in self._signals.read() if self._signals.fd in ready else ():
            if number in STOP_SIGNALS:
                self._stop(f"received {signal.Signals(number).name}")
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill()
        self._reap()
        self._enforce_limits()
        told = self._watch.look(self._living)
        for slot in self._slots if told else ():
            if slot.number in told:
                slot.order(LOOK)
        self._show_progress()
        working = any(slot.pid or slot.start_at is not None for slot in self._slots)
        return working or bool(self._upkeep.pid or self._sweeper.pid)

    def _show_progress(self) -> None:
        """On a terminal, one line that tells how the work is going."""
        if self._live.active:
            try:
                self._live.refresh()
            except NobrokerError:
                pass  # shown again when the queue answers

    def _counts(self) -> Counts:
        stats = self._watch.stats()
        done, dead = sum(one.done for one in stats), sum(one.dead for one in stats)
        if self._at_start is None:
            self._at_start = done, dead
        return Counts(
            ready=sum(one.ready for one in stats),
            delayed=sum(one.delayed for one in stats),
            running=sum(one.leased for one in stats),
            done=max(0, done - self._at_start[0]),
            failed=max(0, dead - self._at_start[1]),
        )

    def _living(self) -> dict[str, list[str]]:
        """Under which names, by queue, children hold leases that are to be extended."""
        found: dict[str, list[str]] = {}
        for slot in self._slots:
            if slot.pid and not slot.stopped:
                for name, holder in slot.holders().items():
                    found.setdefault(name, []).append(holder)
        return found

    def _hear(self, slot: Slot) -> None:
        """A child tells that it begins, and which job may run how long."""
        for notice in slot.notices.read() if slot.notices is not None else ():
            if not notice.token:
                self._has_begun = True
            elif notice.seconds is None:
                slot.limits.pop(notice.token, None)
            else:
                slot.limits[notice.token] = time.monotonic() + notice.seconds, notice

    def _enforce_limits(self) -> None:
        """Jobs that ran over their time have failed, and their process is ended."""
        now = time.monotonic()
        for slot in self._slots:
            for token, (deadline, notice) in list(slot.limits.items()):
                if deadline > now or not slot.pid or slot.verdict is not None:
                    continue
                del slot.limits[token]
                os.kill(slot.pid, signal.SIGSTOP)  # or another thread of it would begin with the job once more
                try:
                    if not self._watch.condemn(notice, slot.pid):
                        os.kill(slot.pid, signal.SIGCONT)  # it has just ended by itself
                        continue
                except NobrokerError:
                    # The lock may be held by that very process, whose other threads the job does not let run.
                    slot.sentence = notice, slot.pid
                slot.verdict = f"another job of its process, {notice.job_id}, ran over its time"
                self._console.warning(
                    f"worker {slot.number} (pid {slot.pid}): job {notice.job_id} ran over its hard time limit of "
                    f"{notice.seconds:g} s and has failed; the process is killed"
                )
                os.kill(slot.pid, signal.SIGKILL)

    def _pass_sentence(self, notice: Notice, process: int) -> None:
        """The process of a job that ran over its time has ended: now its lock is free, and that can be recorded."""
        try:
            self._watch.condemn(notice, process)
        except NobrokerError as error:
            self._console.warning(
                f"job {notice.job_id} ran over its time, which could not be recorded; it is tried again: {error}"
            )

    def _start(self, slot: Slot) -> None:
        if slot is self._upkeep and not is_due(self._options):
            slot.start_at = time.monotonic() + LOOK_SECONDS
            return
        if slot is self._sweeper and not is_wanted():
            self._swept()
            return
        first = slot.started == 0.0
        slot.start_at = None
        slot.started = time.monotonic()
        slot.stopped, slot.verdict = False, None
        reading, slot.orders = os.pipe()
        heard, notices = os.pipe()
        slot.notices = Reader(heard)
        os.set_blocking(heard, False)
        if slot.number:
            slot.liveness = self._watch.register()
        entries = self._logbook.take() if slot is self._teller else []
        for stream in (self._stream, sys.stdout, sys.stderr):
            _flush(stream)
        # A signal between the fork and the child's own handlers would be lost in the pipe of this process.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            slot.pid = os.fork()
            if slot.pid == 0:
                self._become_child(slot, reading, notices, entries, first=first)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        os.close(reading)
        os.close(notices)

    def _become_child(self, slot: Slot, reading: int, notices: int, entries: list[Entry], *, first: bool) -> None:
        """In the new process: run the child and end without returning into the supervisor."""
        code = EXIT_BROKEN
        try:
            inherited = Inheritance(reading, notices, slot.liveness, self._budget, self._damaged, self._waiting)
            slot.liveness = {}
            for other in self._all_slots():
                other.close()
            os.set_blocking(reading, False)
            if slot is self._upkeep:
                code = UpkeepChild(self._options, reading, self._stream).run()
            elif slot is self._teller:
                code = tell(entries)
            elif slot is self._sweeper:
                code = SweepChild(self._options, self._stream, first=first).run()
            else:
                code = Child(slot.number, self._options, inherited, self._stream).run()
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (self._stream, sys.stdout, sys.stderr):
                _flush(stream)
            # Not sys.exit(): threads with user code may still run, and whatever else would run now is the parent's.
            os._exit(code)

    def _stop(self, why: str) -> None:
        """First time: the children finish what runs. Again: they give it back now."""
        if not self._stopping:
            self._stopping = True
            self._console.line(f"{why}: stopping; running jobs have {self._options.grace:g} s to finish")
            self._kill_at = time.monotonic() + self._options.grace + KILL_AFTER
            self._order(STOP)
        else:
            self._console.line(f"{why} again: giving running jobs back and ending now")
            self._kill_at = time.monotonic() + KILL_AFTER
            self._order(NOW)
        for slot in self._all_slots():
            slot.start_at = None
        if self._sweeper.pid:
            os.kill(self._sweeper.pid, signal.SIGTERM)  # it may wait for a database that does not answer

    def _order(self, order: bytes) -> None:
        for slot in self._all_slots():
            slot.order(order)

    def _kill(self) -> None:
        for helper in (self._upkeep, self._sweeper, self._teller):
            if helper.pid:
                os.kill(helper.pid, signal.SIGKILL)
        for slot in self._slots:
            if slot.pid:
                self._console.warning(
                    f"worker {slot.number} (pid {slot.pid}) does not react and is killed; its jobs are given to others"
                )
                os.kill(slot.pid, signal.SIGKILL)
        self._kill_at = None

    def _reap(self) -> None:
        """Collect the children that have ended; as process 1 of a container also the orphans that became ours."""
        # Elsewhere another part of this process may wait for children of its own.
        slots = self._all_slots()
        wanted = [-1] if os.getpid() == 1 else [slot.pid for slot in slots if slot.pid]
        for pid in wanted:
            while changed := collect(pid):
                for slot in slots:
                    if slot.pid == changed[0]:
                        self._changed(slot, changed[1])

    def _changed(self, slot: Slot, status: int) -> None:
        """A child was stopped, goes on, or has ended."""
        if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
            slot.stopped = os.WIFSTOPPED(status)
            if slot.verdict is not None:
                return
            self._console.line(f"worker {slot.number} (pid {slot.pid}) {'was stopped' if slot.stopped else 'goes on'}")
        else:
            self._ended(slot, os.waitstatus_to_exitcode(status))

    def _ended(self, slot: Slot, code: int) -> None:
        pid, slot.pid = slot.pid, 0
        if slot is self._upkeep:
            slot.close()
            slot.deaths = 0 if code == EXIT_STOPPED else min(slot.deaths + 1, 6)
            if not self._stopping:
                slot.start_at = time.monotonic() + LOOK_SECONDS * 2**slot.deaths
            return
        if slot is self._sweeper:
            slot.close()
            self._swept()
            return
        if slot is self._teller:
            slot.close()
            return
        self._waiting.forget(slot.number)
        self._hear(slot)  # its last words
        verdict = slot.verdict
        if slot.sentence is not None:
            self._pass_sentence(*slot.sentence)
            slot.sentence = None
        why = verdict or f"its process (pid {pid}) {how_it_ended(code)}"
        taken = self._watch.bury(slot.holders(), why, punish=verdict is None)
        slot.close()  # not before: others would take the jobs back without knowing why
        # What cannot even start ends the command; in place of one that did work it is tried again.
        if code == EXIT_DAMAGE or (code == EXIT_REFUSED and not self._has_begun):
            self._codes.add(code)
            if not self._stopping:
                self._stop(f"worker {slot.number} (pid {pid}) cannot work")
            return
        if self._stopping:
            # Killed or broken on the way out: what it held was not given back in order.
            if verdict is not None and not taken:
                code = EXIT_STOPPED  # it held nothing but the job that has failed
            in_order = code in (EXIT_STOPPED, EXIT_GIVEN_BACK, EXIT_FINISHED, EXIT_RECYCLED)
            self._codes.add(code if in_order else EXIT_GIVEN_BACK)
            return
        if code == EXIT_FINISHED:
            return
        if code == EXIT_RECYCLED or verdict is not None:
            slot.start_at = time.monotonic()
            return
        if not self._has_begun:
            slot.false_starts += 1
        if slot.false_starts == FALSE_STARTS and not self._has_begun:
            self._codes.add(EXIT_REFUSED)
            self._stop(
                f"worker {slot.number} cannot start: {FALSE_STARTS} processes in a row ended before they could begin, "
                f"this one {how_it_ended(code)}"
            )
            return
        self._restart(slot, pid, code, taken)

    def _swept(self) -> None:
        """The outbox was swept; where all that is ready is to be run, that is waited for."""
        if self._stopping:
            self._sweeper.start_at = None
            return
        self._sweeper.start_at = time.monotonic() + LOOK_SECONDS
        for slot in self._slots:
            if not slot.pid and not slot.started:
                slot.start_at = time.monotonic()

    def _restart(self, slot: Slot, pid: int, code: int, taken: int) -> None:
        lived = time.monotonic() - slot.started
        slot.deaths = 1 if lived >= HEALTHY_AFTER else slot.deaths + 1
        pause = BackoffPolicy(base=FIRST_RESTART, max_delay=LONGEST_RESTART, jitter=0.0).delay_for(slot.deaths)
        slot.start_at = time.monotonic() + pause
        what = "stopped" if code == EXIT_STOPPED and not taken else how_it_ended(code)
        self._console.warning(f"worker {slot.number} (pid {pid}) {what}; a new one starts in {pause:g} s")


def _flush(stream: TextIO | None) -> None:
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        pass
