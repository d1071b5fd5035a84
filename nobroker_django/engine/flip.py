"""Making a new log the live one, by one rename, under the lock of the old one.

On disk: the final name of the new log; the directory, synced; then, under the lock, the end of the new log, synced;
the pointer (one rename); the directory, synced; the control words. The old log is unlinked only after that.

* Whoever finds the new pointer must not guess at the words: the new log is locked until they speak of it.
* A sync of the old log that ends late must not write over them: they are written under its sync lock.
* Whoever swaps the directory does it without any lock: all names are looked up in the one that the live log is in.
* Where somebody replaced the lock file, there may be two compactions: each looks, under the log's lock, whether the
  live log and its own new one are still the files that it knows.
"""

from __future__ import annotations

from pathlib import Path

from .clock import Deadline
from .control import position
from .errors import CompactionError
from .generations import flip_pointer, prepare_pointer
from .held import Held
from .passage import GROWTH_BYTES, LAST_BYTES, Passage

_ATTEMPTS = 5


def flip(passage: Passage, build: int) -> int:
    """Make the new log live; where (bytes) the old one ended.

    Args:
        build: the projection of the new log.

    Raises:
        NobrokerError, OSError: it was not done, unless ``passage.flipping`` says that it may have been.
    """
    pointer = _take_name(passage)
    try:
        for attempt in range(_ATTEMPTS):
            with passage.session.locked() as held:
                passage.check(held)
                if passage.left() <= LAST_BYTES or attempt == _ATTEMPTS - 1:
                    _switch(held, passage, pointer, build)
                    return held.end
            passage.round()
        raise AssertionError("the last attempt was none")
    finally:
        if not passage.flipping:
            passage.place.unlink(pointer)


def _take_name(passage: Passage) -> Path:
    """Give the new log its final name, durably; a pointer that names it, not yet in its place."""
    session, place, new = passage.session, passage.place, passage.new
    with session.locked() as held:
        passage.check(held)
        if place.path_identity(session.layout.log(new.generation)) is not None:
            raise CompactionError(f"somebody else is making generation {new.generation}; the queue is unchanged")
        new.take_name()
    place.sync_directory(session.layout.directory)
    return prepare_pointer(place, session.layout, new.generation, session.file_mode)


def _switch(held: Held, passage: Passage, pointer: Path, build: int) -> None:
    """All that happens under the log's lock."""
    session, new = passage.session, passage.new
    if held.end - passage.begun_at > GROWTH_BYTES:
        raise CompactionError("the log grew too much while it was compacted; the queue is unchanged")
    passage.finish(held)
    if not new.is_named() or not session.files.flock(new.fd, exclusive=True):
        raise CompactionError(f"somebody else has {new.path} in hand; the queue is unchanged")
    try:
        with session.syncs.locked(held.log, Deadline(session.lock_timeout)):
            passage.flipping = True
            flip_pointer(passage.place, session.layout, pointer)
            control, end = held.lock_file.control, position(new.generation, new.size)
            control.set_build(build)
            control.publish(end, position(new.generation, new.last))
            control.set_synced(end)
        passage.live = True
    finally:
        session.files.funlock(new.fd)
