"""The only module that asks the operating system for anything about files (two calls by way of ``libc``).

Everything that writes, syncs, renames, truncates, unlinks or locks goes through a ``Files`` object, which is passed
in: a test can record every call, fail the n-th one, or stop the process there. (SQLite, which keeps the projection,
makes its own calls; the projection is a cache.)

Errors of the operating system pass through as ``OSError``; the callers turn them into the package's own errors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from . import libc

# struct flock of Linux on 64 bits: type, whence, start, length, pid (must be 0 for OFD locks, fcntl(2)).
_FLOCK = struct.Struct("@hhqqi4x") if sys.platform == "linux" else struct.Struct("@qqihh")
_OFD_SETLK: int = getattr(fcntl, "F_OFD_SETLK", 90)
_OFD_GETLK: int = getattr(fcntl, "F_OFD_GETLK", 92)
_F_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class Inside(str):
    """An absolute path that is looked up from an open directory: a ``name`` below ``directory``, a descriptor."""

    __slots__ = ("directory", "name")
    name: str
    directory: int

    def __new__(cls, path: str, name: str, directory: int) -> Inside:
        """Of the whole path, for messages, and what the system is told."""
        inside = super().__new__(cls, path)
        inside.name, inside.directory = name, directory
        return inside


def _located(path: str | os.PathLike[str]) -> tuple[str | os.PathLike[str], int | None]:
    """What the system is told: a name, and the directory that it is looked up from."""
    return (path.name, path.directory) if isinstance(path, Inside) else (path, None)


def _stat(path: str | os.PathLike[str]) -> os.stat_result:
    name, directory = _located(path)
    return os.stat(name, dir_fd=directory)


class Files:
    """System calls, one method each. A path may be ``Inside`` an open directory.

    Stateless; methods may be overridden to observe or to fail.
    """

    # -- opening and closing

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
        """Open ``path`` close-on-exec and return the descriptor."""
        name, directory = _located(path)
        return os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=directory)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    # -- reading

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        """Up to ``count`` bytes from ``offset``; shorter only at the end of the file."""
        data = os.pread(fd, count, offset)
        if len(data) == count or not data:
            return data
        parts = [data]
        got = len(data)
        while got < count:
            data = os.pread(fd, count - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self, fd: int) -> int:
        """Size of the open file in bytes."""
        return os.fstat(fd).st_size

    def block_bytes(self, fd: int) -> int:
        """In pieces of how many bytes the file system keeps the open file."""
        return os.fstat(fd).st_blksize

    def identity(self, fd: int) -> tuple[int, int]:
        """Device and inode of the open file."""
        st = os.fstat(fd)
        return st.st_dev, st.st_ino

    def path_identity(self, path: str | os.PathLike[str]) -> tuple[int, int] | None:
        """Device and inode that ``path`` names now, or ``None`` when it names nothing.

        The times of the file are not asked for: see ``libc``.
        """
        if isinstance(path, Inside):
            return libc.identity_of(path.name, path.directory)
        return libc.identity_of(path)

    def path_size(self, path: str | os.PathLike[str]) -> int:
        """Size in bytes of what ``path`` names."""
        return _stat(path).st_size

    def mode(self, path: str | os.PathLike[str]) -> int:
        """Permission bits of ``path``."""
        return stat.S_IMODE(_stat(path).st_mode)

    def free_space(self, path: str | os.PathLike[str]) -> tuple[int | None, int]:
        """Bytes that everybody may still fill on the file system of ``path`` (``None``: it does not say), and the
        size in bytes of the blocks that they come in."""
        found = os.statvfs(path)  # its f_bfree also counts what ext4 keeps back for itself, even from root
        return (found.f_bavail * found.f_frsize if found.f_blocks else None), found.f_frsize

    def listdir(self, path: str | os.PathLike[str]) -> list[str]:
        """Names in a directory, sorted; none when there is no such directory."""
        name, directory = _located(path)
        try:
            if directory is None:
                return sorted(os.listdir(name))
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            return []
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    # -- writing

    def write(self, fd: int, data: bytes) -> int:
        """Write (append, on a descriptor opened so); may be short."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Write at ``offset``; may be short."""
        return os.pwrite(fd, data, offset)

    def allocate(self, fd: int, offset: int, count: int) -> None:
        """Give ``count`` bytes from ``offset`` on their place on the disk; those behind the end read as zeros.

        Raises:
            OSError: no space, or the system cannot do it here; the file may have grown all the same.
        """
        if sys.platform == "linux":
            os.posix_fallocate(fd, offset, count)
        else:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    def truncate(self, fd: int, size: int) -> None:
        """Cut the open file to ``size`` bytes."""
        os.ftruncate(fd, size)

    def start_writing(self, fd: int, offset: int, count: int) -> None:
        """Let the disk begin with bytes that will be synced soon; waits for nothing, promises nothing, never fails."""
        libc.start_writing(fd, offset, count)

    def datasync(self, fd: int) -> None:
        """Bring the file's data, and the metadata needed to read them, to the disk."""
        if _F_FULLFSYNC is not None:  # macOS: fsync(2) there does not reach the platter
            fcntl.fcntl(fd, _F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    def sync(self, fd: int) -> None:
        """``fsync``: data and all metadata."""
        if _F_FULLFSYNC is not None:
            fcntl.fcntl(fd, _F_FULLFSYNC)
        else:
            os.fsync(fd)

    def sync_directory(self, path: str | os.PathLike[str]) -> None:
        """Make the names in a directory durable."""
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(fd)
        finally:
            self.close(fd)

    # -- names

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Atomically give ``source`` the name ``target``, replacing what is there."""
        (source, here), (target, there) = _located(source), _located(target)
        os.replace(source, target, src_dir_fd=here, dst_dir_fd=there)

    def link(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Give the file ``source`` a second name, which must be free."""
        (source, here), (target, there) = _located(source), _located(target)
        os.link(source, target, src_dir_fd=here, dst_dir_fd=there)

    def unlink(self, path: str | os.PathLike[str]) -> None:
        """Remove a name; no error when it is not there."""
        name, directory = _located(path)
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass

    def make_directory(self, path: Path, mode: int) -> None:
        """Create a directory and its parents; ``mode`` is for the last one, whatever the umask.

        Made by root, it belongs to the owner of the directory that it is in.
        """
        if path.is_dir():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "exists and is not a directory", str(path)) from None
        else:
            if os.geteuid() == 0:
                self._give_away(path, path.parent)
            os.chmod(path, mode)

    def set_mode(self, fd: int, mode: int, directory: str | os.PathLike[str]) -> None:
        """Permission bits of a new file, whatever the umask; made by root, it belongs to the owner of ``directory``.

        Otherwise one look by root (``sudo manage.py ...``) would lock the queue's own user out.
        """
        if os.geteuid() == 0:
            self._give_away(fd, directory)
        os.fchmod(fd, mode)

    @staticmethod
    def _give_away(target: int | Path, directory: str | os.PathLike[str]) -> None:
        owner = _stat(directory)
        if owner.st_uid != 0 or owner.st_gid != 0:
            os.chown(target, owner.st_uid, owner.st_gid)

    # -- FIFOs

    def make_fifo(self, path: str | os.PathLike[str], mode: int) -> None:
        """Create a FIFO; the umask takes bits of ``mode`` away."""
        os.mkfifo(path, mode)

    def is_fifo(self, fd: int) -> bool:
        """Whether it is a FIFO that is open there."""
        return stat.S_ISFIFO(os.fstat(fd).st_mode)

    def put_byte(self, fd: int) -> None:
        """One byte into a FIFO that was opened without waiting.

        Raises:
            BlockingIOError: it is full.
        """
        os.write(fd, b"\0")

    def read(self, fd: int, count: int) -> bytes:
        """Take up to ``count`` bytes out of a FIFO that was opened without waiting.

        Raises:
            BlockingIOError: it is empty.
        """
        return os.read(fd, count)

    def wait_readable(self, fds: Sequence[int], seconds: float) -> list[int]:
        """Those of ``fds`` from which something can be read; waits up to ``seconds`` for the first."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll(max(seconds, 0.0) * 1000)]

    # -- locks: all of them without waiting

    def flock(self, fd: int, *, exclusive: bool) -> bool:
        """Try a BSD lock on the open file description; whether it was had."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def funlock(self, fd: int) -> None:
        """Let the BSD lock go."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def lock_byte(self, fd: int, offset: int, *, exclusive: bool) -> bool:
        """Try an open-file-description lock on one byte (fcntl(2), F_OFD_SETLK); whether it was had.

        Taking it again through the same description converts it, atomically.
        """
        kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
        try:
            fcntl.fcntl(fd, _OFD_SETLK, self._flock_struct(kind, offset))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def unlock_byte(self, fd: int, offset: int) -> None:
        """Let the lock of one byte go."""
        fcntl.fcntl(fd, _OFD_SETLK, self._flock_struct(fcntl.F_UNLCK, offset))

    def byte_is_free(self, fd: int, offset: int) -> bool:
        """Whether no other open file description has a lock on the byte (F_OFD_GETLK); takes none."""
        answer = fcntl.fcntl(fd, _OFD_GETLK, self._flock_struct(fcntl.F_WRLCK, offset))
        kind = _FLOCK.unpack(answer)[0 if sys.platform == "linux" else 3]
        return bool(kind == fcntl.F_UNLCK)

    @staticmethod
    @cache
    def _flock_struct(kind: int, offset: int) -> bytes:
        if sys.platform == "linux":
            return _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0)
        return _FLOCK.pack(offset, 1, 0, kind, os.SEEK_SET)


def write_all(files: Files, fd: int, data: bytes, offset: int | None = None) -> None:
    """Write all of ``data``: appended, or at ``offset``. Short writes are continued.

    Raises:
        OSError: as the system said; part of the data may have been written.
    """
    done = 0
    while True:
        piece = data[done:] if done else data
        n = files.write(fd, piece) if offset is None else files.pwrite(fd, piece, offset + done)
        done += n
        if done == len(data):
            return
        if n <= 0:
            raise OSError(errno.EIO, "the system accepted no bytes")
