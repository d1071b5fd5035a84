"""Checks of the numbers that callers pass, by name, before anything is written."""

from __future__ import annotations

import math
from typing import Any

from .clock import Clock, system_clock
from .errors import InvalidOptionError

LAST_MOMENT = 253_402_300_799.0  # 9999-12-31T23:59:59Z, the last second that a datetime can hold
LONGEST_LEASE = 366 * 86_400.0
MAX_JOB_ID = 200
_INT32 = 1 << 31
_SHOWN = 80


def shown(value: object) -> str:
    """``repr(value)`` for a message: cut, and never failing."""
    try:
        text = repr(value)
    except Exception:  # more digits than Python shows, or a repr of the user's
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def seconds(name: str, value: Any, *, zero: bool = True) -> float:
    """A finite, non-negative number of seconds (``zero=False``: positive).

    Raises:
        InvalidOptionError: it is not.
    """
    if type(value) is float and 0.0 < value < LONGEST_LEASE:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionError(name, f"a number of seconds is needed, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        least = "0 or more" if zero else "more than 0"
        raise InvalidOptionError(name, f"must be {least} and finite, not {shown(value)}")
    return number


def lease_length(name: str, value: Any) -> float:
    """The length of a lease in seconds: more than 0, at most a year.

    Raises:
        InvalidOptionError: it is not.
    """
    number = seconds(name, value, zero=False)
    if number > LONGEST_LEASE:
        raise InvalidOptionError(name, f"must be at most a year ({LONGEST_LEASE:g} seconds), not {shown(value)}")
    return number


def moment(name: str, now: float, delay: float) -> float:
    """The time ``delay`` seconds from ``now``.

    Raises:
        InvalidOptionError: it lies beyond the year 9999.
    """
    when = now + delay
    if when > LAST_MOMENT:
        raise InvalidOptionError(name, f"{shown(delay)} seconds from now lies beyond the year 9999")
    return when


def latest(now: float, pause: float) -> float:
    """The time ``pause`` seconds from now, where that was computed and not asked for: never beyond the year 9999."""
    return min(now + pause, LAST_MOMENT)


def checked_clock(clock: Clock) -> Clock:
    """A clock that refuses to give a time which no record can hold; the system's own is taken as it is.

    Raises:
        InvalidOptionError: when asked, and ``clock`` gives no number between 1970 and 9999.
    """

    if clock is system_clock:
        return clock

    def checked() -> float:
        now = clock()
        if not (isinstance(now, float | int) and 0 <= now <= LAST_MOMENT):
            raise InvalidOptionError("clock", f"gave {shown(now)}, which is no time between 1970 and 9999")
        return float(now)

    return checked


def flag(name: str, value: Any) -> bool:
    """True or False, nothing else.

    Raises:
        InvalidOptionError: it is neither.
    """
    if not isinstance(value, bool):
        raise InvalidOptionError(name, f"must be True or False, not {shown(value)}")
    return value


def integer(name: str, value: Any, *, least: int, most: int = _INT32 - 1) -> int:
    """A whole number in a range.

    Raises:
        InvalidOptionError: it is not.
    """
    if type(value) is not int:
        raise InvalidOptionError(name, f"a whole number is needed, not {shown(value)}")
    if not least <= value <= most:
        raise InvalidOptionError(name, f"must be between {least} and {most}, not {shown(value)}")
    return value


def priority(value: Any) -> int:
    """A priority: any 32-bit integer, higher first."""
    return integer("priority", value, least=-_INT32)


def mode(name: str, value: Any) -> int:
    """Permission bits, such as ``0o640``.

    Raises:
        InvalidOptionError: they are not.
    """
    bits = integer(name, value, least=0, most=0o7777)
    if bits & 0o600 != 0o600 or bits & 0o5000:
        raise InvalidOptionError(name, f"must let the owner read and write, in octal such as 0o640, not {bits:#o}")
    return bits


def job_id(value: Any) -> str:
    """A caller's job id: text of 1 to 200 characters that UTF-8 can hold.

    Raises:
        InvalidOptionError: it is not.
    """
    return text("job_id", value, most=MAX_JOB_ID)


def text(name: str, value: Any, *, most: int) -> str:
    """Text of 1 to ``most`` characters that UTF-8 can hold.

    Raises:
        InvalidOptionError: it is not.
    """
    if type(value) is not str:
        raise InvalidOptionError(name, f"text is needed, not {shown(value)}")
    if not 1 <= len(value) <= most:
        raise InvalidOptionError(name, f"must have 1 to {most} characters, not {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidOptionError(name, "has a lone surrogate, which no UTF-8 text can hold") from None
    return value
