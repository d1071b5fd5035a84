"""Names and generations: where a queue's files are, and which log is the live one.

``NAME.current`` holds one decimal integer, the generation of the live log ``NAME.%06d.log``; it is replaced by one
atomic rename and is the only word on the matter. A pointer that is missing or unreadable beside existing logs is an
error, never an empty queue.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from .control import MAX_GENERATION
from .errors import InvalidOptionError, PointerError
from .files import Files, write_all
from .framing import HEADER_BYTES, FrameDamage, data_end, decode_header, iter_frames
from .options import shown
from .records import RecordType

logger = logging.getLogger("nobroker_django")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FILE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,63})\.(?:current|lock|run|(?P<generation>[0-9]{6,})\.log)")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one queue, under an absolute directory, so that a later ``chdir`` changes nothing.

    ``pointer`` names the live generation, ``lock`` holds the control words and the session lock, ``run`` is the
    directory of caches and signals.
    """

    directory: Path
    name: str
    pointer: str
    lock: str
    run: Path

    @classmethod
    def of(cls, directory: str | os.PathLike[str], name: str) -> Layout:
        """The layout of queue ``name`` in ``directory``.

        Raises:
            InvalidOptionError: the name does not match ``[A-Za-z0-9][A-Za-z0-9_-]{0,63}``.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidOptionError(
                "name",
                f"{name!r} is not a queue name: 1 to 64 ASCII letters, digits, '_' and '-', "
                "beginning with a letter or digit",
            )
        if not isinstance(directory, str | os.PathLike) or not os.fspath(directory) or "\0" in os.fspath(directory):
            raise InvalidOptionError("path", f"a directory is needed, not {shown(directory)}")
        where = Path(os.path.abspath(directory))
        return cls(where, name, str(where / f"{name}.current"), str(where / f"{name}.lock"), where / f"{name}.run")

    def log(self, generation: int) -> Path:
        """One log file."""
        return self.directory / f"{self.name}.{generation:06d}.log"

    def torn(self, generation: int, offset: int, files: Files) -> Path:
        """A free name for bytes that a repair cuts off."""
        taken = set(files.listdir(self.directory))
        count = 1
        while f"{self.name}.torn-{generation}-{offset}-{count}" in taken:
            count += 1
        return self.directory / f"{self.name}.torn-{generation}-{offset}-{count}"

    def temporary(self, what: str) -> Path:
        """A name that no other process uses."""
        return self.directory / f"{self.name}.{what}.{os.getpid()}-{os.urandom(4).hex()}.tmp"


def list_generations(files: Files, layout: Layout) -> list[int]:
    """Generations whose log file exists, ascending."""
    found = []
    for entry in files.listdir(layout.directory):
        match = _FILE.fullmatch(entry)
        if match and match["name"] == layout.name and match["generation"]:
            found.append(int(match["generation"]))
    return sorted(found)


def check_name_is_distinct(files: Files, layout: Layout) -> None:
    """Refuse a name that differs from an existing queue's by case alone.

    Raises:
        InvalidOptionError: there is such a queue; on a case-insensitive copy of the directory the two would be one.
    """
    for entry in files.listdir(layout.directory):
        match = _FILE.fullmatch(entry)
        if match and match["name"] != layout.name and match["name"].lower() == layout.name.lower():
            raise InvalidOptionError(
                "name", f"{layout.name!r} differs only by case from the existing queue {match['name']!r}"
            )


def may_create(files: Files, layout: Layout) -> bool:
    """Whether there is no queue yet, after the pointer was not found. False: look again, somebody has just made one.

    A generation 1 without pointer that holds no job is an unfinished creation.

    Raises:
        PointerError: the pointer is missing beside existing logs.
    """
    logs = list_generations(files, layout)
    if not logs or (logs == [1] and _is_unfinished_creation(files, layout)):
        return True
    if files.path_identity(layout.pointer) is not None:
        return False
    raise PointerError(layout.pointer, _missing(layout, logs))


def sweep_temporaries(files: Files, layout: Layout, *kinds: str) -> None:
    """Remove temporary files that a killed process left behind; the caller knows that nobody is writing such a one."""
    for entry in files.listdir(layout.directory):
        if entry.endswith(".tmp") and entry.startswith(tuple(f"{layout.name}.{kind}." for kind in kinds)):
            files.unlink(layout.directory / entry)


def _is_unfinished_creation(files: Files, layout: Layout) -> bool:
    """Whether log 1 holds nothing but what a creation writes."""
    fd = files.open(layout.log(1), os.O_RDONLY)
    try:
        decode_header(files.pread(fd, HEADER_BYTES, 0))
        kinds = {frame.type for frame in iter_frames(files, fd, HEADER_BYTES, data_end(files, fd))}
    except FrameDamage:
        return False
    finally:
        files.close(fd)
    return RecordType.SNAPSHOT in kinds and kinds <= {RecordType.SNAPSHOT, RecordType.OPEN}


def pointer_names(files: Files, layout: Layout, generation: int) -> bool:
    """Whether the pointer may name this generation.

    Raises:
        OSError: it cannot be read.
    """
    fd = files.open(layout.pointer, os.O_RDONLY)
    try:
        return files.pread(fd, 64, 0).strip() == b"%d" % generation
    finally:
        files.close(fd)


def parse_pointer(files: Files, layout: Layout, text: bytes) -> int:
    """The generation that the bytes of a pointer file name.

    Raises:
        PointerError: they are no plain decimal integer, or that log is not there.
    """
    if not re.fullmatch(rb"[0-9]{1,8}\n?", text) or int(text) > MAX_GENERATION:
        raise PointerError(
            layout.pointer,
            f"{layout.pointer} should hold the number of the live log, but holds {text[:40]!r}. Nothing was changed "
            f"and no queue was created. Logs there: {_names(layout, list_generations(files, layout))}. If only one of "
            "them exists, write its number into the file; otherwise restore the file from a backup.",
        )
    generation = int(text)
    if files.path_identity(layout.log(generation)) is None:
        raise PointerError(
            layout.pointer,
            f"{layout.pointer} names generation {generation}, but {layout.log(generation)} does not exist. Nothing "
            f"was changed and no queue was created. Logs there: {_names(layout, list_generations(files, layout))}. "
            "Restore the missing log from a backup.",
        )
    return generation


def write_pointer(files: Files, layout: Layout, generation: int, mode: int) -> None:
    """Make ``generation`` the live one: a synced temporary file, one rename, a directory sync."""
    flip_pointer(files, layout, prepare_pointer(files, layout, generation, mode))


def prepare_pointer(files: Files, layout: Layout, generation: int, mode: int) -> Path:
    """Write a pointer to ``generation`` under a temporary name and sync it; its path, for ``flip_pointer``."""
    temporary = layout.temporary("current")
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            files.set_mode(fd, mode, layout.directory)
            write_all(files, fd, b"%d\n" % generation)
            files.sync(fd)
        finally:
            files.close(fd)
    except BaseException:
        files.unlink(temporary)
        raise
    return temporary


def flip_pointer(files: Files, layout: Layout, prepared: Path) -> None:
    """Make the generation of a prepared pointer the live one.

    On disk: after the rename (not before) it is live; after the directory sync it stays so.
    """
    try:
        files.rename(prepared, layout.pointer)
    except BaseException:
        files.unlink(prepared)
        raise
    files.sync_directory(layout.directory)


def _missing(layout: Layout, logs: list[int]) -> str:
    return (
        f"{layout.pointer} is missing, but there are logs of this queue: {_names(layout, logs)}. Nothing was changed "
        "and no queue was created over them. If only one log exists, write its number into the file; otherwise "
        "restore the file from a backup."
    )


def _names(layout: Layout, logs: list[int]) -> str:
    return ", ".join(layout.log(generation).name for generation in logs) or "none"
