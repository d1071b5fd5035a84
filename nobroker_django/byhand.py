"""Enqueueing a task by its name, for a person at a terminal.

Invariant: only what a worker would know is enqueued: a task that discovery finds, with arguments that it takes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from . import registry
from .decorators import Task
from .discovery import discover
from .engine.errors import InvalidOptionError, TaskArgumentError
from .engine.job import Job
from .results import look_up


def find_task(name: str) -> Task[Any, Any]:
    """The task of that name (or alias) among those that workers import.

    Raises:
        InvalidOptionError: there is none; the message names the nearest ones.
    """
    discover()
    task = registry.find(name)
    if task is None:
        nearest = difflib.get_close_matches(name, registry.names(), n=3)
        hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
        raise InvalidOptionError(
            "task",
            f"workers know no task {name!r}: they import the tasks module of each installed app and "
            f"NOBROKER['IMPORTS'].{hint}",
        )
    return task


def enqueue_by_name(
    name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    queue_name: str | None = None,
    delay: float | None = None,
    priority: int | None = None,
    job_id: str | None = None,
) -> tuple[str, Job]:
    """Enqueue one call now, whatever transaction is open; returns the queue's name and the job.

    Args:
        args, kwargs: the arguments as they are stored: JSON, also where the task wants a date.

    Raises:
        NobrokerError: as ``Task.enqueue``; nothing was stored, unless ``stored`` says otherwise.
    """
    task = find_task(name).using(queue_name=queue_name, delay=delay, priority=priority, job_id=job_id, on_commit=False)
    try:
        values, named = task.arguments.from_json(args, kwargs or {})
    except TypeError as error:
        raise TaskArgumentError(f"{task.name}{task.signature}: {error}. Nothing was stored.", task=task.name) from None
    result = task.enqueue(*values, **named)
    job = look_up(result.queue_name, result.id, result._memory)
    job.created = bool(result.created)
    return result.queue_name, job
