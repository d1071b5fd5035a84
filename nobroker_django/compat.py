"""Django's task framework, from wherever this project has it.

Django 6.0 and newer bring it as ``django.tasks``; for Django 5.2 there is the package ``django-tasks``, with the same
objects under slightly other names. Invariant: the rest of this package takes these objects from here alone, and works
without them: then ``AVAILABLE`` is False, and only ``backend`` cannot be imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import JobResult


def _source() -> str | None:
    for name in ("django.tasks", "django_tasks"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        else:
            return name
    return None


SOURCE = _source()
"""The package that has the framework, or None."""
AVAILABLE = SOURCE is not None

if TYPE_CHECKING:
    # As much as is used here: the stubs of one version of Django would not fit the others.
    task_backends: Any
    task_enqueued: Any
    task_started: Any
    task_finished: Any
    TaskResultStatus: Any

    class TaskContext:
        """What a task with ``takes_context=True`` gets before its arguments."""

        task_result: JobResult[Any]
        attempt: int

        def __init__(self, *, task_result: JobResult[Any]) -> None: ...

    class BaseTaskBackend:
        alias: str
        options: dict[str, Any]
        queues: Any

        def __init__(self, alias: str, params: dict[str, Any]) -> None: ...
        def validate_task(self, task: Any) -> None: ...

    class Task:
        func: Any
        priority: int
        backend: str
        queue_name: str
        takes_context: bool

        def __init__(self, **options: Any) -> None: ...

    class TaskError: ...

    class TaskResult: ...

    class InvalidTask(Exception): ...

    class InvalidTaskBackend(Exception): ...

    class TaskResultDoesNotExist(Exception): ...

    class TaskResultMismatch(Exception): ...

elif AVAILABLE:
    _package, _base, _signals, _exceptions, _backends = (
        import_module(SOURCE + part) for part in ("", ".base", ".signals", ".exceptions", ".backends.base")
    )
    task_backends = _package.task_backends
    BaseTaskBackend = _backends.BaseTaskBackend
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
    TaskResultDoesNotExist, TaskResultMismatch = _exceptions.TaskResultDoesNotExist, _exceptions.TaskResultMismatch
    InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
    InvalidTaskBackend = getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
    task_enqueued, task_started, task_finished = (
        _signals.task_enqueued, _signals.task_started, _signals.task_finished
    )  # fmt: skip
else:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class TaskContext:
        """As Django has it: which job it is in which a task runs."""

        task_result: JobResult[Any]

        @property
        def attempt(self) -> int:
            """The number of this attempt, from 1 on."""
            return self.task_result.attempts

    class TaskError:
        """As Django has it."""

    class TaskResult:
        """As Django has it."""

    class TaskResultDoesNotExist(Exception):
        """As Django has it."""


def is_django_task(value: Any) -> bool:
    """Whether it is a task of Django's decorator."""
    return AVAILABLE and isinstance(value, Task)
