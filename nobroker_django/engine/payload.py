"""JSON that comes back equal: what would change on the way is refused before anything is written.

No JSON codec keeps this promise alone (integer keys become text, NaN becomes null, bytes become text), so the value is
walked once over exact types and then encoded by msgspec. Tuples come back as lists: the one documented change.
"""

from __future__ import annotations

import hashlib
import json
import re
from itertools import chain
from typing import Any

import msgspec

from .errors import SerializationError
from .framing import MAX_BODY_BYTES

MAX_DEPTH = 200
_MAX_PATH = 200
MAX_DIGITS = 640
_LARGE = 10**MAX_DIGITS
_MAX_VALUES = MAX_BODY_BYTES // 2  # each takes two bytes at least: more cannot fit, so there is no need to walk on
# What a record may hold besides the payload: ids, times, options.
RECORD_MARGIN = 16 * 1024
MAX_PAYLOAD_BYTES = MAX_BODY_BYTES - RECORD_MARGIN
MAX_RESULT_BYTES = 1024 * 1024

MAX_TASK_NAME = 200

_SCALARS = frozenset((str, bool, type(None), int, float))
_LISTS = frozenset((list, tuple))
_ALLOWED = _SCALARS | _LISTS | {dict}
_KEYS = {str}
_DICT = {dict}

_NOT_ENCODED = (UnicodeEncodeError, msgspec.EncodeError, ValueError, RecursionError, MemoryError)

_encoder = msgspec.json.Encoder()
_sorted_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder()


def encode_payload(value: Any, *, what: str = "payload", limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """``value`` as JSON bytes that decode to an equal value.

    Args:
        value: any JSON value: ``None``, bool, int, finite float, str, list, tuple, dict with str keys.
        what: the name of the value in error messages.
        limit: largest number of bytes.

    Raises:
        SerializationError: JSON would change the value, or it is too large or nested too deeply; ``path`` says where.
    """
    values = [value]
    try:
        data = _encoder.encode(value) if _is_exact(values) else None
    except _NOT_ENCODED:
        data = None
    if data is None or (len(data) > MAX_DIGITS and not _is_exact(values, integers=True)):
        path, detail = _locate(value, what) or (what, "cannot be written as JSON")
        raise SerializationError(f"{detail}. Nothing was stored.", path=path)
    if len(data) > limit:
        raise SerializationError(
            f"takes {len(data)} bytes as JSON, the limit is {limit}. Nothing was stored. "
            "Keep large data in a file or a database row and pass its name.",
            path=what,
        )
    return data


def encode_payloads(
    values: list[Any], *, what: str = "payloads", limit: int = MAX_PAYLOAD_BYTES
) -> tuple[list[bytes], list[Any]]:
    """Each of many values, as ``encode_payload`` does it with one, and as it comes back; quicker than one by one.

    Raises:
        SerializationError: one of them cannot be stored exactly; ``path`` begins with ``payloads[INDEX]``.
    """
    copies = _flat_copies(values)  # cheaper than decoding what was encoded
    lines = _encode_exactly(copies or values, exact=copies is not None)
    if lines is None or max(map(len, lines), default=0) > limit:
        lines = [encode_payload(value, what=f"{what}[{index}]", limit=limit) for index, value in enumerate(values)]
        copies = None
    return lines, copies or _decoder.decode_lines(b"\n".join(lines))


def _encode_exactly(values: list[Any], *, exact: bool) -> list[bytes] | None:
    """Each value as JSON bytes, or ``None`` when one of them cannot be stored exactly.

    ``exact``: it is known that JSON changes nothing in them, long integers left aside.
    """
    if not exact and not _is_exact(values):
        return None
    try:
        lines = _encoder.encode_lines(values).split(b"\n")[:-1]  # JSON text has no line feed of its own
    except _NOT_ENCODED:
        return None
    if max(map(len, lines), default=0) > MAX_DIGITS and not _is_exact(values, integers=True):
        return None
    return lines


def decode_payload(data: bytes | msgspec.Raw) -> Any:
    """The value of JSON bytes that ``encode_payload`` made (or version 1 wrote, whose JSON was laxer)."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return json.loads(bytes(data))


def _flat_copies(values: list[Any]) -> list[Any] | None:
    """A copy of each value, if all are dictionaries of plain scalars in which JSON changes nothing."""
    if set(map(type, values)) != _DICT:
        return None
    copies = list(map(dict.copy, values))
    members = list(chain.from_iterable(map(dict.values, copies)))
    kinds = set(map(type, members))
    if not kinds <= _SCALARS or not set(map(type, chain.from_iterable(copies))) <= _KEYS:
        return None
    return copies if _is_finite(members, kinds) else None


class _Named(msgspec.Struct):
    task: str | None = None


_named_decoder = msgspec.json.Decoder(_Named)
_TASK_FIRST = re.compile(rb'\{"task":"([^"\\]{1,%d})"[,}]' % MAX_TASK_NAME)


def task_name(data: bytes | msgspec.Raw) -> str | None:
    """The ``task`` of a payload that is a task's call, without decoding the rest of it; ``None`` for any other."""
    found = _TASK_FIRST.match(data)
    if found:
        return found[1].decode()
    view = bytes(data)
    if not view.startswith(b"{"):
        return None
    try:
        name = _named_decoder.decode(view).task
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return name if name is None or len(name) <= MAX_TASK_NAME else None


def payload_digest(data: bytes | msgspec.Raw) -> str:
    """SHA-256 of the payload with sorted keys, as 64 hex digits: equal payloads have equal digests."""
    try:
        text = _sorted_encoder.encode(_decoder.decode(data))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):  # version 1 wrote it: NaN, lone surrogates
        text = json.dumps(decode_payload(data), separators=(",", ":"), sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()


def _is_exact(values: list[Any], *, integers: bool = False) -> bool:
    """Whether JSON changes nothing in the values; lone surrogates are the encoder's to refuse.

    The values are judged level by level, each by the set of the types in it: only floats are looked at singly, and
    with ``integers`` the lengths of integers (no integer is longer than the JSON text that it is in).
    """
    level, depth, seen = values, 0, 0
    while True:
        kinds = set(map(type, level))
        if not kinds <= _ALLOWED:
            return False
        if not _is_finite(level, kinds):
            return False
        if integers and int in kinds and not all(-_LARGE < item < _LARGE for item in level if type(item) is int):
            return False
        if kinds <= _SCALARS:
            return True
        depth += 1
        if dict in kinds:
            dicts = level if len(kinds) == 1 else [item for item in level if type(item) is dict]
        else:
            dicts = []
        others = [item for item in level if type(item) in _LISTS] if kinds & _LISTS else []
        if not set(map(type, chain.from_iterable(dicts))) <= _KEYS:
            return False
        seen += sum(map(len, dicts)) + sum(map(len, others))
        if depth > MAX_DEPTH or seen > _MAX_VALUES:
            return False
        level = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(others)]


def _is_finite(values: list[Any], kinds: set[type]) -> bool:
    """Whether no float among the values, which are of these kinds, is infinite or NaN."""
    return float not in kinds or all(item - item == 0 for item in values if type(item) is float)


def _locate(value: Any, what: str) -> tuple[str, str] | None:
    """Path and description of the first trouble; slow, and only walked when there is one."""
    stack: list[tuple[Any, int, str]] = [(value, 1, what)]
    seen = 0
    while stack:
        item, depth, path = stack.pop()
        detail = _describe(item, depth)
        if detail is not None:
            return (path if len(path) <= _MAX_PATH else path[:_MAX_PATH] + "…"), detail
        if type(item) is dict:
            for key in item:
                detail = _describe_key(key) or _describe(key, 1)
                if detail is not None:
                    return path, detail
            children = [(child, depth + 1, f"{path}[{short(key)}]") for key, child in item.items()]
        elif type(item) in (list, tuple):
            children = [(child, depth + 1, f"{path}[{index}]") for index, child in enumerate(item)]
        else:
            continue
        seen += len(children)
        if seen > _MAX_VALUES:
            return (
                what,
                f"holds more than {_MAX_VALUES} values, which cannot fit into a record of {MAX_BODY_BYTES} bytes",
            )
        stack.extend(reversed(children))
    return None


def _describe_key(key: Any) -> str | None:
    if type(key) is str:
        return None
    return f"has the key {short(key)} of type {type(key).__name__}; JSON keys are text, it would come back changed"


def _describe(item: Any, depth: int) -> str | None:
    """Why ``item`` itself (not what it holds) cannot be stored exactly, or ``None``."""
    kind = type(item)
    if kind is str:
        try:
            item.encode()
        except UnicodeEncodeError as error:
            return f"has a lone surrogate at position {error.start}, which no UTF-8 text can hold"
        return None
    if item is None or kind is bool:
        return None
    if kind is int:
        return None if -_LARGE < item < _LARGE else f"is an integer of more than {MAX_DIGITS} digits"
    if kind is float:
        return None if item - item == 0 else f"is {item!r}, which JSON cannot hold"
    if kind is dict or kind is list or kind is tuple:
        return None if depth <= MAX_DEPTH else f"is nested more than {MAX_DEPTH} levels deep"
    return f"is of type {kind.__module__}.{kind.__qualname__}, which JSON would change or cannot hold{hint(kind)}"


def hint(kind: type) -> str:
    """A next step for types that people often pass, in brackets behind a space, or nothing."""
    if kind in _ALLOWED:
        return ""
    names = {base.__name__ for base in kind.__mro__}
    if "Promise" in names or kind.__name__ == "__proxy__":
        return " (a lazy translation: pass str(value) in the language that you want)"
    if "SimpleLazyObject" in names:
        return " (a lazy object, such as request.user: pass the primary key and load the object in the task)"
    if "Model" in names:
        return " (pass the primary key and load the object in the task)"
    if "QuerySet" in names:
        return " (pass a list of primary keys)"
    if "HttpRequest" in names:
        return " (pass the values that the task needs)"
    if issubclass(kind, str):
        return " (a subclass of str, such as a SafeString: pass str.__str__(value))"
    for base in (int, float, dict, list, tuple):
        if issubclass(kind, base):
            return f" (a subclass of {base.__name__}: pass {base.__name__}(value))"
    if kind.__name__ in ("datetime", "date", "time", "UUID", "Decimal", "Path", "PosixPath"):
        return " (pass it as text, such as str(value))"
    return ""


def short(value: Any) -> str:
    """A key as it is shown in a path; never raises."""
    if type(value) is str:
        shown = value if len(value) <= 40 else value[:40] + "…"
        return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown) + '"'
    if type(value) in (int, float, bool, type(None)):
        return repr(value)[:40]
    return f"<{type(value).__name__}>"
