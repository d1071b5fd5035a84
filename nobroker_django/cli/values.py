"""Argparse types: values that options take, refused with a sentence."""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from datetime import UTC, datetime
from typing import Any

_AGE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhdw]?)")
_SIZE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?:(?P<unit>[kmgt])i?)?b?", re.IGNORECASE | re.ASCII)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def positive_integer(text: str) -> int:
    """An integer above 0."""
    try:
        value = int(text)
    except ValueError:  # also of thousands of digits
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no whole number above 0")
    return value


def seconds(text: str) -> float:
    """A finite number of seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no number of seconds, such as 0.5 or 30")
    return value


def age(text: str) -> float:
    """How long ago, in seconds: a number with s, m, h, d or w behind it; seconds without one."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age such as 90s, 15m, 6h, 30d or 2w")
    return float(match["number"]) * _SECONDS[match["unit"]]


def size(text: str) -> int:
    """A number of bytes above 0: plain, or with K, M, G or T behind it (powers of 1024)."""
    match = _SIZE.fullmatch(text)
    value = int(float(match["number"]) * _BYTES[(match["unit"] or "").lower()]) if match is not None else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 200M, 1.5G or 300000000 (bytes)")
    return value


def since(text: str) -> float:
    """A moment as Unix seconds: an age before now, or an ISO 8601 date or time (UTC when it has no offset)."""
    if _AGE.fullmatch(text):
        return time.time() - age(text)
    try:
        moment = datetime.fromisoformat(text)
        return max(0.0, (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an age such as 15m, 6h or 2d nor a time such as 2026-05-01T12:00Z"
        ) from None


def json_value(text: str) -> Any:
    """A JSON value."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no JSON: {error}") from None


def json_list(text: str) -> list[Any]:
    """A JSON array."""
    value = json_value(text)
    if not isinstance(value, list):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no JSON array, such as '[1, \"two\"]'")
    return value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no JSON object, such as '{{\"size\": 1}}'")
    return value


def payload(text: str) -> Any:
    """A JSON value, or the text itself when it is none."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
