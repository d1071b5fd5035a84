"""Whose turn it is: the queues of one process in the order in which they are asked for jobs.

Invariant: a queue that fails does not keep the others waiting. After a failure that may pass (a busy lock, a full
disk) it rests for a while, longer each time; a damaged one is not asked any more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from nobroker_django.engine.queue import Queue

FIRST_REST, LONGEST_REST = 0.5, 15.0
"""Seconds; the rest doubles with each failure in a row."""


@dataclass(slots=True)
class _Place:
    """One queue, and when (monotonic seconds) it is asked again; ``rest`` is 0 while it does not fail."""

    queue: Queue
    rest: float = 0.0
    again_at: float = 0.0


class Turns:
    """After a queue that had jobs the next one in line comes first."""

    def __init__(self, queues: list[Queue]) -> None:
        self._places = [_Place(queue) for queue in queues]
        self._first = 0

    def __bool__(self) -> bool:
        """Whether any queue is left."""
        return bool(self._places)

    @property
    def resting(self) -> bool:
        """Whether some queue failed when it was last asked: nobody knows what is in it."""
        return any(place.rest for place in self._places)

    def now(self) -> list[Queue]:
        """The queues that are to be asked, in order; those that rest are left out."""
        moment = time.monotonic()
        line = self._places[self._first :] + self._places[: self._first]
        return [place.queue for place in line if place.again_at <= moment]

    def answered(self, queue: Queue, *, had_jobs: bool) -> None:
        """The queue did not fail."""
        number, place = self._find(queue)
        place.rest = 0.0
        if had_jobs:
            self._first = (number + 1) % len(self._places)

    def failed(self, queue: Queue) -> float:
        """Let the queue rest; for how long (seconds)."""
        _, place = self._find(queue)
        place.rest = min(LONGEST_REST, 2 * place.rest) or FIRST_REST
        place.again_at = time.monotonic() + place.rest
        return place.rest

    def drop(self, queue: Queue) -> None:
        """Never ask it again."""
        number, place = self._find(queue)
        self._places.remove(place)
        self._first = (self._first - (number < self._first)) % max(1, len(self._places))

    def _find(self, queue: Queue) -> tuple[int, _Place]:
        return next((number, place) for number, place in enumerate(self._places) if place.queue is queue)
