"""The way of what is written from the live log into the new one that is to replace it.

Invariant: up to ``reached`` the old log is in the new one, and after each round it is known to be durable so far:
bytes that are not may still be cut off, and others take their place. Only the rest, for which the log's lock is held
until the new log is live, is carried over as it is.
"""

from __future__ import annotations

from .clock import Deadline
from .control import offset_of
from .copying import carried
from .durability import WITNESS_BYTES, Promise
from .errors import CompactionError
from .held import Held
from .lockfile import LockFile
from .log import Log
from .new_log import NewLog
from .place import Place
from .session import Session

LAST_BYTES = 64 * 1024  # may be left for the time under the lock: a few milliseconds
# By how much the old log may grow meanwhile. The new base lies above that, so that ``seq`` and fencing tokens rise.
GROWTH_BYTES = 1 << 32
_BRAKE_SECONDS = 0.01
_LONGEST_BRAKE_SECONDS = 1.0


class Passage:
    """From ``old``, the live log, open for reading, to ``new``, which holds the copies as of ``begun_at`` (bytes)."""

    def __init__(
        self, session: Session, place: Place, lock_file: LockFile, old: Log, new: NewLog, begun_at: int
    ) -> None:
        self.session = session
        self.place = place  # the directory that all of them are in
        self.old = old
        self.new = new
        self.begun_at = self.reached = begun_at
        self.flipping = False  # whether the pointer may name the new log
        self.live = False  # whether it does, and the control words speak of it
        self._lock_file = lock_file
        self.braking = False
        self._left = 1 << 62
        self._brake = _BRAKE_SECONDS

    def check(self, held: Held) -> None:
        """Whether this is still the only compaction, and of the live log.

        Raises:
            CompactionError: it is not.
        """
        check_files(held, self._lock_file, self.place)
        if held.log.identity != self.old.identity:
            raise CompactionError(f"{self.old.path} was replaced while it was compacted, which is given up")

    def round(self) -> bool:
        """Carry over what is in the old log now, without its lock; whether that brought the end near.

        Where more is written than is carried over, the writers are held up from then on, for ever longer moments.
        """
        with self.session.locked() as held:
            self.check(held)
            if self.braking:
                self._carry(held.end, self._brake)
                self._brake = min(2 * self._brake, _LONGEST_BRAKE_SECONDS)
            promise = promised(held)
        promise.keep()
        if not self.braking:
            self._carry(promise.end)
        self.new.sync()
        before, self._left = self._left, self.left()
        if self.braking and self.reached >= promise.end:
            return True  # what is left was written in the meantime: it will not be less
        self.braking = self.braking or self._left >= before
        return self._left <= LAST_BYTES

    def left(self) -> int:
        """How many bytes of the old log have not been carried over."""
        return offset_of(self._lock_file.control.read().end) - self.reached

    def finish(self, held: Held) -> None:
        """Carry over the rest, whatever it is, and complete the new log. Under the log's lock."""
        self._carry(held.end)
        self.new.finish()

    def _carry(self, stop: int, seconds: float = float("inf")) -> None:
        """Carry over what stands before ``stop`` (bytes), for about so many seconds."""
        deadline = Deadline(seconds)
        for records, reached in carried(self.old, self.reached, stop):
            self.new.add(records)
            self.reached = reached
            if deadline.passed():
                break


def check_files(held: Held, lock_file: LockFile, place: Place) -> None:
    """Whether the lock of all compactions is still the one that was taken, and the queue still in its directory.

    Raises:
        CompactionError: somebody has replaced the file that it is in, or the directory.
    """
    layout = held.session.layout
    if held.lock_file.identity != lock_file.identity:
        raise CompactionError(f"{layout.lock} was replaced, and the compaction is given up")
    if not (place.has(layout.lock, lock_file.identity) and place.has(held.log.path, held.log.identity)):
        raise CompactionError(f"{layout.directory} was replaced, and the compaction is given up")


def promised(held: Held) -> Promise:
    """That everything up to the end of the log, as it is now, will be durable."""
    last = offset_of(held.lock_file.control.read().last)
    return Promise.of(held, last, held.log.peek(last, WITNESS_BYTES))
