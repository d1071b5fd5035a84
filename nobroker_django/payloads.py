"""A task call as the JSON payload of its job, and back.

The payload is ``{"task": name, "args": [...], "kwargs": {...}}`` and nothing else. Invariant: what is written can
be bound to the function's signature and comes back equal (tuples as lists); anything else is refused at the call,
naming task and parameter. What a worker reads may come from anywhere: everything is checked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .arguments import ArgumentError, Arguments
from .converters import is_known
from .engine.errors import NobrokerError, SerializationError
from .engine.payload import decode_payload, encode_payload

Payload = dict[str, Any]


class NotATaskError(NobrokerError):
    """The payload of a job is no call of a task: no worker of the Django layer can ever run it."""

    stored = True


@dataclass(frozen=True, slots=True)
class StoredCall:
    """The call that a job stands for: name of the task and its arguments."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]


def build(task: str, arguments: Arguments, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Payload:
    """The payload of ``task(*args, **kwargs)``; whether its JSON is exact is for ``freeze`` or the engine.

    Raises:
        TaskArgumentError: the arguments do not fit the signature or their annotations.
    """
    stored_args, stored_kwargs = arguments.to_json(args, kwargs)
    return {"task": task, "args": stored_args, "kwargs": stored_kwargs}


def freeze(payload: Payload, arguments: Arguments) -> Payload:
    """A copy that later changes of the arguments do not reach, after every check that storing would do.

    Raises:
        ArgumentError: an argument is no exact JSON, or the payload is too large.
    """
    try:
        frozen: Payload = decode_payload(encode_payload(payload))
    except SerializationError as error:
        raise explain(error, payload, arguments) from None
    return frozen


def explain(error: SerializationError, payload: Payload, arguments: Arguments) -> ArgumentError:
    """The engine's refusal of ``payload`` in the words of the call: which parameter of which task."""
    task = payload["task"]
    for name, value in arguments.binding.by_parameter(payload["args"], payload["kwargs"]):
        try:
            encode_payload(value, what=name)
        except SerializationError as found:
            return ArgumentError(task, name, found.path, found.reason + _annotation_hint(value))
    return ArgumentError(task, "", error.path, error.reason)


def parse(payload: Any) -> StoredCall:
    """The call in a payload that was read from a queue.

    Raises:
        NotATaskError: it has another shape.
    """
    if not isinstance(payload, dict) or set(payload) != {"task", "args", "kwargs"}:
        raise NotATaskError("not a task: the payload is not an object with exactly task, args and kwargs")
    task, args, kwargs = payload["task"], payload["args"], payload["kwargs"]
    if not isinstance(task, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise NotATaskError("not a task: task must be text, args a list and kwargs an object")
    return StoredCall(task, args, kwargs)


def _annotation_hint(value: Any) -> str:
    # A subclass of dict is written as one and could not be read back; the reason says what to pass.
    if isinstance(value, dict) or not is_known(value):
        return ""
    return " Annotate the parameter with its type, and it arrives in that type."
