"""One process's part in one queue: its open files, the log's lock, and who opens first and closes last.

Invariant: nothing is appended but under ``locked()``, by a process that has joined the session, on the live
generation, behind a tail that is certain.

* The log's lock is ``flock`` on the live log's own descriptor, polled (a blocking one cannot time out). After taking
  it: do the paths of pointer, log and ``NAME.lock`` still name the files that are open here? If not: let go, reopen,
  lock again. There is no lock file whose deletion could make two owners. The open descriptors keep the inode numbers
  from being used again.
* The session lock is one byte of ``NAME.lock``, touched only under the log's lock: shared while the queue is open for
  writing. Whoever gets it exclusively is the first opener, or the last closer.
* ``NAME.lock`` is held shared by ``flock`` as well: that is what version 1 locks, so neither runs beside the other.

Order of the locks: log, then sync.
"""

from __future__ import annotations

import logging
import os

from .bell import Bell, Listening
from .cache import Cache
from .clock import Clock, Deadline, sleep
from .control import MAX_OFFSET, SESSION_BYTE, Words, generation_of, offset_of
from .conversion import convert
from .creation import create
from .errors import (
    CorruptLogError,
    LockTimeoutError,
    PointerError,
    QueueClosedError,
    StorageError,
    UnsupportedVersionError,
)
from .files import Files
from .generations import Layout, parse_pointer, sweep_temporaries
from .held import Held
from .lockfile import LockFile, LongWork, open_lock_file
from .locks import Descriptor, OwnedMutex, fork_guard, leaked
from .log import Log
from .old_log import OldLog, generation_without_pointer
from .recovery import RecoveryReport, check_whole, secure
from .syncing import SyncLock

POLL_SECONDS = 0.0002
logger = logging.getLogger("nobroker_django")


class Session:
    """The open files of one queue in this process. Threads share it; a forked child opens its own."""

    def __init__(
        self, layout: Layout, files: Files, clock: Clock, *, lock_timeout: float, file_mode: int, dir_mode: int
    ) -> None:
        self.layout = layout
        self.files = files
        self.clock = clock
        self.lock_timeout = lock_timeout
        self.file_mode = file_mode
        self.dir_mode = dir_mode
        self.recovery = RecoveryReport()
        self.cache = Cache(files, layout, dir_mode=dir_mode, file_mode=file_mode)
        self.bell = Bell(files, layout, clock, dir_mode=dir_mode, file_mode=file_mode)
        self._closed = False
        self._begin()
        fork_guard.add(self)

    def _begin(self) -> None:
        """Nothing is open, nobody is in the middle of anything."""
        self.syncs = SyncLock(self.files, self.layout)
        self.long_work = LongWork(self.files)
        self._mutex = OwnedMutex()
        self._serial = self._active = 0  # number of the last holding of the log's lock, and of the one that lasts
        self._lock_file: LockFile | None = None
        self._pointer: Descriptor | None = None
        self._log: Log | None = None
        self._joined = False
        self._entered = False  # whether the directory was synced since this generation was opened

    # -- the log's lock

    def locked(self, deadline: Deadline | None = None, *, after_failed_sync: bool = False) -> Held:
        """Take the log's lock, on the live generation, behind a certain tail. Use it in ``with``.

        Args:
            deadline: until when to try; by default ``lock_timeout`` from now.
            after_failed_sync: also secure the tail when a sync was left unfinished.

        Raises:
            LockTimeoutError, QueueClosedError, CorruptLogError, StorageError: the lock is not held.
        """
        return self._acquire(deadline, after_failed_sync)

    def unlock(self, held: Held) -> None:
        """Let the log's lock go; again: nothing."""
        if self._active != held.serial or not self._mutex.owned():
            return
        try:
            self.files.funlock(held.log.fd)
        except OSError as error:
            logger.warning("could not unlock %s (%s): closing it, which lets the lock go", held.log.path, error)
            self._drop_log()
        self._active = 0
        held.over = True
        self._mutex.lock.release()

    def _acquire(self, deadline: Deadline | None, after_failed_sync: bool) -> Held:
        mutex, sync_mutex = self._mutex, self.syncs.mutex
        while True:
            if mutex.owned() or sync_mutex.owned():
                mutex.refuse_reentry()
                sync_mutex.refuse_reentry()
            held = None
            try:
                if mutex.lock.acquire(blocking=False) or mutex.lock.acquire(timeout=self._patience(deadline)):
                    deadline = deadline or Deadline(self.lock_timeout)
                    if self._closed:
                        raise self._closed_error()
                    held = self._try_enter(deadline, after_failed_sync)
                    if held is not None:
                        return held
            except OSError as error:
                path = getattr(error, "filename", None) or self.layout.directory
                raise StorageError("open the queue in", path, error) from error
            finally:
                if held is None:
                    mutex.let_go()
            deadline = deadline or Deadline(self.lock_timeout)
            if deadline.passed():
                raise LockTimeoutError(
                    f"the lock of {self.layout.name!r} in {self.layout.directory} was not free within "
                    f"{deadline.seconds:g} s (a process may be stopped in the middle of a call, or version 1 of "
                    "nobroker is running on this directory). Nothing of this call was stored; try again.",
                    path=str(self.layout.directory),
                    seconds=deadline.seconds,
                )
            sleep(POLL_SECONDS)

    def _patience(self, deadline: Deadline | None) -> float:
        """How long (seconds) to wait for the other threads of this process."""
        return self.lock_timeout if deadline is None else max(deadline.left(), POLL_SECONDS)

    def _closed_error(self) -> QueueClosedError:
        return QueueClosedError(f"queue {self.layout.name!r} is closed; the call did nothing. Make a new Queue.")

    def _try_enter(self, deadline: Deadline, after_failed_sync: bool) -> Held | None:
        """One attempt, without waiting for other processes' verbs."""
        log, lock_file = self._log, self._lock_file
        if log is None or lock_file is None:
            log, lock_file = self._open_files(deadline)
            if log is None or lock_file is None:
                return None
        if not self.files.flock(log.fd, exclusive=True):
            return None
        words = None
        try:
            if self._still_named():
                words = self._ready(log, lock_file, deadline, after_failed_sync)
        finally:
            if words is None:
                self.files.funlock(log.fd)
                self._drop_what_moved()
        if words is None:
            return None
        self._serial = self._active = self._serial + 1
        return Held(self, self._serial, log, lock_file, words.end & MAX_OFFSET, words.synced & MAX_OFFSET, words.build)

    def _open_files(self, deadline: Deadline) -> tuple[Log | None, LockFile | None]:
        """Open what is not open; create the queue where there is none. One of them is missing: try again."""
        if self._lock_file is None:
            self.files.make_directory(self.layout.directory, self.dir_mode)
            self._lock_file = open_lock_file(self.files, self.layout, self.file_mode)
        if self._log is None:
            if self.files.path_identity(self.layout.pointer) is None:
                if generation_without_pointer(self.files, self.layout) is not None:
                    self._convert(self._lock_file, deadline)
                elif create(self.files, self.layout, self._lock_file, now=self.clock(), file_mode=self.file_mode):
                    deadline.renew()  # that was work, not waiting
            else:
                self._open_live_log(deadline)
            if self._log is None:
                self._drop_what_moved()
        return self._log, self._lock_file

    def _open_live_log(self, deadline: Deadline) -> None:
        """Open the pointer and the log that it names; neither, if a compaction came between."""
        try:
            pointer = Descriptor(self.files, self.files.open(self.layout.pointer, os.O_RDONLY))
        except FileNotFoundError:
            return
        try:
            generation = parse_pointer(self.files, self.layout, self.files.pread(pointer.fd, 64, 0))
            log = Log(self.files, self.layout.log(generation), generation)
        except BaseException as error:
            moved = self.files.path_identity(self.layout.pointer) not in (None, pointer.identity)
            pointer.release()
            if moved and isinstance(error, FileNotFoundError | PointerError):
                return
            if isinstance(error, UnsupportedVersionError) and error.found == OldLog.version:
                assert self._lock_file is not None
                self._convert(self._lock_file, deadline)
                return
            raise
        self._pointer, self._log, self._entered = pointer, log, False

    def _convert(self, lock_file: LockFile, deadline: Deadline) -> None:
        """The live log is one of version 1: make one of ours of it, unless somebody else is at it. Then look again."""
        self._joined = False  # the lock that is taken for it takes the place of ours
        report = convert(self.files, self.layout, lock_file, now=self.clock(), file_mode=self.file_mode)
        if report is not None:
            self.recovery = report
            deadline.renew()  # that was work, not waiting

    def _still_named(self) -> bool:
        """Whether the paths still name the files that are open here."""
        assert self._log is not None and self._pointer is not None and self._lock_file is not None
        identity = self.files.path_identity
        return (
            identity(self.layout.pointer) == self._pointer.identity
            and identity(self._log.name) == self._log.identity
            and identity(self.layout.lock) == self._lock_file.identity
        )

    def _drop_what_moved(self) -> None:
        """Close what its path does not name any more; it is opened anew at the next attempt."""
        if self._lock_file is not None and self.files.path_identity(self.layout.lock) != self._lock_file.identity:
            self._drop_log()
            self._lock_file.release()
            self._lock_file, self._joined = None, False
        elif self._log is not None and not self._still_named():
            self._drop_log()

    def _drop_log(self) -> None:
        self.cache.drop()
        if self._log is not None:
            self._log.release()
        if self._pointer is not None:
            self._pointer.release()
        self._log = self._pointer = None

    def _ready(self, log: Log, lock_file: LockFile, deadline: Deadline, after_failed_sync: bool) -> Words | None:
        """Join the session and see to the tail; the control words, or ``None``: start over. Holds the log's lock."""
        if not self._joined:
            if not self._join(log, lock_file, deadline):
                return None
        elif not self._entered:
            self.files.sync_directory(self.layout.directory)  # whoever flipped the pointer may have died before it did
        self._entered = True
        words = lock_file.control.read()
        if words.belong_to(log.log_id, log.generation):
            if words.damaged and generation_of(words.damaged) == log.generation:
                raise CorruptLogError(
                    log.path, offset_of(words.damaged), "damage was met here; nothing is written since"
                )
            doubtful = words.poisoned or (after_failed_sync and words.syncing)
            if not doubtful and log.ends_at(words.end & MAX_OFFSET):
                return words
        with self.syncs.locked(log, deadline):
            words = lock_file.control.read()
            fits = words.belong_to(log.log_id, log.generation) and log.ends_at(offset_of(words.end))
            if fits and not words.poisoned and not words.syncing:
                return words  # the sync that was under way has ended well
            self._secure(log, lock_file, words)
        return lock_file.control.read()

    def _secure(self, log: Log, lock_file: LockFile, words: Words) -> None:
        try:
            report = secure(
                log, lock_file.control, words, self.layout, self.files, now=self.clock(), file_mode=self.file_mode
            )
        except OSError as error:
            raise StorageError("secure the end of", log.path, error) from error
        if report.repaired or not self.recovery.repaired:
            self.recovery = report

    # -- first opener, last closer

    def _join(self, log: Log, lock_file: LockFile, deadline: Deadline) -> bool:
        """Become one of those who have the queue open. False: start over. Holds the log's lock."""
        files = self.files
        if not files.flock(lock_file.fd, exclusive=False):
            return False  # version 1, or somebody who creates or converts
        if files.lock_byte(lock_file.fd, SESSION_BYTE, exclusive=True):
            try:
                self._open_first(log, lock_file, deadline)
            except BaseException:
                files.unlock_byte(lock_file.fd, SESSION_BYTE)
                raise
            files.lock_byte(lock_file.fd, SESSION_BYTE, exclusive=False)
        elif files.lock_byte(lock_file.fd, SESSION_BYTE, exclusive=False):
            files.sync_directory(self.layout.directory)
        else:
            files.funlock(lock_file.fd)
            return False
        self._joined = True
        return True

    def _open_first(self, log: Log, lock_file: LockFile, deadline: Deadline) -> None:
        """Nobody else has the queue open: the tail is secured, the projection kept only if it was left clean."""
        control = lock_file.control
        sweep_temporaries(self.files, self.layout, "new", "current", "compact")
        with self.syncs.locked(log, deadline):
            words = control.read()
            if words.damaged:
                check_whole(log)  # it may have been restored since
                control.set_damaged(0)
            self._secure(log, lock_file, words)
        self.cache.keep_if_clean(log, control, control.read())

    def close(self) -> None:
        """Close the files. The last one to close leaves a synced log and a clean projection.

        Raises:
            StorageError, LockTimeoutError: the files are closed all the same.
        """
        with self._mutex.lock:
            if self._closed:
                return
            joined = self._joined
        try:
            if joined and not self._was_taken_away():
                with self.locked(after_failed_sync=True) as held:
                    self._leave(held)
        except CorruptLogError as error:
            logger.warning("closed without leaving in order: %s", error)
        finally:
            self.abandon()

    def _was_taken_away(self) -> bool:
        """Whether the queue's files are gone: then there is nothing to leave, and nothing to create anew."""
        try:
            return self.files.path_identity(self.layout.pointer) is None
        except OSError:
            return False

    def abandon(self) -> None:
        """Close the files without leaving in order: of a session that could not be opened, or not be left."""
        with self._mutex.lock:
            self._closed = True
            self.bell.close()
            self._drop_log()
            if self._lock_file is not None:
                self._lock_file.release()
                self._lock_file = None

    def _leave(self, held: Held) -> None:
        """Leave the session in order, under the log's lock."""
        files, lock_file = self.files, held.lock_file
        try:
            if files.lock_byte(lock_file.fd, SESSION_BYTE, exclusive=True):
                held.log.take_room_away(held.end)
                if held.unsynced:
                    with self.syncs.locked(held.log, Deadline(self.lock_timeout)):
                        self.syncs.sync(held.log, lock_file, held.log.position(held.end))
                self.cache.leave(lock_file.control, held.build, self.clock())
            files.unlock_byte(lock_file.fd, SESSION_BYTE)
        except OSError as error:
            raise StorageError("close the queue in", self.layout.directory, error) from error
        finally:
            self.cache.drop()
            self._joined = False

    def look(self) -> int | None:
        """The published end as it is now, without the log's lock: to notice that something was appended.

        Raises:
            QueueClosedError: the session is closed.
        """
        with self._mutex.lock:
            if self._closed:
                raise self._closed_error()
            words = self._words()
            return None if words is None else words.end

    def _words(self) -> Words | None:
        """The control words, without any lock of the log."""
        try:
            return None if self._lock_file is None else self._lock_file.control.read()
        except OSError:
            return None  # the next verb meets the same error, and says so

    # -- the bell

    def listen(self, *, lightly: bool = False) -> Listening:
        """Be woken when somebody appends work; see ``Listening``. To be renewed, by whoever looks, every
        ``SAFETY_SECONDS``.

        Args:
            lightly: as long as the word lasts, do not ask whether all files still have their names.

        Raises:
            QueueClosedError: the session is closed.
        """
        with self._mutex.lock:
            if self._closed:
                raise self._closed_error()
            opened = end = None
            try:
                if lightly and self._lock_file is not None:
                    words = self._lock_file.control.read()
                    opened = self.bell.listened(words)
                    end = None if opened is None else words.end
                if opened is None and self._log is not None and self._lock_file is not None and self._still_named():
                    end = self._lock_file.control.read().end
                    opened = self.bell.open()
                    end = self.bell.announce(self._lock_file.control)
            except OSError:
                opened = None
            return Listening(self.files, opened, end, self.look)

    def ring(self) -> None:
        """Wake one of those who wait for work, if anybody does."""
        with self._mutex.lock:
            words = self._words()
        if words is not None:
            self.bell.ring_for(words)

    def unsynced_end(self) -> int | None:
        """The published end, when not everything before it is known to be durable; without the log's lock."""
        with self._mutex.lock:
            words = self._words()
        return None if words is None or words.synced >= words.end else words.end

    # -- fork

    def before_fork(self) -> None:
        """Wait until no other thread is in the middle of a call."""
        self._mutex.refuse_reentry()
        self._mutex.lock.acquire()
        self.syncs.before_fork()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self.syncs.after_fork_in_parent()
        self._mutex.let_go()

    def after_fork_in_child(self) -> None:
        """Close the inherited descriptors; touch neither their locks nor the projection."""
        leaked.append(self.cache.give_up())
        inherited = (
            self._log.descriptor if self._log else None,
            self._pointer,
            self._lock_file.descriptor if self._lock_file else None,
            self.bell.give_up(),
        )
        for descriptor in inherited:
            if descriptor is not None:
                descriptor.abandon()
        self._begin()
