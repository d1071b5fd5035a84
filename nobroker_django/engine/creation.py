"""Making a queue where there is none: the first log, then the pointer.

On disk: the log under its final name, synced; the directory, synced; the pointer. A generation 1 without jobs and
without a pointer is an unfinished creation, and is finished by the next one who comes.
"""

from __future__ import annotations

import os

from .files import Files, write_all
from .generations import Layout, list_generations, may_create, write_pointer
from .lockfile import LockFile
from .log import beginning
from .place import Place
from .records import Snapshot


def create(files: Files, layout: Layout, lock_file: LockFile, *, now: float, file_mode: int) -> bool:
    """Create the queue, if nobody else is at it or has done it; look again in either case.

    Returns:
        Whether it was created here.

    Raises:
        OSError: the system refused something; what was begun is finished by the next one.
        PointerError: there are logs with jobs, but no pointer.
    """
    if not files.flock(lock_file.fd, exclusive=True):
        return False
    try:
        with Place(files, layout.directory) as place:
            return place.has(layout.lock, lock_file.identity) and _create(place, layout, lock_file, now, file_mode)
    finally:
        files.funlock(lock_file.fd)


def _create(files: Files, layout: Layout, lock_file: LockFile, now: float, file_mode: int) -> bool:
    if files.path_identity(layout.pointer) is not None or not may_create(files, layout):
        return False
    lock_file.control.prepare()
    if 1 not in list_generations(files, layout):
        _write_first_log(files, layout, now, file_mode)
    files.sync_directory(layout.directory)
    try:
        files.sync_directory(layout.directory.parent)
    except PermissionError:
        pass  # a parent that is not ours to read was not made by us either
    write_pointer(files, layout, 1, file_mode)
    return True


def _write_first_log(files: Files, layout: Layout, now: float, file_mode: int) -> None:
    snapshot = Snapshot(log_id=f"{int.from_bytes(os.urandom(8), 'big') | 1:016x}", at=now)
    temporary = layout.temporary("new")
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file_mode)
    try:
        try:
            files.set_mode(fd, file_mode, layout.directory)
            write_all(files, fd, beginning(1, snapshot))
            files.sync(fd)
        finally:
            files.close(fd)
        files.rename(temporary, layout.log(1))
    except BaseException:
        files.unlink(temporary)
        raise
