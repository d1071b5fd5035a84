"""Tasks of Django's decorator, which no worker imports before it meets a job of one: the settings do not name them."""

from importlib import import_module
from typing import Any

from nobroker_django import compat

from .jobs import trace

if compat.SOURCE is not None:
    task: Any = import_module(compat.SOURCE).task

    def signalled(sender: type, task_result: Any, **kwargs: Any) -> None:
        trace(task_result.args[0], f"{sender.__name__} {task_result.status}")

    compat.task_started.connect(signalled)
    compat.task_finished.connect(signalled)

    @task
    def note(path: str) -> str:
        trace(path, "note")
        return "noted"

    @task(takes_context=True)
    async def note_later(context: Any, path: str) -> int:
        trace(path, "note later")
        attempt: int = context.attempt
        return attempt
