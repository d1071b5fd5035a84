"""Long work on projections beside the verbs, in a process that may fork meanwhile.

Invariant: while this process forks, no projection is in the middle of a call, and a child neither uses nor closes what
the thread that does not exist there had open. (The session's own files are held still by the session's lock, which is
never waited for in here.)
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from .errors import CompactionError
from .locks import fork_guard, leaked

logger = logging.getLogger("nobroker_django")

T = TypeVar("T")


class Beside:
    """Work in pieces, one thread's."""

    def __init__(self, give_up: Callable[[], bool]) -> None:
        """Args: give_up: asked before each piece; once it says True, the work ends."""
        self._give_up = give_up
        self._still = threading.Lock()
        self._open = ExitStack()
        self._inherited: list[Callable[[], None]] = []
        fork_guard.add(self)

    def do(self, act: Callable[[], T]) -> T:
        """One piece of work.

        Raises:
            CompactionError: it is not wanted any more.
        """
        if self._give_up():
            raise CompactionError("the compaction was given up, as was asked for; the queue is unchanged")
        with self._still:
            return act()

    def closes(self, close: Callable[[], None], in_child: Callable[[], None] | None = None) -> None:
        """Call ``close`` at the end, last one first.

        Args:
            in_child: what a forked child calls at once instead; by default nothing, and ``close`` never.
        """
        self._open.callback(close)
        if in_child is not None:
            self._inherited.append(in_child)

    def end(self) -> None:
        """Close what is open. Never raises for what the system refuses: what matters was done before."""
        with self._still:
            try:
                self._open.close()
            except (OSError, sqlite3.Error) as error:
                logger.warning("closing the files of a compaction: %s", error)

    def before_fork(self) -> None:
        """Wait for the end of a piece."""
        self._still.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._still.release()

    def after_fork_in_child(self) -> None:
        """Give up what was inherited."""
        leaked.append(self._open)
        self._open = ExitStack()
        for give_up in self._inherited:
            give_up()
