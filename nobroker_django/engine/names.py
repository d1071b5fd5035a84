"""Which file a path names, asked in a way that leaves the next sync of that file cheap.

Linux since 6.13 gives a file whose times somebody has looked at a new, finer time at its next write, and then a sync
has to write the inode as well: on ext4 half as long again for each durable enqueue (Documentation/filesystems/
multigrain-ts.rst of the kernel). ``stat`` always looks at the times. ``statx(2)`` need not, but Python has it from
3.15 on only; so it is called in the C library, and ``stat`` answers wherever that does not.
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
_Buffer = ctypes.c_char * 256
_inode_and_device = struct.Struct("@32xQ96xII").unpack_from


def _find_statx() -> Callable[..., Any] | None:
    """``statx`` of the C library, where there is one.

    Without ``argtypes`` and without a copy of ``errno`` it takes as long as ``os.stat``; with them, twice as long.
    """
    try:
        return ctypes.CDLL(None).statx if sys.platform == "linux" else None
    except (OSError, AttributeError):
        return None


_statx = _find_statx()


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
