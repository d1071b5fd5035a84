"""One queue at which a worker process works: what it has fetched, what runs, what the queue has still to be told.

Invariant: a job is run only after the queue has recorded that it begins, and a lease that this process has is in
exactly one of ``fetched`` and ``running`` until its outcome is recorded. An outcome that the queue cannot take (full
disk, busy lock) is offered again, for a while; meanwhile nothing is fetched.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nobroker_django.engine.backoff import BackoffPolicy
from nobroker_django.engine.bell import Listening
from nobroker_django.engine.clock import Deadline
from nobroker_django.engine.endings import Ended
from nobroker_django.engine.errors import CorruptLogError, NobrokerError, OutcomeUnknownError
from nobroker_django.engine.job import Job
from nobroker_django.engine.worker_queue import Exchange, WorkerQueue
from nobroker_django.execution import Performed, report_of, unrecorded

from .console import Console
from .tally import Tally

FIRST_REST, LONGEST_REST = 0.2, 15.0
"""Seconds; the rest after a failure doubles with each failure in a row."""
RENEWAL_SECONDS = 0.5
TRIES = 5
"""How often an outcome is offered to a queue that cannot take it."""


@dataclass(slots=True)
class Fetched:
    """A leased job that waits for a free place, since when (monotonic seconds)."""

    job: Job
    since: float


class Desk:
    """Used by the clerk's thread alone.

    Args:
        holder: names this worker in its leases.
        say: tells the supervisor whether this process waits here; see ``waiting``.
    """

    def __init__(
        self,
        queue: WorkerQueue,
        holder: str,
        console: Console,
        tally: Tally,
        say: Callable[[bool], None] = lambda waits: None,
    ) -> None:
        self.queue = queue
        self.name = queue.name
        self.holder = holder
        self.fetched: deque[Fetched] = deque()
        self.running: dict[int, Job] = {}
        self.ended: list[Performed] = []
        self.probing = True  # whether a job may be fetched for the event loop while no thread is free
        self.more = True  # whether jobs could be had when the queue was last asked
        self.next_change: float | None = None  # Unix seconds: then time alone makes a job leasable
        self._console = console
        self._tally = tally
        self._say = say
        self._waits = False
        self._failures = 0
        self._rest_until = 0.0
        self._listening: Listening | None = None
        self._renewal = Deadline(0.0)
        self._end: int | None = None  # where the log ended when the queue was last asked

    @property
    def rest(self) -> float:
        """Seconds until the queue may be asked again; 0 when it has not failed."""
        return max(0.0, self._rest_until - time.monotonic())

    @property
    def failing(self) -> bool:
        """Whether the last exchange failed: nobody knows what is in the queue."""
        return self._failures > 0

    @property
    def unsure(self) -> bool:
        """Whether nobody can tell by the end of the log that there is nothing new: it has to be asked again."""
        return self.failing or not self._end

    def listen(self) -> bool:
        """See to it that whoever adds a job rings, and that the supervisor looks whether somebody did not.

        Returns:
            False: something was written before that, so the queue has to be asked again.
        """
        if self._listening is not None and self._waits and not self._renewal.passed():
            return True
        self._waits = True
        self._say(True)
        self._let_go()
        self._renewal = Deadline(RENEWAL_SECONDS)
        self._listening = self.queue.listen()
        return self._listening.end == self._end

    @property
    def bell(self) -> int | None:
        """What can be waited for; ``None``: the queue has to be polled."""
        return None if self._listening is None else self._listening.fd

    def does_not_wait(self) -> None:
        """There is no place for a job: nobody need ring or look for this process."""
        if self._waits:
            self._waits = False
            self._say(False)

    def deaf(self) -> None:
        """Do not listen any more."""
        self.does_not_wait()
        self._let_go()

    def _let_go(self) -> None:
        if self._listening is not None:
            self._listening.release()
            self._listening = None

    def rung(self) -> None:
        """The bell can be read: whoever takes out what is in it looks for work."""
        try:
            self.more = self._listening is None or self._listening.drain() or self.more
        except OSError:
            self.deaf()

    def look_again(self) -> None:
        """Time has passed: ask the queue once more, whatever it said before."""
        self.more = True

    def told(self) -> None:
        """By the supervisor, to look: it takes it that this process does not wait any more."""
        self._waits = False
        self.time_has_passed()

    def time_has_passed(self) -> None:
        """Ask once more if there is a reason: something was written, unheard, or a job is leasable by time alone."""
        due = self.next_change is not None and time.time() >= self.next_change
        self.more = self.more or self.failing or due or self.queue.look() != self._end

    def place_is_free(self) -> None:
        """A job has ended: what others added while nobody here listened may run now."""
        self.probing = True
        self.more = self.more or self.queue.look() != self._end

    def finished(self, performed: Performed) -> None:
        """A job has been run; the queue is to be told."""
        self.running.pop(id(performed.job), None)
        self.ended.append(performed)

    def exchange(
        self, starting: Sequence[Job] = (), returned: Sequence[Job] = (), *, count: int = 0, begin: int = 0
    ) -> tuple[list[Job], Exchange | None]:
        """Tell the queue what has ended, begins and is given back, and lease.

        Args:
            starting: fetched jobs for which there is a place.
            returned: fetched jobs for which there is none.
            count, begin: lease so many, of which so many are run at once.

        Returns:
            The jobs to run now; the queue's answer, or ``None`` when it could not be had. Then ``starting`` and
            ``returned`` are fetched still.

        Raises:
            CorruptLogError: the log is damaged; what has ended can never be recorded.
        """
        ended = self.ended
        told = [performed.ended for performed in ended] + [Ended.given_back(job) for job in returned]
        try:
            answer = self.queue.exchange(told, starting, count=count, begin=begin, holder=self.holder)
        except CorruptLogError as error:
            self._give_up(error)
            raise
        except NobrokerError as error:
            self._failed(error, [*starting, *returned])
            return [], None
        self.ended = []
        self._failures = 0
        for performed, settled in zip(ended, answer.settled, strict=False):
            self._tally.job(self.name, report_of(performed, settled))
        for job in answer.lost:
            self._console.warning(f"{self.name}: the lease of job {job.id} ended before it could be run here")
        begun = [job for job in starting if job not in answer.lost] if answer.lost else list(starting)
        now = time.monotonic()
        for job in answer.leased:
            if job.started_at is not None:
                begun.append(job)
            else:
                self.fetched.append(Fetched(job, now))
        if count:
            self.more, self.next_change, self._end = answer.more, answer.next_change, answer.end
            if answer.more:
                self.deaf()  # there is enough to do: nobody need ring for this process
        self.running.update((id(job), job) for job in begun)
        return begun, answer

    def held(self) -> list[Job]:
        """Every lease that this process has here and whose outcome is not recorded, what has ended left out."""
        return [*self.running.values(), *(one.job for one in self.fetched)]

    def _failed(self, error: NobrokerError, back: Sequence[Job]) -> None:
        now = time.monotonic()
        self.fetched.extendleft(Fetched(job, now) for job in reversed(back))
        self._failures += 1
        pause = BackoffPolicy(base=FIRST_REST, max_delay=LONGEST_REST, jitter=0.0).delay_for(self._failures)
        self._rest_until = now + pause
        if isinstance(error, OutcomeUnknownError) or error.stored is not False or self._failures >= TRIES:
            self._give_up(error)
        self._console.warning(f"{self.name}: the queue does not answer, trying again in {pause:g} s: {error}")

    def _give_up(self, error: NobrokerError) -> None:
        """What has ended here stays unrecorded: the leases end, and the jobs run again."""
        for performed in self.ended:
            self._tally.job(self.name, unrecorded(performed, error))
        self.ended = []
