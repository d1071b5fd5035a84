"""One process's part in one queue: its open files, the log's lock, and who opens first and closes last.

Invariant: nothing is appended but between ``locked()`` and its end, by a process that has joined the session, on the
live generation, behind a tail that is certain.

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

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .clock import Clock, Deadline, sleep
from .control import COMPACTION_BYTE, FOLD_BYTE, SESSION_BYTE, Control, Words, offset_of
from .errors import (
    CorruptLogError,
    LockTimeoutError,
    OutcomeUnknownError,
    PointerError,
    QueueClosedError,
    StorageError,
)
from .files import Files, write_all
from .generations import Layout, check_name_is_distinct, list_generations, parse_pointer, read_pointer, write_pointer
from .locks import Descriptor, fork_guard
from .log import Log, beginning
from .projection import Projection, Stale, index_path, unlink_builds
from .records import Snapshot
from .recovery import RecoveryReport, secure

POLL_SECONDS = 0.0002
_leaked: list[object] = []  # what a forked child inherited and must neither use nor finalise


class LockFile:
    """The open ``NAME.lock``: its descriptor and the control words in it."""

    def __init__(self, files: Files, fd: int) -> None:
        self.descriptor = Descriptor(files, fd)
        self.fd = fd
        self.identity = self.descriptor.identity
        self.control = Control(files, fd)

    def retain(self) -> LockFile:
        """One user more."""
        self.descriptor.retain()
        return self

    def release(self) -> None:
        """One user less; the last one closes."""
        self.descriptor.release()


@dataclass(slots=True)
class Held:
    """The log's lock is held: the live log, the lock file, and where things stand (bytes)."""

    session: Session
    log: Log
    lock_file: LockFile
    end: int
    synced: int
    build: int

    def __enter__(self) -> Held:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.session.unlock(self)

    def append(self, data: bytes, last: int) -> int:
        """Append one write and publish it; returns the offset where it begins.

        Args:
            last: where, from the beginning of ``data``, its last frame begins.

        On disk: one write, then two control words. Not yet durable.

        Raises:
            StorageError: the system refused; nothing of the write is left.
            OutcomeUnknownError: the system refused, and refused to take back what it had written.
        """
        start = self.end
        try:
            self.log.append(data, start)
            self.lock_file.control.publish(self.log.position(start + len(data)), self.log.position(start))
        except OSError as error:
            self.session.take_back(self, error)
        self.end = start + len(data)
        return start

    @property
    def unsynced(self) -> int:
        """How many bytes before the end are not known to be durable."""
        return max(0, self.end - self.synced)


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
        self._mutex = threading.RLock()
        self._sync_mutex = threading.Lock()
        self._byte_mutexes = {FOLD_BYTE: threading.Lock(), COMPACTION_BYTE: threading.Lock()}
        self._closed = False
        self._forget()
        fork_guard.add(self)

    def _forget(self) -> None:
        self._lock_file: LockFile | None = None
        self._pointer: Descriptor | None = None
        self._log: Log | None = None
        self._joined = False
        self._entered = False  # whether the directory was synced since this generation was opened
        self._projection: Projection | None = None

    # -- the log's lock

    def locked(self, deadline: Deadline | None = None, *, after_failed_sync: bool = False) -> Held:
        """Take the log's lock, on the live generation, behind a certain tail. Use it in ``with``.

        Args:
            deadline: until when to try; by default ``lock_timeout`` from now.
            after_failed_sync: also secure the tail when a sync was left unfinished.

        Raises:
            LockTimeoutError, QueueClosedError, CorruptLogError, StorageError: the lock is not held.
        """
        return self._acquire(deadline or Deadline(self.lock_timeout), after_failed_sync)

    def unlock(self, held: Held) -> None:
        """Let the log's lock go."""
        try:
            self.files.funlock(held.log.fd)
        finally:
            self._mutex.release()

    def _acquire(self, deadline: Deadline, after_failed_sync: bool) -> Held:
        while True:
            self._mutex.acquire()
            keep = False
            try:
                if self._closed:
                    raise QueueClosedError(f"queue {self.layout.name!r} is closed; the call did nothing")
                held = self._try_enter(deadline, after_failed_sync)
                if held is not None:
                    keep = True
                    return held
            except OSError as error:
                path = getattr(error, "filename", None) or self.layout.directory
                raise StorageError("open the queue in", path, error) from error
            finally:
                if not keep:
                    self._mutex.release()
            if deadline.passed():
                raise LockTimeoutError(
                    f"the lock of {self.layout.name!r} in {self.layout.directory} was not free within "
                    f"{deadline.seconds:g} s (a process may be stopped in the middle of a call, or version 1 of nobroker "
                    "is running on this directory). Nothing of this call was stored; try again.",
                    path=str(self.layout.directory),
                    seconds=deadline.seconds,
                )
            sleep(POLL_SECONDS)

    def _try_enter(self, deadline: Deadline, after_failed_sync: bool) -> Held | None:
        """One attempt, without waiting for other processes' verbs."""
        if not self._open_files():
            return None
        log, lock_file = self._log, self._lock_file
        assert log is not None and lock_file is not None
        if not self.files.flock(log.fd, exclusive=True):
            return None
        entered = False
        try:
            if self._still_named():
                words = self._ready(log, lock_file, deadline, after_failed_sync)
                if words is not None:
                    entered = True
                    return Held(self, log, lock_file, offset_of(words.end), offset_of(words.synced), words.build)
            return None
        finally:
            if not entered:
                self.files.funlock(log.fd)
                self._drop_what_moved()

    def _open_files(self) -> bool:
        """Open what is not open; create the queue when there is none. False: try again."""
        if self._lock_file is None:
            self.files.make_directory(self.layout.directory, self.dir_mode)
            self._lock_file = LockFile(self.files, self._open_lock_file())
        if self._log is None:
            generation = read_pointer(self.files, self.layout)
            if generation is None:
                return self._create()
            pointer = Descriptor(self.files, self.files.open(self.layout.pointer, os.O_RDONLY))
            try:
                generation = parse_pointer(self.files, self.layout, self.files.pread(pointer.fd, 64, 0))
                self._log = Log(self.files, self.layout.log(generation), generation)
            except BaseException as error:
                pointer.release()
                if isinstance(error, FileNotFoundError | PointerError) and self._pointer_moved(pointer):
                    return False  # a compaction between reading the pointer and opening the log
                raise
            self._pointer = pointer
            self._entered = False
        return True

    def _open_lock_file(self) -> int:
        try:
            fd = self.files.open(self.layout.lock, os.O_RDWR)
        except FileNotFoundError:
            check_name_is_distinct(self.files, self.layout)
            try:
                fd = self.files.open(self.layout.lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, self.file_mode)
            except FileExistsError:
                return self.files.open(self.layout.lock, os.O_RDWR)
            self.files.set_mode(fd, self.file_mode)
        return fd

    def _pointer_moved(self, pointer: Descriptor) -> bool:
        return self.files.path_identity(self.layout.pointer) not in (None, pointer.identity)

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
        identity = self.files.path_identity
        if self._lock_file is not None and identity(self.layout.lock) != self._lock_file.identity:
            self._drop_log()
            self._lock_file.release()
            self._lock_file, self._joined = None, False
        elif (self._log is not None and identity(self._log.path) != self._log.identity) or (
            self._pointer is not None and identity(self.layout.pointer) != self._pointer.identity
        ):
            self._drop_log()

    def _drop_log(self) -> None:
        self.drop_projection()
        if self._log is not None:
            self._log.release()
            self._log = None
        if self._pointer is not None:
            self._pointer.release()
            self._pointer = None

    def _ready(self, log: Log, lock_file: LockFile, deadline: Deadline, after_failed_sync: bool) -> Words | None:
        """Join the session and see to the tail; the control words, or ``None``: start over. Holds the log's lock."""
        if not self._joined:
            if not self._join(log, lock_file, deadline):
                return None
        elif not self._entered:
            self.files.sync_directory(self.layout.directory)  # whoever flipped the pointer may have died before it did
        self._entered = True
        words = lock_file.control.read()
        size = log.size()
        if words.belong_to(log.log_id, log.generation):
            if size < offset_of(words.synced):
                raise CorruptLogError(
                    log.path,
                    size,
                    f"the file has {size} bytes, but {offset_of(words.synced)} were known to be durable",
                )
            doubtful = words.poisoned or (after_failed_sync and words.syncing)
            if not doubtful and size == offset_of(words.end):
                return words
        with self.sync_locked(log, deadline):
            words = lock_file.control.read()
            fits = words.belong_to(log.log_id, log.generation) and log.size() == offset_of(words.end)
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
        """Nobody else has the queue open: the tail is secured, and the projection kept only if it was left clean."""
        control = lock_file.control
        with self.sync_locked(log, deadline):
            control.prepare()
            self._secure(log, lock_file, control.read())
        words = control.read()
        clean = words.clean if words.clean and words.clean == words.build else 0
        keep = index_path(self.layout, log.generation, clean) if clean else None
        unlink_builds(self.files, self.layout, keep=keep)
        if not clean:
            control.set_build(0)
        control.set_clean(0)

    def close(self) -> None:
        """Close the files. The last one to close leaves a synced log and a clean projection.

        Raises:
            StorageError, CorruptLogError, LockTimeoutError: the files are closed all the same.
        """
        with self._mutex:
            if self._closed:
                return
            joined = self._joined
        try:
            if joined:
                with self.locked(after_failed_sync=True) as held:
                    self._leave(held)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files of a session that could not be opened."""
        with self._mutex:
            self._closed = True
            self._drop_log()
            if self._lock_file is not None:
                self._lock_file.release()
            self._forget()

    def look(self) -> int | None:
        """The published end as it is now, without the log's lock: to notice that something was appended.

        Raises:
            QueueClosedError: the session is closed.
        """
        with self._mutex:
            if self._closed:
                raise QueueClosedError(f"queue {self.layout.name!r} is closed; the call did nothing")
            return None if self._lock_file is None else self._lock_file.control.read().end

    def _leave(self, held: Held) -> None:
        files, lock_file = self.files, held.lock_file
        if files.lock_byte(lock_file.fd, SESSION_BYTE, exclusive=True):
            if held.unsynced:
                with self.sync_locked(held.log, Deadline(self.lock_timeout)):
                    self._sync_in_lock(held.log, lock_file, held.log.position(held.end))
            if self._leave_projection(held):
                lock_file.control.set_clean(held.build)
        else:
            self.drop_projection()
        files.unlock_byte(lock_file.fd, SESSION_BYTE)
        files.funlock(lock_file.fd)
        self._joined = False

    def _leave_projection(self, held: Held) -> bool:
        """Leave the projection complete and synced, without a log of changes of its own; whether that was done."""
        projection, self._projection = self._projection, None
        if projection is None or projection.build != held.build or projection.path is None:
            if projection is not None:
                projection.close()
            return False
        try:
            projection.checkpoint(self.clock())
        except sqlite3.Error:
            return False
        finally:
            projection.close()
        wal = projection.path.with_name(projection.path.name + "-wal")
        return self.files.path_identity(wal) is None

    # -- creation

    def _create(self) -> bool:
        """Create generation 1, under the exclusive lock of ``NAME.lock``. Always False: look again.

        On disk: the log under its final name, synced; the directory, synced; the pointer. A generation 1 without jobs
        and without a pointer is an unfinished creation, and is finished.
        """
        assert self._lock_file is not None
        files, layout = self.files, self.layout
        if not files.flock(self._lock_file.fd, exclusive=True):
            return False
        try:
            if read_pointer(files, layout) is not None:
                return False
            if files.path_identity(layout.lock) != self._lock_file.identity:
                return False
            self._lock_file.control.prepare()
            if 1 not in list_generations(files, layout):
                self._write_first_log()
            files.sync_directory(layout.directory)
            write_pointer(files, layout, 1, self.file_mode)
        finally:
            files.funlock(self._lock_file.fd)
            self._drop_what_moved()
        return False

    def _write_first_log(self) -> None:
        files, layout = self.files, self.layout
        snapshot = Snapshot(log_id=f"{int.from_bytes(os.urandom(8), 'big') | 1:016x}", at=self.clock())
        temporary = layout.temporary("new")
        fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.file_mode)
        try:
            try:
                files.set_mode(fd, self.file_mode)
                write_all(files, fd, beginning(1, snapshot))
                files.sync(fd)
            finally:
                files.close(fd)
            files.rename(temporary, layout.log(1))
        except BaseException:
            files.unlink(temporary)
            raise

    # -- the sync lock

    @contextmanager
    def sync_locked(self, log: Log, deadline: Deadline) -> Iterator[None]:
        """Hold the lock that every sync of the log needs, waiting for it.

        Raises:
            LockTimeoutError: it was not free in time.
        """
        while not self.try_sync_lock(log):
            if deadline.passed():
                raise LockTimeoutError(
                    f"a sync of {log.path} by another process did not end within {deadline.seconds:g} s; try again",
                    path=str(log.path),
                    seconds=deadline.seconds,
                )
            sleep(POLL_SECONDS)
        try:
            yield
        finally:
            self.sync_unlock(log)

    def try_sync_lock(self, log: Log) -> bool:
        """Try it, for this thread of this process; whether it was had."""
        if not self._sync_mutex.acquire(blocking=False):
            return False
        got = False
        try:
            got = log.try_sync_lock()
        finally:
            if not got:
                self._sync_mutex.release()
        return got

    def sync_unlock(self, log: Log) -> None:
        """Let it go."""
        try:
            log.sync_unlock()
        finally:
            self._sync_mutex.release()

    def _sync_in_lock(self, log: Log, lock_file: LockFile, goal: int) -> None:
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

    def sync_if_sound(self, log: Log, lock_file: LockFile, target: int) -> bool:
        """Sync the log, if the words allow it. The caller holds the sync lock.

        Args:
            target: the position that has to become durable.

        Returns:
            False when the tail has to be secured first.

        Raises:
            OutcomeUnknownError: the sync failed.
        """
        words = lock_file.control.read()
        if words.synced >= target:
            return True
        if (
            words.poisoned
            or words.syncing
            or not words.belong_to(log.log_id, log.generation)
            or self.files.path_identity(self.layout.lock) != lock_file.identity
        ):
            return False
        self._sync_in_lock(log, lock_file, words.end)
        return True

    @contextmanager
    def byte_locked(self, lock_file: LockFile, byte: int) -> Iterator[bool]:
        """Try, without waiting, one of the locks that keep a long piece of work to one process; whether it was had."""
        mutex = self._byte_mutexes[byte]
        if not mutex.acquire(blocking=False):
            yield False
            return
        lock_file.retain()
        try:
            had = self.files.lock_byte(lock_file.fd, byte, exclusive=True)
            try:
                yield had
            finally:
                if had:
                    self.files.unlock_byte(lock_file.fd, byte)
        finally:
            lock_file.release()
            mutex.release()

    def take_back(self, held: Held, error: OSError) -> None:
        """Undo a write that failed; always raises. Holds the log's lock.

        Raises:
            StorageError: nothing of the write is left.
            OutcomeUnknownError: taking it back failed; the queue is poisoned and the next writer secures the tail.
        """
        log, control = held.log, held.lock_file.control
        try:
            with self.sync_locked(log, Deadline(self.lock_timeout)):
                words = control.read()
                control.set_poisoned(True)
                log.truncate(held.end)
                log.datasync()
                control.publish(log.position(held.end), words.last)
                control.set_poisoned(bool(words.poisoned or words.syncing))
        except (OSError, LockTimeoutError) as second:
            raise OutcomeUnknownError("write to", log.path, f"{error}; taking it back failed too: {second}") from error
        raise StorageError("write to", log.path, error) from error

    # -- the projection

    def projection(self, held: Held) -> Projection:
        """The current projection of the live log; a new one when there is none that fits. Holds the log's lock."""
        current = self._projection
        if current is not None:
            fits = current.log is held.log and current.build == held.build and current.path is not None
            if fits and self.files.path_identity(current.path or "") == current.identity:
                return current
            self.drop_projection()
        if held.build:
            try:
                self._projection = Projection.open(self.files, self.layout, held.log, held.build)
                return self._projection
            except Stale:
                pass
        self._projection = created = Projection.create(
            self.files, self.layout, held.log, after=held.build, dir_mode=self.dir_mode, file_mode=self.file_mode
        )
        held.lock_file.control.set_build(created.build)
        held.build = created.build
        unlink_builds(self.files, self.layout, keep=created.path)
        return created

    def drop_projection(self) -> None:
        """Close this process's connection to the projection."""
        if self._projection is not None:
            self._projection.close()
            self._projection = None

    def discard_projection(self, held: Held) -> None:
        """The current projection is damaged or wrong: the next one to need it builds a new one."""
        self.drop_projection()
        held.lock_file.control.set_build(0)
        held.build = 0

    # -- fork

    def before_fork(self) -> None:
        self._mutex.acquire()
        self._sync_mutex.acquire()

    def after_fork_in_parent(self) -> None:
        self._sync_mutex.release()
        self._mutex.release()

    def after_fork_in_child(self) -> None:
        _leaked.append(self._projection)
        for descriptor in (
            self._log and self._log.descriptor,
            self._pointer,
            self._lock_file and self._lock_file.descriptor,
        ):
            if descriptor:
                descriptor.abandon()
        self._mutex = threading.RLock()
        self._sync_mutex = threading.Lock()
        self._byte_mutexes = {byte: threading.Lock() for byte in self._byte_mutexes}
        self._forget()
