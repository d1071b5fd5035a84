"""Files that a queue does not need any more: logs that were replaced, and what crashed compactions left behind.

Invariant: a log is removed only when it is older than the live one, or when it never was live. The caller holds the
log's lock, or has just made a newer generation live.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from .files import Files
from .framing import HEADER_BYTES, FrameDamage, decode_header, iter_frames, read_frame
from .generations import Layout, list_generations, sweep_temporaries
from .new_log import UNFINISHED
from .projection import unlink_builds
from .records import Snapshot, decode_record

logger = logging.getLogger("nobroker_django")


def remove_retired(files: Files, layout: Layout, retired: int) -> None:
    """Unlink the log that has just been replaced, and older ones, with their projections.

    Those who still read them keep their descriptors.
    """
    try:
        for generation in list_generations(files, layout):
            if generation <= retired:
                files.unlink(layout.log(generation))
        unlink_builds(files, layout, most=retired)
    except OSError as error:
        logger.warning("could not remove the retired logs of %s: %s", layout.name, error)


def sweep_leftovers(files: Files, layout: Layout, live: int) -> list[int]:
    """Remove what crashed compactions left behind; the generations that were left alone.

    A log above the live one that holds nothing but copies was never live, and is removed. One that holds more was
    (a directory copied in pieces, an old pointer restored): it is left alone, with a warning.
    """
    sweep_temporaries(files, layout, "current", "compact")
    unlink_builds(files, layout, least=live + 1)
    strays = []
    for generation in list_generations(files, layout):
        if generation <= live:
            continue
        if _was_never_live(files, layout.log(generation)):
            files.unlink(layout.log(generation))
        else:
            strays.append(generation)
            logger.warning(
                "%s is newer than the live generation %d and holds more than copies; it is left alone. "
                "If the directory was copied or restored in pieces, restore it as a whole.",
                layout.log(generation),
                live,
            )
    return strays


def _was_never_live(files: Files, path: Path) -> bool:
    fd = files.open(path, os.O_RDONLY)
    try:
        size = files.size(fd)
        decode_header(files.pread(fd, HEADER_BYTES, 0))
        first = read_frame(files, fd, HEADER_BYTES)
        snapshot = decode_record(first.type, first.body, first.offset)
        if not isinstance(snapshot, Snapshot):
            return False
        if snapshot.copies == UNFINISHED:
            return True  # whatever its end is like: who wrote it was killed in the middle of a write
        return sum(1 for _ in iter_frames(files, fd, first.end, size)) <= snapshot.copies
    except FrameDamage:
        return False
    finally:
        files.close(fd)
