"""Two calls of the C library that Python does not have, both of them to keep a sync short. Without them all works too.

``identity_of``: which file a path names, asked in a way that leaves the next sync of that file cheap. Linux since 6.13
gives a file whose times somebody has looked at a new, finer time at its next write, and then a sync has to write the
inode as well: on ext4 half as long again for each durable enqueue (Documentation/filesystems/multigrain-ts.rst of the
kernel). ``stat`` always looks at the times. ``statx(2)`` need not, but Python has it from 3.15 on only.

``start_writing``: the disk begins with bytes that are about to be synced, while this process does what is left to do
before the sync (``sync_file_range(2)``).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

# Of <linux/stat.h>: struct statx has 256 bytes, the inode at byte 32, the device (major, minor) at byte 136.
_STATX_INO = 0x100
_AT_FDCWD = -100
_SYNC_FILE_RANGE_WRITE = 2  # of <fcntl.h>: begin, wait for nothing
_Buffer = ctypes.c_char * 256
_inode_and_device = struct.Struct("@32xQ96xII").unpack_from


def _find(name: str) -> Callable[..., Any] | None:
    """A function of the C library, where there is one."""
    try:
        return getattr(ctypes.CDLL(None), name) if sys.platform == "linux" else None
    except (OSError, AttributeError):
        return None


# Without ``argtypes`` and without a copy of ``errno`` this takes as long as ``os.stat``; with them, twice as long.
_statx = _find("statx")
_sync_file_range = _find("sync_file_range")
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]  # type: ignore[attr-defined]


@lru_cache(maxsize=1024)
def _encoded(path: str | bytes) -> bytes:
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")  # as ``stat`` says it; C would read the name up to there
    return name


def identity_of(path: str | os.PathLike[str], directory: int | None = None) -> tuple[int, int] | None:
    """Device and inode that ``path`` names now, or ``None`` when it names nothing.

    Args:
        directory: the descriptor of the directory that a relative path begins at.

    Raises:
        OSError: the system does not say. ValueError: that is no name.
    """
    if _statx is not None:
        buffer = _Buffer()
        if (
            _statx(_AT_FDCWD if directory is None else directory, _encoded(os.fspath(path)), 0, _STATX_INO, buffer)
            == 0
        ):
            inode, major, minor = _inode_and_device(buffer)
            return os.makedev(major, minor), inode
    try:
        st = os.stat(
            path, dir_fd=directory
        )  # no statx here, or a sandbox refuses it; or it fails as well, and says why
    except FileNotFoundError:
        return None
    return st.st_dev, st.st_ino


def start_writing(fd: int, offset: int, count: int) -> None:
    """Let the system begin to write ``count`` bytes from ``offset`` to the disk; no promise of any kind.

    It does not wait. What goes wrong is told by the next sync, as after any write that the system begins by itself.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, offset, count, _SYNC_FILE_RANGE_WRITE)
