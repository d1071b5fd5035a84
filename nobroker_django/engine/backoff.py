"""How long a failed job waits before its next delivery: exponential growth, a cap, jitter.

The delay is drawn when the failure is recorded and written into the log; replay never draws again.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields

from .errors import InvalidOptionError
from .options import shown

_rng = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """``min(max_delay, base * factor ** (attempts - 1))`` seconds, of which the share ``jitter`` is random.

    Args:
        base: seconds after the first failure, 0 or more.
        factor: growth per further failure, 1 or more.
        max_delay: cap in seconds, 0 or more.
        jitter: random share of the delay, 0 (none) to 1 (all of it).

    Raises:
        InvalidOptionError: a value is not a finite number or out of range.
    """

    base: float = 1.0
    factor: float = 2.0
    max_delay: float = 300.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        least = {"base": 0.0, "factor": 1.0, "max_delay": 0.0, "jitter": 0.0}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
                raise InvalidOptionError(f"backoff.{field.name}", f"a finite number is needed, not {shown(value)}")
            if value < least[field.name]:
                raise InvalidOptionError(
                    f"backoff.{field.name}", f"must be at least {least[field.name]:g}, not {shown(value)}"
                )
        if self.jitter > 1:
            raise InvalidOptionError("backoff.jitter", f"must be at most 1, not {shown(self.jitter)}")

    def delay_for(self, attempts: int, rng: random.Random | None = None) -> float:
        """Seconds to wait after ``attempts`` deliveries; finite and never negative, for any number of attempts."""
        if attempts <= 0:
            return 0.0
        delay = float(min(self.max_delay, self._uncapped(attempts - 1)))
        return delay * (1.0 - self.jitter) + delay * self.jitter * (rng or _rng).random()

    def _uncapped(self, exponent: int) -> float:
        """``base * factor ** exponent``, or ``max_delay`` where that is reached first (a float would overflow)."""
        if self.base == 0 or self.max_delay == 0:
            return 0.0
        if self.factor == 1 or exponent == 0:
            return float(self.base)
        if exponent >= (math.log(self.max_delay) - math.log(self.base)) / math.log(self.factor):
            return float(self.max_delay)
        try:
            return float(self.base) * float(self.factor) ** exponent
        except OverflowError:  # the power alone is too large for a float, times a tiny base it is not
            return math.exp(math.log(self.base) + exponent * math.log(self.factor))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False
