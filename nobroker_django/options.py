"""What one enqueue call may choose, validated by name.

Invariant: a ``CallOptions`` that exists is valid, whatever the settings are; what depends on the settings (is the
queue known, is the database) is asked at the enqueue. ``None`` means "not chosen"; an explicit 0 is a choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Self

from . import conf
from .datetimes import delay_seconds, instant
from .engine import options as checks
from .engine.backoff import BackoffPolicy
from .engine.errors import InvalidOptionError

LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Options of a task or of one call. ``delay`` counts from the enqueue call; ``run_after`` is Unix time."""

    queue_name: str = conf.DEFAULT_QUEUE
    priority: int = 0
    max_attempts: int | None = None
    visibility_timeout: float | None = None
    delay: float | None = None
    run_after: float | None = None
    job_id: str | None = None
    database: str | None = None
    on_commit: bool | None = None

    def __post_init__(self) -> None:
        _check_queue_name(self.queue_name)
        checks.integer("priority", self.priority, least=LOWEST_PRIORITY, most=HIGHEST_PRIORITY)
        if self.max_attempts is not None:
            checks.integer("max_attempts", self.max_attempts, least=1)
        if self.visibility_timeout is not None:
            checks.lease_length("visibility_timeout", self.visibility_timeout)
        if self.job_id is not None:
            checks.job_id(self.job_id)
        if self.database is not None and not (isinstance(self.database, str) and self.database):
            raise InvalidOptionError("database", f"the alias of a database is needed, not {self.database!r}.")
        if self.on_commit is not None and not isinstance(self.on_commit, bool):
            raise InvalidOptionError("on_commit", f"must be True or False, not {self.on_commit!r}.")

    def changed(
        self,
        *,
        delay: float | timedelta | None = None,
        run_after: datetime | timedelta | None = None,
        **chosen: Any,
    ) -> Self:
        """A copy with the options that are not ``None``; a new ``delay`` or ``run_after`` replaces both.

        Raises:
            InvalidOptionError: a value has the wrong type or range.
        """
        changes = {name: value for name, value in chosen.items() if value is not None}
        if delay is not None and run_after is not None:
            raise InvalidOptionError("delay", "give delay or run_after, not both")
        if isinstance(run_after, timedelta):
            changes.update(delay=delay_seconds(run_after, "run_after"), run_after=None)
        elif run_after is not None:
            changes.update(delay=None, run_after=instant(run_after))
        elif delay is not None:
            changes.update(delay=delay_seconds(delay), run_after=None)
        return replace(self, **changes)

    def due(self, now: float) -> float | None:
        """When the job may run (Unix time), or ``None`` for at once.

        Raises:
            InvalidOptionError: that is after the year 9999.
        """
        if self.run_after is not None:
            return self.run_after
        if self.delay is None:
            return None
        return checks.moment("delay", now, self.delay)


def backoff_policy(value: BackoffPolicy | Mapping[str, float] | None) -> BackoffPolicy | None:
    """A task's backoff from what the decorator was given; a mapping leaves out what it does not change.

    Raises:
        InvalidOptionError: an unknown key, or a value out of range.
    """
    if value is None or isinstance(value, BackoffPolicy):
        return value
    names = [field.name for field in fields(BackoffPolicy)]
    if not isinstance(value, Mapping):
        raise InvalidOptionError(
            "backoff", f"a BackoffPolicy or a dict of {', '.join(names)} is needed, not {value!r}."
        )
    unknown = [key for key in value if key not in names]
    if unknown:
        raise InvalidOptionError("backoff", f"unknown key {unknown[0]!r}; known keys: {', '.join(names)}.")
    return BackoffPolicy(**value)


def _check_queue_name(value: object) -> None:
    if not isinstance(value, str) or not conf.QUEUE_NAME.fullmatch(value):
        raise InvalidOptionError(
            "queue_name",
            f"{value!r} is no queue name: 1 to 64 ASCII letters, digits, '_' or '-', the first a letter or digit.",
        )
