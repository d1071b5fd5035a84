"""Small file systems of a test's own: to fill them up, and to cut their power.

``FS_IOC_SHUTDOWN`` without a flush of the journal leaves an ext4 as a power cut leaves it: what no sync had brought to
the device is gone, and the next mount replays what the journal holds. Everything here needs root and ``mount``.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

FS_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), linux/fs/ext4/ext4.h
NO_LOG_FLUSH = struct.pack("I", 2)  # EXT4_GOING_FLAGS_NOLOGFLUSH

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


class Disk:
    """A mounted file system; use it in ``with``, which takes it away again."""

    def __init__(self, mount_point: Path, *arguments: str) -> None:
        self.path = mount_point
        self._arguments = arguments
        self._mounted = False

    def __enter__(self) -> Disk:
        self.path.mkdir(parents=True, exist_ok=True)
        self.mount()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", self.path], check=True)

    def mount(self) -> None:
        """Mount it; skips the test where that is not allowed."""
        done = subprocess.run(["mount", *self._arguments, self.path], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        self._mounted = True

    def unmount(self) -> None:
        """Unmount it for good: nothing of it stays in memory. Nobody may have a file of it open."""
        subprocess.run(["umount", self.path], check=True, capture_output=True)
        self._mounted = False

    def cut(self) -> None:
        """Cut the power: from now on every write and sync fails, and what was not synced is lost.

        Skips the test where the system has no such call.
        """
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FS_IOC_SHUTDOWN, NO_LOG_FLUSH)
        except OSError as error:
            pytest.skip(f"the power of this file system cannot be cut: {error}")
        finally:
            os.close(fd)


def tmpfs(mount_point: Path, size_bytes: int) -> Disk:
    """A file system in memory."""
    return Disk(mount_point, "-t", "tmpfs", "-o", f"size={size_bytes}", "none")


def ext4(
    mount_point: Path, image: Path, size_bytes: int, *, features: str = "", options: str = "", block_bytes: int = 4096
) -> Disk:
    """An ext4 in a new file ``image``.

    Args:
        features: for ``mkfs.ext4 -O``.
        options: for ``mount -o``.
        block_bytes: size of a block: 1024, 2048 or 4096.
    """
    with image.open("wb") as file:
        file.truncate(size_bytes)
    wanted = ["-O", features] if features else []
    make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", str(block_bytes), *wanted, str(image)]
    try:
        subprocess.run(make, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mkfs.ext4 here")
    return Disk(mount_point, "-t", "ext4", "-o", ",".join(filter(None, ("loop", options))), str(image))
