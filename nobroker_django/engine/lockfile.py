"""``NAME.lock`` as it is open in this process: the control words, the session lock, and locks for long work."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .control import COMPACTION_BYTE, FOLD_BYTE, Control
from .files import Files
from .generations import Layout, check_name_is_distinct
from .locks import Descriptor

logger = logging.getLogger("nobroker_django")


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


def open_lock_file(files: Files, layout: Layout, mode: int) -> LockFile:
    """Open the lock file, creating it where there is none.

    Raises:
        InvalidOptionError: the queue's name differs only by case from an existing one.
    """
    try:
        return LockFile(files, files.open(layout.lock, os.O_RDWR))
    except FileNotFoundError:
        check_name_is_distinct(files, layout)
    try:
        fd = files.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return LockFile(files, files.open(layout.lock, os.O_RDWR))
    files.set_mode(fd, mode, layout.directory)
    return LockFile(files, fd)


class LongWork:
    """Locks that keep a long piece of work (folding a backlog, a compaction) to one thread of one process."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mutexes = {byte: threading.Lock() for byte in (FOLD_BYTE, COMPACTION_BYTE)}

    @contextmanager
    def try_lock(self, lock_file: LockFile, byte: int) -> Iterator[bool]:
        """Try one of them without waiting; whether it was had until the end of the block."""
        mutex = self._mutexes[byte]
        if not mutex.acquire(blocking=False):
            yield False
            return
        lock_file.retain()
        try:
            had = self._files.lock_byte(lock_file.fd, byte, exclusive=True)
            try:
                yield had
            finally:
                if had:
                    self._unlock(lock_file, byte)
        finally:
            lock_file.release()
            mutex.release()

    def _unlock(self, lock_file: LockFile, byte: int) -> None:
        try:
            self._files.unlock_byte(lock_file.fd, byte)
        except OSError as error:  # closing the queue lets it go at last
            logger.warning("could not unlock byte %d of the lock file: %s", byte, error)
