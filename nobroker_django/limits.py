"""How long a task may run: what was chosen for it, and what the task sees when its soft limit is over.

Invariant: ``Limits`` that exist have positive, finite seconds, and the soft limit lies below the hard one. Raising the
exception is left to ``worker.soft_limits``, ending the process to the worker's supervisor.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .engine import options as checks
from .engine.errors import InvalidOptionError

if TYPE_CHECKING:
    from .conf import QueueSettings
    from .decorators import Task


class SoftTimeLimitExceeded(BaseException):
    """Raised in a running task when its soft time limit is over; the attempt then counts as failed.

    It is no ``Exception``, so that ``except Exception`` in a task does not swallow it. A task that catches it should
    clean up and raise it again; one that goes on runs up to its hard limit.

    Attributes:
        seconds: the limit; None if it was raised by hand without one.
    """

    def __init__(self, seconds: float | None = None) -> None:
        # Raised asynchronously, the interpreter makes the exception from the class alone.
        self.seconds = seconds if seconds is not None else getattr(of_this_thread, "seconds", None)
        super().__init__(self.seconds)

    def __str__(self) -> str:
        return "soft time limit" if self.seconds is None else f"soft time limit of {self.seconds:g} s"


class TimeLimitExceeded(Exception):
    """What is recorded of a task that ran over its hard time limit: its process was ended."""


# The names under which they are recorded are those under which they are imported.
SoftTimeLimitExceeded.__module__ = TimeLimitExceeded.__module__ = "nobroker_django"

of_this_thread = threading.local()
"""``seconds``: the soft limit under which the thread works at present."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds from the start of the task; None: no such limit."""

    soft: float | None = None
    hard: float | None = None


def chosen_limits(soft: float | timedelta | None, hard: float | timedelta | None) -> Limits:
    """What ``@task(soft_time_limit=, time_limit=)`` was given.

    Raises:
        InvalidOptionError: no number of seconds above 0, or the soft limit is not below the hard one.
    """
    limits = Limits(_seconds("soft_time_limit", soft), _seconds("time_limit", hard))
    if limits.soft is not None and limits.hard is not None and limits.soft >= limits.hard:
        raise InvalidOptionError(
            "soft_time_limit",
            f"must be below time_limit ({limits.hard:g} s), not {limits.soft:g} s: the time between them is what the "
            "task has to clean up.",
        )
    return limits


def limits_of(task: Task[Any, Any], queue: QueueSettings) -> Limits:
    """The limits of a task in a queue: each the task's own, else the queue's.

    A soft limit that is not below the hard one, because the two come from different places, would never be
    reached: there is none then.
    """
    soft = task.limits.soft if task.limits.soft is not None else queue.soft_time_limit
    hard = task.limits.hard if task.limits.hard is not None else queue.time_limit
    if soft is not None and hard is not None and soft >= hard:
        soft = None
    return Limits(soft, hard)


def _seconds(option: str, value: float | timedelta | None) -> float | None:
    if value is None:
        return None
    return checks.seconds(option, value.total_seconds() if isinstance(value, timedelta) else value, zero=False)
