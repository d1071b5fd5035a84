"""One live line on a terminal that says how the work is going; for everybody else nothing at all.

Invariant: the line stands below everything else that is written while ``hidden()`` is used around each ordinary line:
it is erased before and drawn anew after, so no two lines tear each other, and it never wraps. Other processes that
write to the same terminal begin each of their lines with ``ERASE``, and the owner of the live line is told that it is
``shared``: then it is drawn anew each time, and stands below their lines again a moment later.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from nobroker_django.cli.text import escape, shorten

SHORTEST_PAUSE = 0.25
"""Seconds between two drawings."""
ERASE = "\r\x1b[K"
_USUAL_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Counts:
    """What the line shows; ``done`` and ``failed`` since the start of the command."""

    ready: int
    delayed: int
    running: int
    done: int
    failed: int

    def __str__(self) -> str:
        return (
            f"{self.running:,} running · {self.ready:,} ready · {self.delayed:,} delayed · "
            f"{self.done:,} done · {self.failed:,} failed"
        )


class LiveLine:
    """Draws when ``refresh()`` is called, at most four times a second; may be used by several threads.

    Args:
        stream: where it is drawn, if that is a terminal (and ``TERM`` is not ``dumb``).
        counts: asked whenever it is drawn; what it raises is raised by ``refresh()``.
        shared: whether other processes write lines to the same terminal.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        stream: TextIO | None,
        counts: Callable[[], Counts],
        *,
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream if stream is not None and is_capable(stream) else None
        self._counts = counts
        self._shared = shared
        self._clock = clock
        self._lock = threading.RLock()
        self._drawn_at: float | None = None
        self._text = ""
        self._shown = False

    @property
    def active(self) -> bool:
        """Whether there is a terminal to draw on: otherwise nobody need call ``refresh()``."""
        return self._stream is not None

    def refresh(self) -> None:
        """Draw the line with new counts, unless that was done just now."""
        with self._lock:
            now = self._clock()
            if self._stream is None or (self._drawn_at is not None and now - self._drawn_at < SHORTEST_PAUSE):
                return
            self._drawn_at = now
            text = escape(str(self._counts()))
            if self._shared or text != self._text or not self._shown:
                self._text = text
                self._draw()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Around the writing of an ordinary line: erased before, drawn anew after."""
        with self._lock:
            shown = self._shown
            self._erase()
            try:
                yield
            finally:
                if shown:
                    self._draw()

    def close(self) -> None:
        """Erase it, and draw nothing any more."""
        with self._lock:
            self._erase()
            self._stream = None

    def _draw(self) -> None:
        # One column stays free: in the last one some terminals wrap. The width is asked anew, windows change.
        self._write(ERASE + shorten(self._text, max(1, _width(self._stream) - 1)))
        self._shown = True

    def _erase(self) -> None:
        if self._shown:
            self._write(ERASE)
            self._shown = False

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone; the work goes on
            self._stream = None


def is_capable(stream: TextIO) -> bool:
    """Whether a live line can be drawn there."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (OSError, ValueError, AttributeError):
        return False


def _width(stream: TextIO | None) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH if stream is not None else _USUAL_WIDTH
    except (OSError, ValueError, AttributeError):
        return _USUAL_WIDTH
