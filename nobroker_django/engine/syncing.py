"""The sync lock, and the sync under it: one at a time for each log, whoever asks.

Invariant: a log is synced only under its sync lock (one byte of the log's own file), and only when no earlier sync was
left unfinished: after a failed one, the next would succeed and prove nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .clock import Deadline, sleep
from .control import Words, generation_of
from .errors import LockTimeoutError, OutcomeUnknownError
from .files import Files
from .generations import Layout
from .lockfile import LockFile
from .locks import OwnedMutex
from .log import Log

logger = logging.getLogger("nobroker_django")
_POLL_SECONDS = 0.0002


class Taken:
    """The sync lock, held until the end of the ``with`` block (or until this object is gone)."""

    _over = True

    def __init__(self, sync_lock: SyncLock, log: Log) -> None:
        self._sync_lock = sync_lock
        self._log = log
        sync_lock.serial += 1
        self._serial = sync_lock.active = sync_lock.serial
        self._over = False

    def __enter__(self) -> None:
        """Nothing to do: it is held already."""

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.release()

    def __del__(self) -> None:
        if not self._over:
            self.release()

    def release(self) -> None:
        """Let it go; again: nothing."""
        sync_lock = self._sync_lock
        if sync_lock.active != self._serial or not sync_lock.mutex.owned():
            return
        try:
            self._log.sync_unlock()
        except OSError as error:  # closed meanwhile, which lets it go as well
            logger.warning("could not unlock the sync lock of %s: %s", self._log.path, error)
        sync_lock.active = 0
        self._over = True
        sync_lock.mutex.lock.release()


class SyncLock:
    """The sync lock as this process takes it: threads among themselves, then the byte of the log."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self._files = files
        self._layout = layout
        self.mutex = OwnedMutex()
        self.serial = self.active = 0  # number of the last taking, and of the one that lasts

    def locked(self, log: Log, deadline: Deadline) -> Taken:
        """Take the lock that every sync of the log needs, waiting for it. Use it in ``with``.

        Raises:
            LockTimeoutError: it was not free in time.
        """
        while True:
            taken = self.try_lock(log)
            if taken is not None:
                return taken
            if deadline.passed():
                raise LockTimeoutError(
                    f"a sync of {log.path} by another process did not end within {deadline.seconds:g} s; try again",
                    path=str(log.path),
                    seconds=deadline.seconds,
                )
            sleep(_POLL_SECONDS)

    def refuse_reentry(self) -> None:
        """Raises ``ReentrantCallError`` in a signal handler that interrupted a sync of its own thread."""
        self.mutex.refuse_reentry()

    def try_lock(self, log: Log) -> Taken | None:
        """Try it, for this thread of this process; ``None`` when somebody else has it."""
        if self.mutex.owned():
            return None
        taken = None
        try:
            if self.mutex.lock.acquire(blocking=False) and log.try_sync_lock():
                taken = Taken(self, log)
            return taken
        finally:
            if taken is None:
                self.mutex.let_go()

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

    def sync_if_sound(self, log: Log, lock_file: LockFile, target: int, notice: Callable[[Words], None]) -> int | None:
        """Sync the log, if the words allow it. The caller holds the sync lock.

        Args:
            target: the position that has to become durable.
            notice: is shown the words before the sync.

        Returns:
            The live generation, in which ``target`` is durable; ``None`` when the tail has to be secured first.

        Raises:
            OutcomeUnknownError: the sync failed.
        """
        words = lock_file.control.read()
        notice(words)
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
        """Let no other thread be in the middle of a sync."""
        self.mutex.lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self.mutex.let_go()
