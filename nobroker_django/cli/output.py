"""Where a command writes: lines and JSON on standard output, remarks and questions on standard error.

Invariant: every line is escaped; JSON is valid JSON, whatever a log of version 1 may hold.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, TextIO

from .text import escape, write_line

SCHEMA = 1
_LONGEST_INTEGER_BITS = 14_000  # 4,300 digits: what Python turns into decimal text without being asked twice


class Output:
    """The streams of one command. ``remarks`` is for what is no result: it must not get into a pipe."""

    def __init__(self, stream: TextIO | None, remarks: TextIO | None = None) -> None:
        self.stream = stream
        self.remarks = remarks
        self.lost = False

    def line(self, text: str) -> bool:
        """One line, escaped; False when nobody reads any more (``| head``), which is no error."""
        self.lost = not write_line(self.stream, escape(text))
        return not self.lost

    def json(self, document: dict[str, Any]) -> bool:
        """A document as JSON on one line; non-ASCII and control characters are escaped by JSON itself."""
        return self.line(dumps({"schema": SCHEMA, **document}))

    def remark(self, text: str) -> None:
        """One line on standard error, escaped."""
        write_line(self.remarks or sys.stderr, escape(text))

    def confirmed(self, question: str) -> bool:
        """Ask on standard error; anything but y or yes, also the end of the input, is a no."""
        stream = self.remarks or sys.stderr
        try:
            stream.write(f"{escape(question)} [y/N] ")
            stream.flush()
            answer = input("")
        except EOFError:
            write_line(stream, "")
            return False
        except (OSError, ValueError, RuntimeError):  # no standard input, or a closed one
            return False
        return answer.strip().lower() in ("y", "yes")


def dumps(value: Any) -> str:
    """``value`` as JSON text. What JSON has no word for (NaN, infinities, endless integers) becomes text."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_speakable(value), allow_nan=False)


def _speakable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _speakable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_speakable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER_BITS:
        return hex(value)
    return value
