"""Work that need not be in the queue twice at a time: the job's id is made of the task and its arguments.

Invariant: equal arguments give the same id in every process, however they were passed and whether or not defaults were
written out. What becomes of a job whose id is known is the engine's to decide (``Queue.enqueue(unique=True)``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .annotations import NOT_GIVEN
from .arguments import Arguments
from .engine.errors import InvalidOptionError, SerializationError, TaskArgumentError
from .engine.payload import encode_payload, payload_digest

Unique = bool | Sequence[str] | Callable[..., str]
"""What ``@task(unique=...)`` takes."""
PREFIX = "unique:"
_NAME_CHARACTERS = 150
_DIGITS = 32


class UniqueKey:
    """The ids of the jobs of one task.

    Args:
        task: its name.
        chosen: ``True`` for all arguments, the names of some parameters, or a function that is called with the
            arguments and returns a text.
        arguments: of the task.

    Raises:
        InvalidOptionError: there is no parameter of that name, or the default of one is no JSON.
    """

    def __init__(self, task: str, chosen: Unique, arguments: Arguments) -> None:
        self._task = task
        self._arguments = arguments
        self._function = chosen if callable(chosen) else None
        parameters = arguments.binding.signature.parameters
        names = list(parameters) if chosen is True else [] if callable(chosen) else _names(chosen)
        self._all = chosen is True
        for name in names:
            if name not in parameters:
                raise InvalidOptionError(
                    "unique", f"{task} has no parameter {name!r}; it has {', '.join(map(repr, parameters)) or 'none'}"
                )
        self._names = names
        self._defaults: dict[str, Any] = {}
        for name in names:
            default = parameters[name].default
            if not (default is inspect.Parameter.empty or default is NOT_GIVEN or name in arguments.unusable()):
                self._default(name)

    def job_id(self, args: Sequence[Any], kwargs: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
        """The id of the job of a call: ``unique:``, the task's name, and 32 hex digits.

        Args:
            args, kwargs: the call, as it was made.
            payload: the same, as it is stored.

        Raises:
            TaskArgumentError: the function of ``unique`` failed, or returned no text.
            SerializationError: an argument is no exact JSON.
        """
        key = self._values(payload) if self._function is None else self._called(self._function, args, kwargs)
        digest = payload_digest(encode_payload([self._task, key], what="the arguments"))
        return f"{PREFIX}{self._task[:_NAME_CHARACTERS]}:{digest[:_DIGITS]}"

    def _values(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        signature = self._arguments.binding.signature
        given = signature.bind(*payload["args"], **payload["kwargs"]).arguments
        return {
            name: given[name] if name in given else self._default(name)
            for name in (signature.parameters if self._all else self._names)
            if name in given or signature.parameters[name].default is not NOT_GIVEN
        }

    def _default(self, name: str) -> Any:
        """The default of a parameter as it would be stored; ``None`` where ``*args`` or ``**kwargs`` got nothing."""
        default = self._arguments.binding.signature.parameters[name].default
        if default is inspect.Parameter.empty:
            return None
        if name not in self._defaults:
            try:
                stored = self._arguments.stored(name, default)
                encode_payload(stored, what=name)
            except (SerializationError, TaskArgumentError) as error:
                raise InvalidOptionError(
                    "unique", f"{self._task}: the default of {name!r} cannot be part of a key: {error}"
                ) from None
            self._defaults[name] = stored
        return self._defaults[name]

    def _called(self, function: Callable[..., str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        try:
            key = function(*args, **kwargs)
        except Exception as error:
            raise TaskArgumentError(
                f"{self._task}: the function of unique failed with {type(error).__name__}: {error}. It is called with "
                "the arguments of the task. Nothing was stored.",
                task=self._task,
            ) from error
        if not isinstance(key, str) or not key:
            raise TaskArgumentError(
                f"{self._task}: unique returned {key!r:.200}; a text is needed. Nothing was stored.", task=self._task
            )
        return str.__str__(key)


def _names(chosen: Any) -> list[str]:
    if isinstance(chosen, str) or not isinstance(chosen, list | tuple | set | frozenset) or not chosen:
        raise InvalidOptionError("unique", f"True, a list of parameters or a function is needed, not {chosen!r:.200}")
    return list(dict.fromkeys(sorted(chosen, key=str)))
