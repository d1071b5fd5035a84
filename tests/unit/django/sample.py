"""Tasks that several test modules use."""

from typing import Any

from nobroker_django import task


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task(name="keep")
def keep(*values: Any, **named: Any) -> Any:
    return [list(values), named]


@task
def fail() -> int:
    raise TypeError("on purpose")


@task(queue_name="emails", priority=5, max_attempts=2, visibility_timeout=7)
def send(address: str) -> str:
    return address
