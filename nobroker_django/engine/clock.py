"""Time, as it is passed in.

A clock is any callable that returns Unix wall-clock seconds as a float. Tests pass their own; nothing else in the
engine asks the operating system for the time of day. ``monotonic`` and ``sleep`` are for waiting only, never for
what is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]

system_clock: Clock = time.time


@dataclass(slots=True)
class Deadline:
    """A moment ``seconds`` from now on the monotonic clock, for bounding waits."""

    seconds: float
    started: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds until the deadline, 0.0 when it has passed."""
        return max(0.0, self.started + self.seconds - time.monotonic())

    def renew(self) -> None:
        """Begin anew: what has been waited for so far does not count."""
        self.started = time.monotonic()

    def passed(self) -> bool:
        """Whether the deadline has been reached."""
        return time.monotonic() - self.started >= self.seconds


sleep = time.sleep
