"""A progress bar for a person at a terminal; for everybody else nothing at all.

Invariant: it is drawn on the stream for remarks, so that it never gets into a pipe, and wiped when the work is done.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from .text import escape

_EVERY_SECONDS = 0.1
_WIDTH = 30


class ProgressBar:
    """One line that is drawn anew, at most ten times a second. Use it in ``with``."""

    def __init__(
        self,
        stream: TextIO | None,
        label: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        width: int | None = None,
    ) -> None:
        """Args: ``label`` says what is being done; ``width`` is the terminal's, in characters, if it is not asked."""
        self._stream = stream if stream is not None and _is_terminal(stream) else None
        self._label = escape(label)
        self._clock = clock
        self._width = width
        self._started = clock()
        self._drawn: float | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._drawn is not None:
            self._write("\r\x1b[K")

    def __call__(self, done: int, total: int) -> None:
        """So many bytes of so many are done."""
        now = self._clock()
        if self._stream is None or (self._drawn is not None and now - self._drawn < _EVERY_SECONDS):
            return
        self._drawn = now
        share = min(done / total, 1.0) if total else 1.0
        filled = round(share * _WIDTH)
        rate = done / 1e6 / max(now - self._started, 1e-3)
        text = f"{self._label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}  {rate:.1f} MB/s"
        self._write(f"\r{text[: (self._width or shutil.get_terminal_size().columns) - 1]}\x1b[K")

    def _write(self, text: str) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):  # the terminal is gone; the work goes on
            self._stream = None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (OSError, ValueError, AttributeError):
        return False
