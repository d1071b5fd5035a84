"""Who works on what right now: one small file per photograph, there while its thumbnails are being made.

The file holds the process id of the worker and that of its parent. A worker that is killed leaves its file
behind, which is how `manage.py demo` proves that it stopped somebody in the middle of a job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Marker(NamedTuple):
    """Content of one file: the photograph, the worker that works on it, and that worker's parent process."""

    photo_id: str
    pid: int
    parent_pid: int


@contextmanager
def announce(directory: Path, photo_id: object) -> Iterator[None]:
    """Keep the file of one photograph in place for the length of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / str(photo_id)
    temporary = directory / f".{photo_id}.{os.getpid()}"
    temporary.write_text(f"{os.getpid()} {os.getppid()}")
    temporary.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running(directory: Path) -> list[Marker]:
    """Everything that is being worked on."""
    found = []
    for path in sorted(directory.glob("[!.]*")):
        try:
            pid, parent_pid = path.read_text().split()
        except FileNotFoundError:  # finished since the directory was listed
            continue
        found.append(Marker(path.name, int(pid), int(parent_pid)))
    return found
