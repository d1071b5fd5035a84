"""What a task is called in the log, and where its function is.

Invariant: a name that is accepted is printable text, and a function that has no other name can be found by it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from .engine.errors import InvalidOptionError

_BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)


def location(function: Callable[..., Any]) -> str:
    """Module path and qualified name of the function."""
    return f"{function.__module__}.{function.__qualname__}"


def named(function: Callable[..., Any], name: str | None, aliases: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The name and the aliases of a task: the chosen ones, or where the function is.

    Raises:
        InvalidOptionError: as ``decorators.task``.
    """
    if not inspect.isroutine(function):
        raise InvalidOptionError("function", f"@task decorates functions, not {function!r:.200}")
    if isinstance(function, _BUILT_IN):
        raise InvalidOptionError(
            "function",
            f"{_shown(function)} is built in or compiled; write a function that calls it, and make that a task",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOptionError(
            "function",
            f"{_shown(function)} is a generator function: calling it runs nothing of it. Make a function a task "
            "that loops over it",
        )
    if name is not None:
        return names((name,), "name")[0], names(aliases)
    path = location(function)
    if "<" in path:
        raise InvalidOptionError(
            "name",
            f"{path} is not at the top of a module: no worker could find it. Move it, or name it: @task(name=…)",
        )
    return path, names(aliases)


def _shown(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    return f"{module}.{function.__qualname__}" if module else function.__qualname__


def names(given: Iterable[str], option: str = "aliases") -> tuple[str, ...]:
    """Names that may stand in the log.

    Raises:
        InvalidOptionError: one of them may not.
    """
    if isinstance(given, str):
        raise InvalidOptionError(option, f"a list of names is needed, not the text {given!r}")
    given = tuple(given)
    for name in given:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise InvalidOptionError(option, f"{name!r} is no task name: one or more printable characters are needed")
    return given
