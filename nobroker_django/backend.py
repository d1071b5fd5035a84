"""The backend for Django's ``TASKS`` setting: tasks of Django's ``@task`` as jobs of this package.

Invariant: a task of Django's decorator and one of ours go the same way, with the same checks: each of Django's has a
``decorators.Task`` beside it in the registry, under the name in the log, which is what workers run. Making the backend
opens nothing and reads no ``NOBROKER``: Django makes it while modules are imported.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from . import compat, conf, registry
from .arguments import AnnotationError
from .decorators import Task
from .discovery import find_or_import
from .engine.errors import InvalidOptionError
from .enqueueing import enqueue_one
from .limits import chosen_limits
from .memory import Memory, of_settings
from .naming import named
from .options import CallOptions
from .results import JobResult, found_in_queues, name_in, result_of

if not compat.AVAILABLE:
    raise ImportError(
        "nobroker_django.backend needs Django's task framework: Django 6.0 or newer, or the package django-tasks "
        "(pip install 'nobroker-django[django-tasks]')."
    )

from .task_class import OUR_FIELDS, NobrokerTask


class TaskBackend(compat.BaseTaskBackend):
    """What all backends of this package share: which tasks they take, and what stands for one in the registry."""

    task_class = NobrokerTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True
    memory: Memory | None = None

    @property
    def queues(self) -> set[str]:
        """Those of ``NOBROKER``; empty, which Django takes for "any", while that setting is wrong."""
        try:
            return set(conf.get_settings().queues)
        except ImproperlyConfigured:
            return set()  # what is wrong is said by check, and at the enqueue

    @queues.setter
    def queues(self, value: object) -> None:
        """Of ``TASKS``: a check compares the two."""

    def validate_task(self, task: Any) -> None:
        """Refuse a task that could not be run as it is.

        Raises:
            InvalidTask: the function, an option or the queue.
        """
        self.entry_of(task)

    def entry_of(self, task: Any) -> Task[Any, Any]:
        """What stands for the task in the registry, with the options of this object.

        Raises:
            InvalidTask: the function, an option or the queue.
        """
        own = {name: getattr(task, name, None) for name in OUR_FIELDS}
        try:
            if isinstance(task, Task):
                conf.queue_settings(task.options.queue_name)
                return self._announced(task, task.options, task)
            options = CallOptions(
                queue_name=task.queue_name,
                priority=task.priority,
                **{name: own[name] for name in _CALL_OPTIONS},
            ).changed(run_after=task.run_after)
            if self.queues:
                conf.queue_settings(task.queue_name)  # whose refusal says more than Django's
            # Of ``run_after`` is seen to above: a timedelta is fine here.
            kept = ("func", "takes_context", "priority", "queue_name")
            super().validate_task(SimpleNamespace(run_after=None, **{name: getattr(task, name) for name in kept}))
            entry = self._registered(task, options, own)
        except (InvalidOptionError, AnnotationError) as error:
            if isinstance(error, InvalidOptionError):
                error.without_outcome()
            raise compat.InvalidTask(str(error)) from error
        return self._announced(entry, options, task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobResult[Any]:
        """Store a call of a task, of Django's decorator or of ours; see ``decorators.Task.enqueue``.

        Raises:
            InvalidTask: an option or the queue.
            NobrokerError: as ``decorators.Task.enqueue``.
        """
        return enqueue_one(self.entry_of(task), args, kwargs, self.memory)

    def get_result(self, result_id: str) -> JobResult[Any]:
        """The result of a job, whichever queue it is in.

        Raises:
            TaskResultDoesNotExist: no queue knows it.
            TaskResultMismatch: it is no call of a task that is known here.
        """
        memory = self.memory or of_settings()
        try:
            found = next(found_in_queues(result_id, memory=memory), None)
        except InvalidOptionError:
            found = None  # no job can have such an id
        if found is None:
            raise compat.TaskResultDoesNotExist(result_id)
        queue, job = found
        name = name_in(job)
        task = find_or_import(name) if name is not None else None
        if task is None:
            raise compat.TaskResultMismatch(f"job {result_id} of queue {queue!r} is a call of {name}: not known here")
        result = result_of(task, queue, job, memory)
        result.backend = self.alias
        return result

    def check(self, **kwargs: Any) -> list[Any]:
        """Asked by Django's check of ``TASKS``; see ``checks_of_backends``."""
        from .checks_of_backends import check_application

        return list(check_application(self))

    def _announced(self, entry: Task[Any, Any], options: CallOptions, source: Any) -> Task[Any, Any]:
        chosen = copy.copy(entry)
        chosen.options, chosen.source, chosen.announced_by = options, source, self.alias
        return chosen

    def _registered(self, task: Any, options: CallOptions, own: Mapping[str, Any]) -> Task[Any, Any]:
        name, aliases = named(task.func, own["task_name"], own["aliases"] or ())
        known = registry.find(name)
        if known is not None and known.function is task.func and known.takes_context == task.takes_context:
            return known
        made = Task(
            task.func,
            name=name,
            aliases=aliases,
            options=options,
            backoff=own["backoff"],
            limits=chosen_limits(own["soft_time_limit"], own["time_limit"]),
            takes_context=task.takes_context,
            source=task,
            unique=False if own["unique"] is None else own["unique"],
        )
        registry.register(made)
        return made


class NobrokerBackend(TaskBackend):
    """Stores jobs in the queues of ``NOBROKER``, for ``nobroker_work``."""

    supports_get_result = True


class ImmediateBackend(TaskBackend):
    """Runs a job where it is enqueued, or after the commit of the transaction that it is enqueued in."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.memory = Memory(runs=True, backend=alias)


class DummyBackend(TaskBackend):
    """Runs nothing and keeps what was enqueued, in this thread: ``results``, in order."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.memory = Memory(runs=False, backend=alias)

    @property
    def results(self) -> list[JobResult[Any]]:
        """What is enqueued, and committed where there was a transaction."""
        assert self.memory is not None
        return [self.get_result(job_id) for job_id in self.memory.ids()]

    def clear(self) -> None:
        """Forget it."""
        assert self.memory is not None
        self.memory.clear()


_CALL_OPTIONS = ("max_attempts", "visibility_timeout", "job_id", "database", "on_commit")
