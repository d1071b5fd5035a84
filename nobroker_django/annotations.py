"""From the annotation of a parameter to the converter of its values.

Invariant: what can be known of an annotation is known when the function is decorated. One that names what is not there
yet (a class further down in the module, an import for the type checker) is looked up again when it is needed.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, get_args, get_origin

from msgspec import inspect as types

from .converters import BY_HAND, Converter
from .engine.payload import hint
from .roundtrip import named

_SCALARS: dict[type, type] = {
    types.IntType: int,
    types.StrType: str,
    types.BoolType: bool,
    types.FloatType: float,
    types.NoneType: type(None),
}
_PLAIN = (
    types.AnyType, types.IntType, types.StrType, types.BoolType, types.NoneType, types.UnionType, types.ListType,
    types.LiteralType,
)  # fmt: skip
_SETS = (types.SetType, types.FrozenSetType)
_KEYS = (
    types.AnyType, types.StrType, types.IntType, types.EnumType, types.LiteralType, types.UUIDType, types.DateType,
    types.DateTimeType, types.TimeType, types.TimeDeltaType, types.DecimalType, types.BytesType, types.UnionType,
)  # fmt: skip
_MARKS = tuple(getattr(typing, name) for name in ("Required", "NotRequired", "ReadOnly") if hasattr(typing, name))
_UNANNOTATED = (typing.Unpack, typing.ParamSpecArgs, typing.ParamSpecKwargs)


class UnresolvedError(Exception):
    """The annotation names what is not there, or not yet."""


class AmbiguousError(Exception):
    """JSON could not tell the types of the annotation apart: it can never work."""


class UnsupportedError(Exception):
    """No JSON stands for the values of the annotation; ``optional`` where ``None`` may be passed nevertheless."""

    def __init__(self, reason: str, *, optional: bool) -> None:
        super().__init__(reason)
        self.optional = optional


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Its signature, whatever its annotations name: what is not there (yet) is looked up by ``converter_of``."""
    if sys.version_info >= (3, 14):  # where annotations are evaluated only when somebody asks for them
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def namespace_of(function: Callable[..., Any]) -> Mapping[str, Any] | None:
    """Where the names in the function's annotations are looked up; ``None`` where ``@no_type_check`` says not to."""
    inner = inspect.unwrap(function)
    if getattr(inner, "__no_type_check__", False):
        return None
    return getattr(inner, "__globals__", {})


class NotGiven:
    """The default of a key that a ``TypedDict`` does not require."""

    def __repr__(self) -> str:
        return "..."


NOT_GIVEN = NotGiven()


def spread(parameter: inspect.Parameter, namespace: Mapping[str, Any] | None) -> list[inspect.Parameter]:
    """``**options: Unpack[Options]`` of a ``TypedDict`` as the keyword parameters that it means; any other as it is.

    Raises:
        UnresolvedError: see there.
    """
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD or namespace is None:
        return [parameter]
    wanted = _resolved(parameter.annotation, namespace)
    if get_origin(wanted) is not typing.Unpack:
        return [parameter]
    (options,) = get_args(wanted)
    try:
        hints = typing.get_type_hints(options, include_extras=True)
        required = options.__required_keys__
    except (NameError, AttributeError) as error:
        raise UnresolvedError(f"{type(error).__name__}: {error}") from None
    found = []
    for name, hint_of_key in hints.items():
        needed, annotation = name in required, hint_of_key
        while (mark := get_origin(annotation)) in _MARKS:
            needed = mark is typing.Required or (needed and mark is not typing.NotRequired)
            (annotation,) = get_args(annotation)
        default = inspect.Parameter.empty if needed else NOT_GIVEN
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    return found


def converter_of(annotation: Any, namespace: Mapping[str, Any] | None) -> Converter | None:
    """The converter for the values of a parameter, or ``None`` where any JSON value is passed on as it is.

    Args:
        annotation: as it stands in the signature.
        namespace: of the function, see ``namespace_of``.

    Raises:
        UnresolvedError, AmbiguousError, UnsupportedError: see there.
    """
    if namespace is None:
        return None
    wanted = _resolved(annotation, namespace)
    if wanted in (inspect.Parameter.empty, Any, object) or any(
        mark in (get_origin(wanted), type(wanted)) for mark in _UNANNOTATED
    ):
        return None
    try:
        info = types.type_info(wanted)
    except (NameError, AttributeError) as error:  # in a class that the annotation names
        raise UnresolvedError(f"{type(error).__name__}: {error}") from None
    except Exception as error:
        raise _refusal(wanted, str(error)) from None
    if isinstance(info, types.AnyType):
        return None
    parts = list(_parts(info))
    for part in parts:
        if isinstance(part, types.CustomType) and part.cls not in BY_HAND:
            raise UnsupportedError(_unsupported(part.cls), optional=_optional(wanted))
        if isinstance(part, types.RawType | types.ExtType | types.MemoryViewType):
            raise UnsupportedError(_unsupported(wanted), optional=_optional(wanted))
        if isinstance(part, types.DictType) and not isinstance(part.key_type, _KEYS):
            raise UnsupportedError("the keys of a dict are text in JSON; pass a list of pairs", optional=False)
    return Converter(
        wanted,
        exact=_exact(info),
        plain=all(map(_is_plain, parts)),
        unordered=any(isinstance(part, _SETS) for part in parts),
    )


def _resolved(annotation: Any, namespace: Mapping[str, Any]) -> Any:
    """The annotation with everything in it that is text looked up."""
    holder: Any = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, dict(namespace), include_extras=True)["it"]
    except SyntaxError:
        raise UnsupportedError(f"{annotation!r} is no type", optional=False) from None
    except Exception as error:
        raise UnresolvedError(f"{type(error).__name__}: {error}") from None


def _parts(info: types.Type) -> Iterator[types.Type]:
    """A type and everything that it consists of, each once."""
    seen: set[int] = set()
    left: list[Any] = [info]
    while left:
        part = left.pop()
        if isinstance(part, tuple):
            left += part
        elif isinstance(part, types.Field):
            left.append(part.type)
        elif isinstance(part, types.Type) and id(part) not in seen:
            seen.add(id(part))
            yield part
            left += [getattr(part, name) for name in part.__struct_fields__ if name not in ("cls", "values")]


def _exact(info: types.Type) -> frozenset[type]:
    """The types of values for which there is nothing to convert or check."""
    parts = info.types if isinstance(info, types.UnionType) else (info,)
    free = [part for part in parts if type(part) in _SCALARS and not _constrained(part)]
    return frozenset(_SCALARS[type(part)] for part in free)


def _constrained(part: types.Type) -> bool:
    return any(getattr(part, name) is not None for name in part.__struct_fields__)


def _is_plain(part: types.Type) -> bool:
    if isinstance(part, types.DictType):
        return isinstance(part.key_type, types.StrType | types.AnyType)
    return isinstance(part, _PLAIN)


def _optional(wanted: Any) -> bool:
    return type(None) in get_args(wanted)


def _refusal(wanted: Any, message: str) -> Exception:
    """msgspec's reason not to know a type, in our words."""
    reason = message.partition(" - type `")[0].partition(" is not supported")[0].replace("`", "")
    if message.startswith("Type unions") and "custom type" not in message:
        return AmbiguousError(reason[:1].lower() + reason[1:])
    return UnsupportedError(f"{reason}: no JSON stands for it", optional=_optional(wanted))


def _unsupported(kind: Any) -> str:
    advice = hint(kind) if isinstance(kind, type) else ""
    if not advice and kind is Callable:
        advice = " (pass a name by which the task finds the function)"
    return f"no JSON stands for {named(kind)}{advice or ' (pass what it is made of: text, numbers, a dataclass)'}"
