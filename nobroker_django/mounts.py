"""Which file system a path is on, by ``/proc/self/mountinfo`` (proc_pid_mountinfo(5)). Linux; elsewhere: unknown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "virtiofs", "davfs", "webdav"),
        *("ceph", "glusterfs", "lustre", "beegfs", "gpfs", "orangefs", "pvfs2", "ocfs2", "gfs2", "vboxsf"),
    }
)
"""Where a lock of one machine, or a sync, may mean nothing to another one."""
NETWORK_FUSE = re.compile(
    r"fuse\.(sshfs|glusterfs|ceph(-fuse)?|rclone|s3fs|goofys|gcsfuse|davfs2?|curlftpfs|juicefs|moosefs|mfs|lizardfs"
    r"|seaweedfs|vmhgfs-fuse|afpfs|smbnetfs|blobfuse2?|mount-s3)"
)
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Where a file system is mounted, its type (``ext4``, ``nfs4``), and what is mounted."""

    point: str
    type: str
    source: str

    @property
    def is_network(self) -> bool:
        """Whether the file system is on another machine, or shared with one."""
        return self.type in NETWORK_TYPES or NETWORK_FUSE.fullmatch(self.type) is not None


def mount_of(path: Path, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """The mount that ``path`` (which need not exist) is on; ``None`` where nobody can say."""
    try:
        text = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    real = path.resolve()
    best: Mount | None = None
    for mount in map(_parse, text.splitlines()):
        # A later mount on the same point hides the earlier one.
        if (
            mount is not None
            and real.is_relative_to(mount.point)
            and len(mount.point) >= len(best.point if best else "")
        ):
            best = mount
    return best


def _parse(line: str) -> Mount | None:
    """``36 35 98:0 /root /point options optional... - type source superoptions``; ``None`` for another shape."""
    before, dash, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(rest) < 2:
        return None
    return Mount(_unescape(fields[4]), rest[0], _unescape(rest[1]))


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
