"""Which workers are alive: one locked byte for each, in the file ``alive`` of the queue's run directory.

A worker's leases name it as their holder: the id that stands in that file, and the byte. Invariant: *free* is said
only of a byte that nobody holds locked in the very file that the holder named; the kernel lets it go when the last
process with the worker's descriptor has ended, and not before. A file that is missing, or another one, proves nothing,
and then the deadline of the lease decides. No process ids, no names of hosts.

The file is not synced and never removed; whoever removes it costs the workers of that moment their quick recovery,
and nothing else.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .files import Files, write_all
from .generations import Layout
from .locks import fork_guard

_ID_BYTES = 8
_ID = re.compile(rb"[0-9a-f]{16}")
_FIRST_BYTE = 4096
_OFFSET_BYTES = 5  # a worker's byte is drawn from 2**40: two never meet, and no list has to be kept


class Liveness:
    """One living worker of one queue. Made by the process that is to answer for it.

    A supervisor makes it and forks: the worker's process inherits the descriptor, and the byte is free only when both
    have ended. The worker's process then calls ``adopt``.
    """

    def __init__(self, files: Files, layout: Layout, *, dir_mode: int, file_mode: int) -> None:
        """Take a byte.

        Raises:
            OSError: the system refused.
        """
        self._files = files
        self._fd = -1
        files.make_directory(layout.run, dir_mode)
        path = layout.run / "alive"
        while True:
            found = _read_id(files, path)
            if found is None:
                _make(files, path, file_mode)
                continue
            file_id, fd = found
            offset = _FIRST_BYTE + int.from_bytes(os.urandom(_OFFSET_BYTES), "little")
            try:
                taken = files.lock_byte(fd, offset, exclusive=True)
                if taken and files.path_identity(path) == files.identity(fd):
                    self.holder = f"{file_id}-{offset:x}"
                    self._fd = fd
                    return
            finally:
                if self._fd < 0:
                    files.close(fd)

    def adopt(self) -> None:
        """In the worker's own process: what it forks from now on gives the descriptor up, and cannot pass for it."""
        fork_guard.add(self)

    def close(self) -> None:
        """The worker has ended, or this process does not answer for it any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)

    def before_fork(self) -> None:
        """Nothing is ever under way."""

    def after_fork_in_parent(self) -> None:
        """Nothing was held still."""

    def after_fork_in_child(self) -> None:
        """The child of a task is not the worker."""
        self.close()


class Unregistered:
    """Stands for a worker that could get no byte: its leases have a holder, of whom nothing is ever proved."""

    def __init__(self) -> None:
        self.holder = f"unregistered-{os.urandom(8).hex()}"

    def adopt(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class Census:
    """Asks whether holders are dead. Used by one thread at a time, under the log's lock."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self._files = files
        self._path = layout.run / "alive"
        self._fd = -1
        self._id = ""
        self._identity: tuple[int, int] | None = None

    def is_dead(self, holder: str) -> bool:
        """Whether it is proved that the worker has ended; where the system does not say, it is not."""
        file_id, _, offset = holder.partition("-")
        try:
            return file_id == self._current_id() and self._files.byte_is_free(self._fd, int(offset, 16))
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Close the file."""
        fd, self._fd, self._identity = self._fd, -1, None
        if fd >= 0:
            self._files.close(fd)

    def _current_id(self) -> str:
        identity = self._files.path_identity(self._path)
        if identity is None or identity != self._identity:
            self.close()  # while it is open, no other file can get its inode
            found = _read_id(self._files, self._path)
            if found is None:
                return "none"
            self._id, self._fd = found
            self._identity = self._files.identity(self._fd)
        return self._id


def _read_id(files: Files, path: Path) -> tuple[str, int] | None:
    """Id and descriptor of the file; ``None`` when there is none, or none that is whole."""
    try:
        fd = files.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    whole = False
    try:
        data = files.pread(fd, 2 * _ID_BYTES, 0)
        whole = _ID.fullmatch(data) is not None
    finally:
        if not whole:
            files.close(fd)
    return (data.decode(), fd) if whole else None


def _make(files: Files, path: Path, mode: int) -> None:
    """A new file with an id of its own, complete as soon as it has its name; in place of one that is not whole."""
    temporary = path.with_name(f"alive.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    fd = files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    try:
        files.set_mode(fd, mode, path.parent)
        write_all(files, fd, os.urandom(_ID_BYTES).hex().encode(), 0)
        try:
            files.link(temporary, path)
        except FileExistsError:
            found = _read_id(files, path)
            if found is None:
                files.rename(temporary, path)
            else:
                files.close(found[1])  # somebody was quicker
    finally:
        files.close(fd)
        files.unlink(temporary)
