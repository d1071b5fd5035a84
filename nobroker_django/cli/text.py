"""Text for terminals: one line per item whatever the data hold, times, sizes and durations for people.

Invariant: what ``escape`` returns has no control character, line end, direction mark or surrogate in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TextIO

PREVIEW = 500


def escape(text: str) -> str:
    """``text`` on one line: control characters, line ends, direction marks and surrogates as backslash escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def shorten(text: str, limit: int = PREVIEW) -> str:
    """``text``, cut after ``limit`` characters with a mark."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def iso(moment: float | None) -> str | None:
    """Unix seconds as ISO 8601 in UTC; None stays None."""
    if moment is None:
        return None
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def duration(seconds: float) -> str:
    """Seconds for people: ``4.2s``, ``3m05s``, ``2h10m``, ``5d03h``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for unit, below, size, part in (("m", "s", 60, 1), ("h", "m", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if unit == "m" else 24) or unit == "d":
            return f"{whole // size}{unit}{whole % size // part:02d}{below}"
    raise AssertionError


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Rows as lines with aligned columns; ``right`` names the columns (from 0) that are flush right."""
    cells = [[escape(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    flush_right = set(right)
    return [
        "  ".join(
            cell.rjust(widths[column]) if column in flush_right else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]


def write_line(stream: TextIO | None, text: str) -> bool:
    """Write one line; returns False when nobody can read it any more.

    A stream that cannot be written is put aside (its descriptor is pointed at the null device), so that neither
    the next line nor the interpreter's flush at exit turns a lost reader into a failed command.
    """
    if stream is None:
        return False
    try:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except ValueError:  # closed
        return False
    except OSError:
        _discard(stream)
        return False
    return True


def _discard(stream: TextIO) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass
