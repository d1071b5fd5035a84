"""Whether a value that has been JSON is what it was before: the same types, equal, nothing lost.

Invariant: equality alone is not trusted (``1 == True``, ``Decimal("1.0") == Decimal("1")``, two times of an autumn
night). Two documented changes pass: a tuple that comes back as a list, and an int that comes back as an equal float.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from datetime import datetime, time
from decimal import Decimal
from typing import Any

import msgspec

from .engine.payload import hint, short

_SCALARS = frozenset((str, int, float, bool, type(None)))


def difference(value: Any, back: Any, path: str) -> tuple[str, str] | None:
    """Path and description of the first thing in which ``back`` is not what ``value`` was, or ``None``."""
    kind, got = type(value), type(back)
    if kind is not got and not (got is list and kind is tuple) and not (got is float and kind is int):
        return path, f"is of type {named(kind)} and would arrive as {named(got)}{hint(kind)}"
    if kind in _SCALARS:
        return None if value == back else _changed(path, value, back)
    if isinstance(value, list | tuple):
        return None if _plainly_equal(value, back) else _first(_items(value, back), path)
    if isinstance(value, dict):
        if len(value) != len(back):
            lost = next((key for key in value if key not in back), None)
            return path, f"has the key {short(lost)}, which would be lost"
        return _other_member(value, back, path, "key") or _first(
            ((key, item, back[key]) for key, item in value.items()), path
        )
    if isinstance(value, set | frozenset):
        if len(value) != len(back):
            return path, "has members that are one and the same in JSON"
        return _other_member(value, back, path, "member")
    names = fields(value)
    if names is not None:
        for name in names:
            found = difference(getattr(value, name, None), getattr(back, name, None), f"{path}.{name}")
            if found is not None:
                return found
        return None
    return None if _equal(value, back) else _changed(path, value, back)


def fields(value: Any) -> Iterable[str] | None:
    """The names of the fields of an object that consists of fields, or ``None``."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    attributes = getattr(type(value), "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


def named(kind: Any) -> str:
    """A type as it is written in code."""
    return "None" if kind is type(None) else inspect.formatannotation(kind).replace("pathlib._local.", "pathlib.")


def _plainly_equal(value: Any, back: Any) -> bool:
    """The quick answer for lists of scalars."""
    kinds = list(map(type, value))
    return set(kinds) <= _SCALARS and kinds == list(map(type, back)) and list(value) == list(back)


def _items(value: Any, back: Any) -> Iterator[tuple[Any, Any, Any]]:
    if len(value) != len(back):
        yield 0, value, None
    yield from ((index, *pair) for index, pair in enumerate(zip(value, back, strict=False)))


def _first(pairs: Iterable[tuple[Any, Any, Any]], path: str) -> tuple[str, str] | None:
    for key, item, other in pairs:
        found = difference(item, other, "")
        if found is not None:
            return f"{path}[{short(key)}]{found[0]}", found[1]
    return None


def _other_member(value: Iterable[Any], back: Iterable[Any], path: str, what: str) -> tuple[str, str] | None:
    """The first key or member that is not among those that came back, in its own type."""
    same = {member: member for member in back}
    for member in value:
        if member not in same or difference(member, same[member], "") is not None:
            return path, f"has the {what} {short(member)}, which would not come back as it is"
    return None


def _equal(value: Any, back: Any) -> bool:
    if isinstance(value, Decimal):
        return bool(value.as_tuple() == back.as_tuple())  # with the zeros at its end; NaN is not equal to itself
    if isinstance(value, datetime | time):
        if (value.tzinfo is None) is not (back.tzinfo is None) or value.utcoffset() != back.utcoffset():
            return False
        if value.fold and value.tzinfo is None:
            return False  # JSON has no place for it; with an offset it is not needed
        value, back = value.replace(tzinfo=None), back.replace(tzinfo=None)
    return bool(value == back)


def _changed(path: str, value: Any, back: Any) -> tuple[str, str]:
    if isinstance(value, float) and value != value:
        return path, "is nan, which JSON cannot hold"
    return path, f"would not come back as it is: {value!r:.80} would arrive as {back!r:.80}"
