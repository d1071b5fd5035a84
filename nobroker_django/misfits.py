"""What is said of a value that does not fit its annotation: where in the value, and why, in the words of the caller.

Slow, and only run when there is something to say. Invariant: nothing in here raises, whatever the value is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from .engine.payload import MAX_DEPTH, hint, short
from .roundtrip import fields, named

_MESSAGE = re.compile(r"(?P<reason>.*?)(?: - at `(?P<key>key` in `)?\$(?P<place>.*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `[^`]*`")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|\[\.\.\.\]")
_IN_PYTHON = {"array": "list", "object": "dict", "null": "None", "duration": "timedelta", "uuid": "UUID"}
_UNKNOWN = object()


class Misfit(Exception):
    """A value does not fit its annotation. ``path`` is where in the value, ``reason`` why (no full stop)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def not_json(value: Any, path: str, encode: Callable[[Any], object], error: Exception) -> Misfit:
    """Point at the first value inside ``value`` that ``encode`` refused with ``error``."""
    for _ in range(MAX_DEPTH):
        inner = next(((step, item) for step, item in _members(value) if _fails(encode, item)), None)
        if inner is None:
            break
        path, value = path + inner[0], inner[1]
    else:
        return Misfit(path, "is nested too deeply")
    if isinstance(value, dict):
        return Misfit(path, f"has a key that JSON cannot hold: {error}")
    return Misfit(path, f"is of type {named(type(value))}, which JSON cannot hold{hint(type(value))}")


def refused(message: str, stored: Any, value: Any, what: str, wanted: str, convert: Callable[[Any], object]) -> Misfit:
    """msgspec's ``message`` about ``stored``, said of the ``value`` that it stands for.

    Args:
        what: the name of the value in paths.
        wanted: its type as it is written in code.
        convert: what raised the message, to find out which key of a dictionary it was.
    """
    parts = _MESSAGE.fullmatch(message)
    place, reason = (parts["place"] or "", parts["reason"]) if parts else ("", message)
    keys: list[Any] = []
    for step in _STEP.finditer(place):
        if step["name"] is not None:
            keys.append(step["name"])
        elif step["index"] is not None:
            keys.append(int(step["index"]))
        else:
            keys.append(_failing_key(message, stored, keys, convert))
    path, found = what, value
    for key in keys:
        path += "[...]" if key is _UNKNOWN else _step(found, key)
        found = _inside(found, key)
    if parts and parts["key"]:
        return Misfit(path, f"has a key that does not fit: {_plain(reason)}")
    expected = _EXPECTED.fullmatch(reason)
    if found is _UNKNOWN:
        return Misfit(path, _plain(reason))
    if expected is None:
        needed = "" if place else f", where {wanted} is needed"
        return Misfit(path, f"is of type {named(type(found))}{needed}: {_plain(reason)}")
    if place:
        wanted = re.sub(r"\w+", lambda word: _IN_PYTHON.get(word[0], word[0]), expected["wanted"])
    return Misfit(path, f"is of type {named(type(found))}, where {wanted} is needed{hint(type(found))}")


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value consists of, each with the step that leads to it."""
    names = fields(value)
    if names is not None:
        yield from ((f".{name}", getattr(value, name, None)) for name in names)
    elif isinstance(value, dict):
        yield from ((f"[{short(key)}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((_step(value, index), item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"[{short(item)}]", item) for item in value)


def _fails(encode: Callable[[Any], object], value: Any) -> bool:
    try:
        encode(value)
    except Exception:
        return True
    return False


def _failing_key(message: str, stored: Any, keys: list[Any], convert: Callable[[Any], object]) -> Any:
    """Which entry of the container at ``keys`` gives the message: tried with each of them alone."""
    container = stored
    for key in keys:
        container = _inside(container, key)
    if not isinstance(container, dict | list | tuple):
        return _UNKNOWN
    for key in container if isinstance(container, dict) else range(len(container)):
        try:
            convert(_with_only(stored, keys, key))
        except msgspec.ValidationError as error:
            if str(error) == message:
                return key
        except Exception:
            pass  # another trouble than the one that is looked for
    return _UNKNOWN


def _with_only(stored: Any, keys: list[Any], key: Any) -> Any:
    """A copy of ``stored`` in which the container at ``keys`` has nothing but the entry ``key``."""
    if not keys:
        return {key: stored[key]} if isinstance(stored, dict) else [stored[key]]
    copy = dict(stored) if isinstance(stored, dict) else list(stored)
    copy[keys[0]] = _with_only(stored[keys[0]], keys[1:], key)
    return copy


def _step(container: Any, key: Any) -> str:
    """How ``key`` is written behind ``container``."""
    if fields(container) is not None:
        return f".{key}"
    names = getattr(container, "_fields", None)  # of a NamedTuple
    return f".{names[key]}" if names is not None and type(key) is int and key < len(names) else f"[{short(key)}]"


def _inside(container: Any, key: Any) -> Any:
    try:
        return getattr(container, key) if fields(container) is not None else container[key]
    except Exception:
        return _UNKNOWN  # a set, or a key that is no text in Python


def _plain(reason: str) -> str:
    """msgspec's sentence as the middle of one of ours."""
    return reason.replace("`", "")[:1].lower() + reason.replace("`", "")[1:]
