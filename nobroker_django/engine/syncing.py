"""The sync lock, and the sync under it: one at a time for each log, whoever asks.

Invariant: a log is synced only under its sync lock (one byte of the log's own file), and only when no earlier sync was
left unfinished: after a failed one, the next would succeed and prove nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .clock import Deadline, sleep
from .control import generation_of
from .errors import LockTimeoutError, OutcomeUnknownError
from .files import Files
from .generations import Layout
from .lockfile import LockFile
from .log import Log

_POLL_SECONDS = 0.0002


class SyncLock:
    """The sync lock as this process takes it: threads among themselves, then the byte of the log."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self._files = files
        self._layout = layout
        self._mutex = threading.Lock()

    @contextmanager
    def locked(self, log: Log, deadline: Deadline) -> Iterator[None]:
        """Hold the lock that every sync of the log needs, waiting for it.

        Raises:
            LockTimeoutError: it was not free in time.
        """
        while not self.try_lock(log):
            if deadline.passed():
                raise LockTimeoutError(
                    f"a sync of {log.path} by another process did not end within {deadline.seconds:g} s; try again",
                    path=str(log.path),
                    seconds=deadline.seconds,
                )
            sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            self.unlock(log)

    def try_lock(self, log: Log) -> bool:
        """Try it, for this thread of this process; whether it was had."""
        if not self._mutex.acquire(blocking=False):
            return False
        got = False
        try:
            got = log.try_sync_lock()
        finally:
            if not got:
                self._mutex.release()
        return got

    def unlock(self, log: Log) -> None:
        """Let it go."""
        try:
            log.sync_unlock()
        finally:
            self._mutex.release()

    def sync(self, log: Log, lock_file: LockFile, goal: int) -> None:
        """Sync up to ``goal``, the published end. The caller holds the sync lock and has found no poison.

        Raises:
            OutcomeUnknownError: the sync failed; the queue is poisoned.
        """
        control = lock_file.control
        control.begin_sync()
        try:
            log.datasync()
        except OSError as error:
            control.set_poisoned(True)
            raise OutcomeUnknownError("sync", log.path, error) from error
        control.set_synced(goal)

    def sync_if_sound(self, log: Log, lock_file: LockFile, target: int) -> int | None:
        """Sync the log, if the words allow it. The caller holds the sync lock.

        Args:
            target: the position that has to become durable.

        Returns:
            The live generation, in which ``target`` is durable; ``None`` when the tail has to be secured first.

        Raises:
            OutcomeUnknownError: the sync failed.
        """
        words = lock_file.control.read()
        if words.synced >= target:
            return generation_of(words.synced)
        if (
            words.poisoned
            or words.syncing
            or not words.belong_to(log.log_id, log.generation)
            or self._files.path_identity(self._layout.lock) != lock_file.identity
        ):
            return None
        self.sync(log, lock_file, words.end)
        return log.generation

    def before_fork(self) -> None:
        """Let no thread be in the middle of a sync."""
        self._mutex.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._mutex.release()
