"""The tasks of this process by name.

Invariant: a name, or an alias, stands for one function. A worker finds here what ``discovery`` has imported.
"""

from __future__ import annotations

import inspect
import threading
from typing import TYPE_CHECKING, Any

from .engine.errors import InvalidOptionError

if TYPE_CHECKING:
    from .decorators import Task

_lock = threading.Lock()
_tasks: dict[str, Task[Any, Any]] = {}
_coroutines = False


def register(task: Task[Any, Any]) -> None:
    """Make the task known under its name and aliases.

    The same function may come again (its module was reloaded).

    Raises:
        InvalidOptionError: another function has one of the names.
    """
    global _coroutines
    with _lock:
        for name in (task.name, *task.aliases):
            known = _tasks.get(name)
            if known is not None and known.location != task.location:
                raise InvalidOptionError(
                    "name",
                    f"the task name {name!r} of {task.location} already belongs to {known.location}. "
                    "Choose another with @task(name=...).",
                )
        for name in (task.name, *task.aliases):
            _tasks[name] = task
        _coroutines = _coroutines or inspect.iscoroutinefunction(task.function)


def has_coroutines() -> bool:
    """Whether a task that is a coroutine function was ever registered here."""
    return _coroutines


def find(name: str) -> Task[Any, Any] | None:
    """The task of that name or alias, if it is known here."""
    return _tasks.get(name)


def names() -> list[str]:
    """Every name and alias that is known here, sorted."""
    with _lock:
        return sorted(_tasks)


def unregister(task: Task[Any, Any]) -> None:
    """Forget the task (for tests that define tasks of their own)."""
    with _lock:
        for name in (task.name, *task.aliases):
            if _tasks.get(name) is task:
                del _tasks[name]
