"""When a job is to run: seconds, ``timedelta`` and ``datetime`` to one absolute time.

Rules: a ``datetime`` with an offset is an exact instant. One without is refused with ``USE_TZ``, otherwise it is
read in ``TIME_ZONE``. The past means now. Negative delays, NaN, infinities and times after the year 9999 are
refused at the call.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.utils import timezone

from .engine import options as checks
from .engine.errors import InvalidOptionError


def delay_seconds(delay: float | timedelta, option: str = "delay") -> float:
    """A delay as seconds.

    Raises:
        InvalidOptionError: not a number or ``timedelta``, negative, not finite.
    """
    return checks.seconds(option, delay.total_seconds() if isinstance(delay, timedelta) else delay)


def instant(run_after: datetime, option: str = "run_after") -> float:
    """A ``datetime`` as Unix seconds; the past is not yet moved to now.

    Raises:
        InvalidOptionError: not a ``datetime``, without an offset under ``USE_TZ``, or after the year 9999 in UTC.
    """
    if not isinstance(run_after, datetime):
        raise InvalidOptionError(option, f"a datetime or a timedelta is needed, not {checks.shown(run_after)}")
    try:
        if timezone.is_naive(run_after):
            if settings.USE_TZ:
                raise InvalidOptionError(
                    option,
                    f"{run_after.isoformat()} has no time zone and USE_TZ is on. Pass an aware datetime, such as "
                    "timezone.now() + timedelta(...) or timezone.make_aware(value)",
                )
            run_after = timezone.make_aware(run_after, timezone.get_default_timezone())
        seconds = run_after.timestamp()
    except OverflowError as error:
        raise InvalidOptionError(option, f"{run_after!r} is out of range ({error})") from None
    if seconds > checks.LAST_MOMENT:
        raise InvalidOptionError(option, f"{run_after.isoformat()} lies beyond the year 9999 in UTC")
    return seconds


def moment(seconds: float) -> datetime:
    """Unix seconds as Django shows them: aware in UTC with ``USE_TZ``, else naive in ``TIME_ZONE``.

    What lies beyond the calendar, there or after another program has written it, is the last day of it, or the first.
    """
    try:
        aware = datetime.fromtimestamp(seconds, UTC)
        return aware if settings.USE_TZ else timezone.make_naive(aware, timezone.get_default_timezone())
    except (OverflowError, ValueError, OSError):
        end = datetime.max if seconds > 0 else datetime.min
        return end.replace(tzinfo=UTC) if settings.USE_TZ else end
