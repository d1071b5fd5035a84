"""What a verb may do while it holds the log's lock: append one write, and get at the projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .clock import Deadline
from .errors import CorruptLogError, LockTimeoutError, OutcomeUnknownError, StorageError
from .lockfile import LockFile
from .log import Log
from .projection import Projection

if TYPE_CHECKING:
    from .session import Session


@dataclass(slots=True)
class Held:
    """The log's lock is held: the live log, the lock file, and where things stand (bytes)."""

    session: Session
    serial: int
    log: Log
    lock_file: LockFile
    end: int
    synced: int
    build: int
    over: bool = False  # whether the lock was let go

    def __enter__(self) -> Held:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.session.unlock(self)

    def __del__(self) -> None:
        if not getattr(self, "over", True):
            self.session.unlock(self)  # a signal handler raised before the ``with`` block had begun

    def append(self, data: bytes, last: int) -> int:
        """Append one write and publish it; returns the offset where it begins.

        Args:
            last: where, from the beginning of ``data``, its last frame begins.

        On disk: one write, then two control words. Not yet durable.

        Raises:
            StorageError: the system refused; nothing of the write is left.
            OutcomeUnknownError: the system refused, and refused to take back what it had written.
        """
        log, start = self.log, self.end
        end = start + len(data)
        try:
            log.append(data, start)
            self.lock_file.control.publish(log.first_position + end, log.first_position + start)
        except OSError as error:
            self._take_back(error)
        if self.synced == start:  # nobody else waits for a sync: ours comes next
            log.start_writing(start, end)
        self.end = end
        return start

    def _take_back(self, error: OSError) -> None:
        """Undo a write that failed; always raises. Holds the log's lock.

        Raises:
            StorageError: nothing of the write is left.
            OutcomeUnknownError: taking it back failed; the queue is poisoned and the next writer secures the tail.
        """
        session, log, control = self.session, self.log, self.lock_file.control
        try:
            with session.syncs.locked(log, Deadline(session.lock_timeout)):
                words = control.read()
                control.set_poisoned(True)
                log.truncate(self.end)
                log.datasync()
                control.publish(log.position(self.end), words.last)
                control.set_poisoned(bool(words.poisoned or words.syncing))
        except (OSError, LockTimeoutError) as second:
            raise OutcomeUnknownError("write to", log.path, f"{error}; taking it back failed too: {second}") from error
        raise StorageError("write to", log.path, error) from error

    @property
    def unsynced(self) -> int:
        """How many bytes before the end are not known to be durable."""
        return self.end - self.synced if self.end > self.synced else 0

    def mark_damaged(self, error: CorruptLogError) -> None:
        """Damage was met: no process writes to this log any more, until it is sound again.

        Where nothing was known to be durable yet, it is for the next writer to secure the tail.
        """
        if error.path != self.log.name:
            return
        if error.offset < self.synced:
            self.lock_file.control.set_damaged(self.log.position(error.offset))
        else:
            self.lock_file.control.set_poisoned(True)

    def projection(self) -> Projection:
        """The current projection of the live log."""
        projection = self.session.cache.get(self.log, self.lock_file.control, self.build)
        self.build = projection.build
        return projection

    def discard_projection(self) -> None:
        """The current projection is damaged or wrong."""
        self.session.cache.discard(self.lock_file.control)
        self.build = 0
