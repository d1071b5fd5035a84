"""What stands around the call of a task in a worker process: its soft limit, and the notice of its hard one."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from nobroker_django.decorators import Task
from nobroker_django.engine.job import Job
from nobroker_django.execution import AsyncGuard, Guard, limits_in, soft_limits

from .notices import Notices
from .soft_limits import run_limited


class Guards:
    """Made once a process."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    def around(self, queue: str, job: Job) -> tuple[Guard, AsyncGuard]:
        """The guards of one delivery: for a thread, and for the event loop."""

        def guard(task: Task[Any, Any]) -> AbstractContextManager[object]:
            return self._guard(queue, job, task)

        async def async_guard(task: Task[Any, Any], coroutine: Coroutine[Any, Any, Any]) -> Any:
            limits = limits_in(task, queue)
            with self._noticed(queue, job, limits.hard):
                return await run_limited(coroutine, limits.soft)

        return guard, async_guard

    @contextmanager
    def _guard(self, queue: str, job: Job, task: Task[Any, Any]) -> Iterator[None]:
        limits = limits_in(task, queue)
        with self._noticed(queue, job, limits.hard), soft_limits.running(limits.soft):
            yield

    @contextmanager
    def _noticed(self, queue: str, job: Job, seconds: float | None) -> Iterator[None]:
        token = job.lease_token or ""
        if seconds is not None:
            self._notices.begins(queue, job.id, token, seconds)
        try:
            yield
        finally:
            if seconds is not None:
                self._notices.ended(token)
