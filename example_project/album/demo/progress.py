"""The progress bar: redrawn in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
from typing import TextIO

WIDTH = 24  # characters between the brackets
LINES_WITHOUT_TERMINAL = 5  # how often a log file sees the bar on its way from 0 to the end


class Progress:
    """Prints lines, and keeps a bar below them while there is something to wait for."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._drawn = ""
        self._step = -1

    def say(self, text: str) -> None:
        """Print a line; the bar moves down."""
        self._erase()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def show(self, done: int, total: int, text: str) -> None:
        """Draw the bar at `done` of `total`."""
        line = bar(done, total, text)
        if self._terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            if line != self._drawn:
                self._erase()
                self._stream.write(line)
                self._stream.flush()
                self._drawn = line
        else:
            step = done * LINES_WITHOUT_TERMINAL // max(total, 1)
            if step > self._step:
                self._step = step
                self.say(line)

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write("\r" + " " * len(self._drawn) + "\r")
            self._drawn = ""


def bar(done: int, total: int, text: str) -> str:
    """The bar as one line."""
    filled = WIDTH * done // max(total, 1)
    return f"  [{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{total} done  {text}"
