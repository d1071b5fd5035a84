"""Those who wait for a job in coroutines, first come, first served, and the one thread that leases for all of them.

Invariant: a hundred waiting coroutines take one thread and no time: it asks for a lease only when the log has grown
since the last one found nothing, or a job's time has come, and sleeps at the queue's bell. Jobs that were leased for
somebody who has gone are given back. What a cancellation means is left to ``aio``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from .bell import SAFETY_SECONDS
from .clock import Deadline
from .coroutines import Signal
from .errors import NobrokerError, QueueClosedError
from .job import Job
from .queue import Queue
from .wake import Wake

logger = logging.getLogger("nobroker_django")

LOOK_SECONDS = 0.01  # between two looks where nothing can be waited for
LONGEST_WAIT_SECONDS = 1.0
LINGER_SECONDS = 1.0


class Place:
    """One coroutine's place in the line: what it wants, and what it got."""

    def __init__(self, count: int, visibility_timeout: float | None) -> None:
        self.count = count
        self.visibility_timeout = visibility_timeout
        self.signal = Signal()
        self.jobs: list[Job] = []
        self.error: BaseException | None = None
        self.is_leaving = False  # served for the last time: it will not wait any longer
        self.is_dropped = False  # nobody will come for its jobs


class Line:
    """Those who wait for a job, first come, first served; one thread looks for all of them and leases for the first.

    It asks for a lease only when the log has grown since the last one found nothing, or a job's time has come.
    """

    def __init__(self, name: str, opened: Callable[[], Queue]) -> None:
        self._name = name
        self._opened = opened
        self._changed = threading.Condition()
        self._places: deque[Place] = deque()
        self._served: Place | None = None
        self._thread: threading.Thread | None = None
        self._wake: Wake | None = None  # as long as there is a thread
        self._closed = False
        # What the last lease that found nothing has seen: the log's end, and when the next job's time comes.
        self._hopeful = True
        self._rung = False  # a byte was taken out of the bell, and nobody has looked for work since
        self._seen: int | None = None
        self._next_change: float | None = None
        self._patience = Deadline(LONGEST_WAIT_SECONDS)

    def enter(self, count: int, visibility_timeout: float | None) -> Place:
        """Take the last place in the line."""
        place = Place(count, visibility_timeout)
        with self._changed:
            if self._closed:
                raise closed_error(self._name)
            self._hopeful = self._hopeful or not self._places
            self._places.append(place)
            if self._thread is None:
                self._wake = Wake()
                # A daemon: who waits for ever in an event loop that has stopped must not keep the process alive.
                self._thread = threading.Thread(target=self._run, name="nobroker-line", daemon=True)
                self._thread.start()
            else:
                self._wake_up()
        return place

    def leave(self, place: Place) -> bool:
        """Stop waiting. False: the place is being served at this moment; its signal is set when that is over."""
        with self._changed:
            if place is self._served:
                place.is_leaving = True
                return False
            if place in self._places:
                self._places.remove(place)
            if not self._places:
                self._wake_up()
            return True

    def drop(self, place: Place) -> list[Job]:
        """Stop waiting without ever coming back. Returns jobs that were leased for it and have to be given back."""
        with self._changed:
            place.is_dropped = True
        return place.jobs if self.leave(place) else []

    def close(self) -> None:
        """Send everybody away who is not being served; wait for the one who is."""
        with self._changed:
            self._closed = True
            for place in [place for place in self._places if place is not self._served]:
                self._places.remove(place)
                place.error = closed_error(self._name)
                place.signal.set()
            thread = self._thread
            self._wake_up()
        if thread is not None:
            thread.join()

    def _wake_up(self) -> None:
        """Let the thread look again, wherever it sleeps. Called with the lock held."""
        self._changed.notify_all()
        if self._wake is not None:
            self._wake.set()

    # -- the thread

    def _run(self) -> None:
        while self._somebody_waits():
            if not (self._may_find_something() and self._serve_first()):
                self._wait()

    def _wait(self) -> None:
        """Sleep until the bell is rung, somebody comes or the last one leaves, or a job's time has come."""
        with self._changed:
            wake = self._wake
            is_awaited = any(place.signal.is_awaited for place in self._places)
            if wake is None or self._closed or (is_awaited and self._hopeful):
                return
        if not is_awaited:  # nobody tells when an event loop that stands still goes on
            wake.wait([wake.fd], LOOK_SECONDS)
            return
        try:
            self._listen(wake)
        except Exception:  # the next lease meets the same error, and tells the first one in the line
            wake.wait([wake.fd], LOOK_SECONDS)

    def _listen(self, wake: Wake) -> None:
        queue = self._opened()
        with queue._session.listen() as listening:
            if listening.end != self._seen:
                return
            bell = listening.fd
            seconds = LOOK_SECONDS if bell is None else SAFETY_SECONDS
            if self._next_change is not None:
                seconds = min(seconds, max(self._next_change - queue.now(), 0.0))
            ready = wake.wait([wake.fd] if bell is None else [wake.fd, bell], seconds)
            if bell in ready and listening.drain():
                self._rung = True

    def _somebody_waits(self) -> bool:
        """Wait a while for somebody; False: the thread ends."""
        with self._changed:
            if not self._places and not self._closed:
                self._pass_on()
                self._changed.wait(LINGER_SECONDS)
            if not self._places:
                self._thread = None
                if self._wake is not None:
                    self._wake.close()
                    self._wake = None
            return bool(self._places)

    def _pass_on(self) -> None:
        """Ring for somebody else, if we were rung for and nobody here takes a job."""
        if self._rung:
            self._rung = False
            with suppress(NobrokerError):
                self._opened()._session.ring()

    def _may_find_something(self) -> bool:
        if self._hopeful or self._rung or self._patience.passed():
            return True
        try:
            queue = self._opened()
            if self._next_change is not None and queue.now() >= self._next_change:
                return True
            return queue._session.look() != self._seen
        except Exception:
            return True  # the lease meets the same error, and tells the first one in the line

    def _serve_first(self) -> bool:
        """Lease for the first one who can take a job; False: there is no such one, or nothing for him."""
        with self._changed:
            while self._places and self._places[0].signal.is_orphaned:
                self._places.popleft()
            place = self._served = next((place for place in self._places if place.signal.is_awaited), None)
            if place is None:
                self._pass_on()
                return False
            self._hopeful = self._rung = False
        error: BaseException | None = None
        jobs: list[Job] = []
        try:
            queue = self._opened()
            self._seen = queue._session.look()
            jobs, self._next_change = queue._lease_now(place.count, place.visibility_timeout)
        except BaseException as caught:
            error = caught
        self._patience = Deadline(LONGEST_WAIT_SECONDS)
        is_over = bool(jobs) or error is not None
        with self._changed:
            self._served = None
            self._hopeful = self._hopeful or is_over
            is_taken = place.signal.is_awaited and not place.is_dropped
            if is_over or self._closed or place.is_leaving:
                self._places.remove(place)
                place.jobs = jobs if is_taken else []
                place.error = error if is_over or not self._closed else closed_error(self._name)
                place.signal.set()
        if jobs and not is_taken:
            give_back(self._opened(), jobs)
        return is_over


def give_back(queue: Queue, jobs: list[Job]) -> None:
    """Release leases whose taker has gone, as well as that can be done."""
    try:
        queue.release(jobs)
    except NobrokerError as error:
        ids = ", ".join(job.id for job in jobs[:3])
        logger.warning("%d jobs (%s) not given back, their leases end at their deadline: %s", len(jobs), ids, error)


def closed_error(name: str) -> QueueClosedError:
    """The error of a call after closing."""
    return QueueClosedError(f"queue {name!r} is closed; the call did nothing")
