"""What a failed attempt leaves behind: text of any kind, made recordable and cut.

Nothing an exception does while it is turned into text may keep its failure from being recorded.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

MAX_MESSAGE_BYTES = 8 * 1024
MAX_TRACEBACK_BYTES = 64 * 1024
MAX_CLASS_BYTES = 500
_CUT = " … [cut]"


@dataclass(frozen=True, slots=True)
class FailureText:
    """Message, class name and traceback of a failure, fit to be recorded."""

    message: str | None
    error_class: str | None = None
    traceback: str | None = None


def in_one_line(error_class: str | None, message: str | None) -> str | None:
    """Class and message, as far as they are known: ``ValueError: no such address``."""
    return ": ".join(part for part in (error_class, message) if part) or None


def describe(error: str | BaseException | None) -> FailureText:
    """The recordable text of an error; never raises.

    Messages are cut at 8 KiB (the end goes), also inside tracebacks; those at 64 KiB (the beginning goes).
    """
    if error is None:
        return FailureText(None)
    if not isinstance(error, BaseException):
        return FailureText(_recordable(str.__str__(error) if isinstance(error, str) else _safely(error)))
    return FailureText(
        _recordable(_safely(error)), _recordable(_name(type(error)), MAX_CLASS_BYTES), _traceback(error)
    )


def _name(kind: type) -> str:
    try:
        module, name = str.__str__(kind.__module__), str.__str__(kind.__qualname__)
        return name if module in ("builtins", "__main__") else f"{module}.{name}"
    except BaseException:  # of a metaclass
        return type.__dict__["__name__"].__get__(kind)  # type: ignore[no-any-return]


def _safely(error: object) -> str:
    try:
        return str.__str__(str(error))  # what it has made may be a subclass with methods of its own
    except BaseException as second:
        return f"<{_name(type(error))}: its text cannot be had, str() raised {_name(type(second))}>"


def _traceback(error: BaseException) -> str | None:
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        lines = [line if len(line) <= MAX_MESSAGE_BYTES else line[:MAX_MESSAGE_BYTES] + _CUT + "\n" for line in lines]
        return _recordable("".join(lines), MAX_TRACEBACK_BYTES, keep_end=True)
    except BaseException:
        pass
    try:
        return _recordable("".join(traceback.format_tb(error.__traceback__)), MAX_TRACEBACK_BYTES, keep_end=True)
    except BaseException:
        return None


def _recordable(text: str, limit: int = MAX_MESSAGE_BYTES, *, keep_end: bool = False) -> str:
    """``text`` as valid UTF-8 (lone surrogates escaped) of at most ``limit`` bytes, with a marker where it was cut."""
    text = text[-limit:] if keep_end else text[: limit + 1]
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit and len(text) <= limit and not (keep_end and len(text) == limit):
        return data.decode()
    room = limit - len(_CUT.encode())
    if keep_end:
        return _CUT.strip() + "\n" + data[-room:].decode("utf-8", "ignore")
    return data[:room].decode("utf-8", "ignore") + _CUT
