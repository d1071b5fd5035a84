"""Waiting until what was written is on the disk: one sync at a time, shared by all who wait.

Every verb that made a promise waits here, after it let the log's lock go, until the synced position reaches the end
that it looked at, also when it appended nothing ("this id exists already" may not be told before the other's bytes
are safe). Whoever gets the sync lock syncs for everybody; the others look again every half millisecond.

What makes a job leasable rings the bell on the way, by the words that are read here: before the sync, since what is
visible may be leased before it is durable.

Then the last frame before that end is compared with what was seen there: after a failed sync the tail may have been
cut, and the place filled by others.
"""

from __future__ import annotations

from dataclasses import dataclass

from .clock import Deadline, sleep
from .control import Words, generation_of
from .errors import CorruptLogError, LockTimeoutError, NobrokerError, OutcomeUnknownError
from .framing import FRAME_BYTES
from .held import Held
from .lockfile import LockFile
from .log import Log
from .session import Session

LOOK_SECONDS = 0.0005
# Enough of a frame to tell it from any other: its checksum, and a JSON object that begins with a unique id.
WITNESS_BYTES = FRAME_BYTES + 64


@dataclass(slots=True)
class Promise:
    """What has to be durable before a verb may return: everything before ``end`` of ``log``.

    ``witness`` are the first bytes of the last frame, at ``witness_offset``. Made under the log's lock; holds the log
    and the lock file open until ``keep`` or ``drop``.
    """

    session: Session
    log: Log
    lock_file: LockFile
    end: int
    witness_offset: int
    witness: bytes
    job_ids: tuple[str, ...] = ()
    rings: bool = False  # whether somebody who waits for work has still to be told
    here: bool = False  # whether this process found the log live and durable, under its sync lock

    @classmethod
    def of(
        cls, held: Held, witness_offset: int, witness: bytes, job_ids: tuple[str, ...] = (), rings: bool = False
    ) -> Promise:
        """A promise about everything up to the end of the log as it is now.

        Of ``witness``, what stands at ``witness_offset``, nothing behind the end is kept: there others write next.
        """
        return cls(
            held.session,
            held.log.retain(),
            held.lock_file.retain(),
            held.end,
            witness_offset,
            witness[: max(0, min(WITNESS_BYTES, held.end - witness_offset))],
            job_ids,
            rings,
        )

    def drop(self) -> None:
        """Let go without waiting."""
        self.log.release()
        self.lock_file.release()

    def forgo(self) -> None:
        """Do not wait (a queue with ``fsync=False``), only tell who waits for work."""
        try:
            if self.rings:
                self._notice(self.lock_file.control.read())
        except OSError:
            pass  # they look once in a while
        finally:
            self.drop()

    def keep(self) -> None:
        """Wait until it is durable.

        Raises:
            OutcomeUnknownError: a sync failed, or the bytes are not there any more.
            LockTimeoutError: not durable within ``lock_timeout``; ``stored`` is None.
        """
        try:
            self._wait()
            self._compare()
        except OutcomeUnknownError as error:
            error.job_ids = self.job_ids
            raise
        except LockTimeoutError as error:
            raise self._too_late(error.seconds) from error
        except CorruptLogError as error:
            error.stored = None
            raise
        except (NobrokerError, OSError) as error:
            raise OutcomeUnknownError("confirm", self.log.path, error, job_ids=self.job_ids) from error
        finally:
            self.drop()

    def _too_late(self, seconds: float) -> LockTimeoutError:
        return LockTimeoutError(
            f"written to {self.log.path}, but not known to be durable within {seconds:g} s. The data are in the log "
            "and survive unless the machine loses power now; do not enqueue them again under another id.",
            path=self.log.name,
            seconds=seconds,
            stored=None,
        )

    def _wait(self) -> None:
        session, log = self.session, self.log
        target = log.first_position + self.end
        deadline = Deadline(session.lock_timeout)
        while True:
            taken = session.syncs.try_lock(log)
            if taken is not None:
                with taken:
                    live = session.syncs.sync_if_sound(log, self.lock_file, target, self._notice)
                if live is not None:
                    self.here = live == log.generation
                    return
                if deadline.passed():
                    raise self._too_late(deadline.seconds)
                with session.locked(deadline, after_failed_sync=True) as held:
                    replaced = held.log is not log or held.lock_file is not self.lock_file
                    if replaced and self._moved_on(held, target):
                        return
                continue
            words = self.lock_file.control.read()
            self._notice(words)
            if words.synced >= target:
                return
            if deadline.passed():
                raise self._too_late(deadline.seconds)
            sleep(LOOK_SECONDS)

    def _notice(self, words: Words) -> None:
        """Ring the bell, once, by words that were read after the work was published."""
        if self.rings:
            self.rings = False
            self.session.bell.ring_for(words)

    def _moved_on(self, held: Held, target: int) -> bool:
        """The log or the lock file was replaced meanwhile; whether what was promised is durable there."""
        if generation_of(held.log.position(0)) > self.log.generation:
            return True  # a compaction copied and synced it before it made the new generation live
        if held.lock_file is not self.lock_file:
            self.lock_file.release()
            self.lock_file = held.lock_file.retain()
        return held.log.position(held.synced) >= target

    def _compare(self) -> None:
        log = self.log
        if not self.here and generation_of(self.lock_file.control.read().end) > log.generation:
            self.session.files.sync_directory(self.session.layout.directory)
        if log.peek(self.witness_offset, len(self.witness)) != self.witness:
            raise OutcomeUnknownError("confirm what was written to", log.path, "a failed sync made others cut it off")
