"""What the supervisor does at the queues: it answers for its children.

It extends the leases of those that live, takes back what those held that have ended (also others' on this machine),
records the verdict on a job that ran over its time, and syncs what nobody else has: the beginning of a job that
brings the machine down is on the disk a second later. And it looks whether something was written unheard, for all of
its children that wait.

Invariant: nothing in here waits long, and no failure ends the supervisor: what could not be done is tried again at the
next look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from nobroker_django import TimeLimitExceeded, conf
from nobroker_django.current import worker_called
from nobroker_django.engine.clock import Deadline
from nobroker_django.engine.endings import Ended
from nobroker_django.engine.errors import CorruptLogError, NobrokerError, StorageError
from nobroker_django.engine.files import Files
from nobroker_django.engine.generations import Layout
from nobroker_django.engine.job import Job, QueueStats
from nobroker_django.engine.liveness import Liveness, Unregistered
from nobroker_django.engine.wording import count_of
from nobroker_django.engine.worker_queue import WorkerQueue
from nobroker_django.queues import open_queue

from .console import Console
from .notices import Notice
from .waiting import Waiting

LOOK_SECONDS, IDLE_SECONDS = 0.25, 1.0
"""Between two looks; the longer one while no worker of the machine runs anything."""
LOCK_SECONDS = 0.5
CLOCK_SECONDS = 0.5
"""By so much the clock may go wrong between two looks, and not be taken to have been set."""
COMPLAINT_SECONDS = 10.0
"""A queue that does not answer is complained about that often."""


@dataclass(slots=True)
class _Watched:
    """One queue (``None``: it could not be opened yet), and when it is to be seen to again (Unix seconds).

    ``seen``, ``bell``: where the log ended at the last look, and which FIFO there was; ``untold``: whether it has
    changed since those who wait were told; ``unsynced``: whether there is something that nobody has synced yet.
    """

    queue: WorkerQueue | None = None
    damaged: bool = False
    seen: int | None = None
    bell: tuple[int, int] | None = None
    untold: bool = False
    unsynced: bool = False
    beat_at: float = 0.0
    complaint: Deadline = field(default_factory=lambda: Deadline(0.0))


class Watch:
    """The queues of one supervisor. Used by its only thread."""

    def __init__(self, names: Iterable[str], waiting: Waiting, console: Console) -> None:
        self._waiting = waiting
        self._console = console
        self._wall = _wall_ahead()
        self._files = Files()
        self._queues = {name: _Watched() for name in names}
        self._next_look = self._may_tell = Deadline(0.0)
        # Short leases are seen to more often.
        lengths = [conf.queue_settings(name).visibility_timeout for name in self._queues]
        self._busy_seconds = min(LOOK_SECONDS, min(lengths) / 6)
        self._idle_seconds = min(IDLE_SECONDS, min(lengths) / 6)

    def register(self) -> dict[str, Liveness | Unregistered]:
        """A new worker in each queue, as far as the file system lets it. Waits for nobody."""
        made: dict[str, Liveness | Unregistered] = {}
        directory = conf.get_settings().dir
        for name in self._queues:
            settings = conf.queue_settings(name)
            layout = Layout.of(directory, name)
            try:
                self._files.make_directory(directory, settings.dir_mode)
                made[name] = Liveness(self._files, layout, dir_mode=settings.dir_mode, file_mode=settings.file_mode)
            except OSError as error:
                made[name] = Unregistered()
                self._complain(
                    name, f"a worker cannot say that it is alive; if it is killed, its jobs come back late: {error}"
                )
        return made

    def look(self, holders: Callable[[], Mapping[str, list[str]]]) -> set[int]:
        """See to every queue, if it is time.

        Args:
            holders: tells, by queue, the names under which living children hold leases.

        Returns:
            The numbers of the children that wait, and should look for work themselves.
        """
        if not self._next_look.passed():
            return set()
        # A clock that was set, or stood still with the machine, makes jobs due before the children expect them.
        wall, self._wall = self._wall, _wall_ahead()
        told: set[int] = set()
        busy, may_tell = False, self._may_tell.passed()
        for name, watched in self._queues.items():
            if self._look_at(name, watched, holders) or abs(self._wall - wall) > CLOCK_SECONDS:
                watched.untold = True
            if watched.untold and may_tell:
                watched.untold = False
                told.update(self._waiting.take(name))
            busy = busy or (watched.queue is not None and watched.queue.has_holders)
        self._next_look = Deadline(self._busy_seconds if busy else self._idle_seconds)
        if may_tell:
            self._may_tell = Deadline(0.9 * self._idle_seconds)
        return told

    def _look_at(self, name: str, watched: _Watched, holders: Callable[[], Mapping[str, list[str]]]) -> bool:
        """See to one queue; whether those who wait there should look."""
        queue = self._open(name, watched)
        if queue is None:
            return not watched.damaged
        try:
            changed = self._is_changed(name, queue, watched)
            if changed or time.time() >= watched.beat_at:
                next_due = queue.keep_alive(holders().get(name, ()))
                watched.beat_at = time.time() + 3600.0 if next_due is None else next_due
            if changed or queue.has_holders:
                queue.reclaim_dead()
            if changed or watched.unsynced:
                watched.unsynced = queue.sync_older(1.0)
        except CorruptLogError:
            watched.damaged = True  # the children say it
            return True  # they do when they ask
        except NobrokerError as error:
            watched.seen = None
            self._complain(name, f"the leases of running jobs could not be seen to: {error}")
            return True
        return changed

    def _is_changed(self, name: str, queue: WorkerQueue, watched: _Watched) -> bool:
        """Whether something was written since the last look, or there is another bell than then."""
        seen, bell = watched.seen, watched.bell
        if self._waiting.anybody(name):
            with queue.listen(lightly=True) as listening:  # which also keeps the word from running out
                watched.seen, watched.bell = listening.end, listening.identity
        else:
            watched.seen = queue.look()
        return watched.seen is None or watched.seen != seen or watched.bell != bell

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return self._next_look.left()

    def _opened(self) -> Iterator[tuple[str, WorkerQueue, _Watched]]:
        """The queues that can be used now."""
        for name, watched in self._queues.items():
            queue = self._open(name, watched)
            if queue is not None:
                yield name, queue, watched

    def _open(self, name: str, watched: _Watched) -> WorkerQueue | None:
        if watched.queue is None and not watched.damaged:
            try:
                watched.queue = open_queue(name, conf.queue_settings(name), lock_timeout=LOCK_SECONDS)
            except CorruptLogError:
                watched.damaged = True
            except NobrokerError as error:
                self._complain(name, f"could not be opened: {error}")
            else:
                watched.queue.tell_taken_back = partial(self._console.taken_back, name)
        return None if watched.damaged else watched.queue

    def bury(self, holders: Mapping[str, str], why: str, *, punish: bool) -> int:
        """A child has ended: take back what it held; how many leases that were."""
        total = 0
        for name, queue, _ in self._opened():
            if name in holders:
                try:
                    taken = queue.reclaim_dead({holders[name]: why}, punish=punish)
                except NobrokerError as error:
                    self._complain(name, f"what an ended worker held was not taken back yet: {error}")
                else:
                    total += taken
                    if taken:
                        self._console.line(f"{name}: {count_of(taken, 'job')} of an ended process taken back")
        return total

    def condemn(self, notice: Notice, process: int) -> bool:
        """Record that a job of a process ran over its time; False: it had ended by itself.

        Raises:
            NobrokerError: it could not be recorded.
        """
        queue = next((queue for name, queue, _ in self._opened() if name == notice.queue), None)
        if queue is None:
            raise StorageError("open", notice.queue, "it could not be opened")
        job = Job(notice.job_id, None, lease_token=notice.token)
        error = TimeLimitExceeded(f"hard time limit of {notice.seconds:g} s: the process was ended")
        answer = queue.exchange([Ended.failed(job, error, worker=worker_called(process))])
        settled = answer.settled[0]
        if settled.lost is not None:
            answer.drop()
            return False
        self._console.taken_back(notice.queue, settled.as_taken_back(error), seconds=notice.seconds)
        answer.confirm()
        return True

    def stats(self) -> list[QueueStats]:
        """The counts of each queue.

        Raises:
            NobrokerError: one of them does not answer.
        """
        return [queue.stats() for _, queue, _ in self._opened()]

    def close(self) -> None:
        """Leave the queues."""
        for name, watched in self._queues.items():
            queue, watched.queue = watched.queue, None
            try:
                if queue is not None:
                    queue.close()
            except NobrokerError as error:
                self._console.warning(f"{name}: was not left in order: {error}")

    def _complain(self, name: str, text: str) -> None:
        watched = self._queues[name]
        if watched.complaint.passed():
            watched.complaint = Deadline(COMPLAINT_SECONDS)
            self._console.warning(f"{name}: {text}")


def _wall_ahead() -> float:
    """How far the clock is ahead of one that nobody can set, and that stands still with the machine."""
    return time.time() - time.monotonic()
