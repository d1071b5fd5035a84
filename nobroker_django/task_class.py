"""Django's ``Task`` with the options of ours: what Django's ``@task`` makes for a backend of this package.

Invariant: a task that exists has valid options; the backend looks at them when Django makes it. Two tasks with equal
options are equal, as Django's are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from . import compat
from .engine.backoff import BackoffPolicy
from .unique import Unique


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields(compat.Task):
    task_name: str | None = None
    aliases: tuple[str, ...] = ()
    max_attempts: int | None = None
    backoff: BackoffPolicy | None = None
    visibility_timeout: float | None = None
    soft_time_limit: float | timedelta | None = None
    time_limit: float | timedelta | None = None
    unique: Unique = False
    job_id: str | None = None
    database: str | None = None
    on_commit: bool | None = None


class NobrokerTask(_Fields):
    """A task of Django's decorator, with what ``nobroker_django.task`` takes besides.

    ``name=`` of the decorator is ``task_name`` here: what the log calls the task, while ``name`` stays the one of the
    function. ``run_after`` may be a ``timedelta``, counted from the enqueue call on.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        backoff: BackoffPolicy | Mapping[str, float] | None = None,
        unique: Unique = False,
        **options: Any,
    ) -> None:
        unknown = options.keys() - {field.name for field in fields(_Fields)}
        if unknown:
            known = ", ".join(_OF_DECORATOR)
            raise TypeError(f"@task takes no {min(unknown)!r}; with a backend of nobroker_django it takes {known}.")
        if name is not None:
            options["task_name"] = name
        chosen: Any = aliases if isinstance(aliases, str) else tuple(aliases)
        policy: Any = _policy(backoff)
        key: Any = tuple(unique) if isinstance(unique, list) else unique
        super().__init__(aliases=chosen, backoff=policy, unique=key, **options)

    def using(
        self,
        *,
        delay: float | timedelta | None = None,
        run_after: datetime | timedelta | None = None,
        **options: Any,
    ) -> Any:
        """The same task with other options for its next calls; ``None`` keeps what was there.

        Args:
            delay: seconds or ``timedelta`` from the enqueue call on; the same as a ``timedelta`` in ``run_after``.
            run_after: the moment from which on the job may run, or a ``timedelta``.
            options: ``priority``, ``queue_name``, ``backend``, and of ours ``job_id``, ``max_attempts``,
                ``visibility_timeout``, ``database``, ``on_commit``, as with ``nobroker_django.task``.

        Raises:
            InvalidTask: a value has the wrong type or range, or there is no such queue.
            TypeError: there is no such option.
        """
        changes = {name: value for name, value in options.items() if value is not None}
        unknown = options.keys() - _PER_CALL
        if unknown:
            raise TypeError(f"using() takes no {min(unknown)!r}; it takes {', '.join(sorted(_PER_CALL))}.")
        if delay is not None and run_after is not None:
            raise compat.InvalidTask("give delay or run_after, not both.")
        if delay is not None:
            run_after = delay if isinstance(delay, timedelta) else _delay(delay)
        if run_after is not None:
            changes["run_after"] = run_after
        return replace(self, **changes)


_PER_CALL = {
    "priority", "queue_name", "backend", "job_id", "max_attempts", "visibility_timeout", "database", "on_commit"
}  # fmt: skip
_OF_DECORATOR = (
    "aliases", "backend", "backoff", "database", "max_attempts", "name", "on_commit", "priority", "queue_name",
    "soft_time_limit", "takes_context", "time_limit", "unique", "visibility_timeout",
)  # fmt: skip
OUR_FIELDS = tuple(_Fields.__annotations__)


def _policy(backoff: Any) -> Any:
    from .options import backoff_policy

    try:
        return backoff_policy(backoff)
    except ValueError as error:
        raise compat.InvalidTask(str(error)) from error


def _delay(seconds: float) -> timedelta:
    from .datetimes import delay_seconds

    try:
        return timedelta(seconds=delay_seconds(seconds))
    except (ValueError, OverflowError) as error:
        raise compat.InvalidTask(str(error)) from error
