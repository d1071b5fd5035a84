"""Descriptors that several threads share, and what a fork may not take along.

``Descriptor`` counts its users: the last one closes, so that a number which the system hands out again is never
synced or locked by a thread that still means the old file.

``ForkGuard`` holds every registered object still while this process forks, and lets the child give up what it
inherited: it closes the parent's descriptors (closing does not end a lock that the parent still holds; unlocking
would) and opens its own when it needs them.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from .errors import ReentrantCallError
from .files import Files

logger = logging.getLogger("nobroker_django")


class Descriptor:
    """An open file with a count of users; made with one. Forgotten ones are closed by the garbage collector."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self.fd = fd
        self._users = 1
        self._count = threading.Lock()
        self.identity = files.identity(fd)

    def retain(self) -> Descriptor:
        """One user more."""
        with self._count:
            self._users += 1
        return self

    def release(self) -> None:
        """One user less; the last one closes."""
        with self._count:
            self._users -= 1
            if self._users:
                return
        self._close()

    @property
    def is_open(self) -> bool:
        """False: the number may be another file's by now."""
        return self._users > 0

    def abandon(self) -> None:
        """In a forked child: close the inherited copy, whoever counted on it in the parent."""
        self._count = threading.Lock()
        self._users = 0
        self._close()

    def __del__(self) -> None:
        if self._users > 0:
            self._users = 0
            self._close()

    def _close(self) -> None:
        try:
            self._files.close(self.fd)
        except OSError as error:  # the descriptor is gone all the same (close(2)); what mattered was synced before
            logger.warning("closing descriptor %d: %s", self.fd, error)


class OwnedMutex:
    """A lock among threads that knows its owner, and refuses to be taken twice by it instead of waiting for ever.

    The only way to a second taking is a signal handler or a finaliser that runs in the middle of a call of its own
    thread. Such a handler may also raise, after any call of a Python function and at the beginning of one: so ``lock``
    is used directly, its methods are C functions, and ``let_go`` asks no question first.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # Whether this thread has it.
        self.owned: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]

    def refuse_reentry(self) -> None:
        """To be asked before the lock is taken.

        Raises:
            ReentrantCallError: this thread has it.
        """
        if self.owned():
            gc.collect()  # a call that a handler's exception ended may have left its guard in a cycle
            if self.owned():
                raise ReentrantCallError

    def let_go(self) -> None:
        """Release it, if this thread has it."""
        try:
            self.lock.release()
        except RuntimeError:
            pass  # not ours


class Forkable(Protocol):
    """What ``ForkGuard`` asks of the objects it knows."""

    def before_fork(self) -> None:
        """Let nobody be in the middle of anything."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Give up everything inherited."""


class ForkGuard:
    """The process's open sessions, held still around every fork (``os.register_at_fork``)."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._held: list[Forkable] = []
        self._lock = threading.Lock()
        os.register_at_fork(before=self._before, after_in_parent=self._parent, after_in_child=self._child)

    def add(self, item: Forkable) -> None:
        """Hold ``item`` still from now on, as long as it lives."""
        with self._lock:
            self._known.add(item)

    def _before(self) -> None:
        self._lock.acquire()
        for item in list(self._known):
            try:
                item.before_fork()
            except ReentrantCallError:
                continue  # a signal handler forks in the middle of a call of its own thread: nobody else is in one
            self._held.append(item)

    def _parent(self) -> None:
        for item in reversed(self._held):
            item.after_fork_in_parent()
        self._held = []
        self._lock.release()

    def _child(self) -> None:
        for item in list(self._known):
            item.after_fork_in_child()
        self._held = []
        self._lock = threading.Lock()


fork_guard = ForkGuard()
leaked: list[object] = []  # what a forked child inherited and must neither use nor finalise
