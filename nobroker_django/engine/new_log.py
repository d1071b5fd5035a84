"""Writing a whole log that nobody reads yet, for a generation to come.

Invariant: until ``finish`` the first record says that more copies follow than any file can hold, so what a crash
leaves is known for what it is: a log that was never live. ``finish`` syncs, puts the true number there, and syncs
that. Nothing in the file counts as durable before, and every ``u`` says so.

On disk: a file under a name of its own, which ``take_name`` changes to that of the generation.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from .files import Files, write_all
from .framing import HEADER_BYTES
from .generations import Layout, pointer_names
from .log import beginning
from .records import Record, Snapshot, encode_batch, encode_body

logger = logging.getLogger("nobroker_django")
UNFINISHED = 1 << 62  # copies
BEGINNING_BYTES = 512  # of the header and the first record, which is written twice
_BATCH_BYTES = 1024 * 1024
_UNSYNCED_BYTES = 4 * 1024 * 1024  # synced little by little: the disk is others' too


class NewLog:
    """A log on its way. Used by one thread; whoever made it closes it."""

    def __init__(
        self, files: Files, layout: Layout, generation: int, snapshot: Snapshot, mode: int, *, what: str = "compact"
    ) -> None:
        """Create the file.

        Args:
            snapshot: the first record; its ``copies`` are counted here.
            what: what the temporary name says.

        Raises:
            OSError: the system refused; nothing is left.
        """
        self.files = files
        self.layout = layout
        self.generation = generation
        self.path = layout.temporary(what)
        self.size = 0  # bytes written
        self.last = HEADER_BYTES  # where the last write begins
        self._synced = 0
        self.records = 0  # behind the first one
        self._snapshot = snapshot
        self._kinds: list[int] = []
        self._bodies: list[bytes] = []
        self._batch_bytes = 0
        self.fd = files.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            files.set_mode(self.fd, mode, layout.directory)
            snapshot.copies = UNFINISHED
            self._write(beginning(generation, snapshot, BEGINNING_BYTES))
        except BaseException:
            self.remove_unless_live()
            self.close()
            raise

    def add(self, records: Iterable[Record]) -> None:
        """Append records; they are written when there are enough of them, or by ``flush``."""
        for record in records:
            body = encode_body(record)
            self._kinds.append(int(record.TYPE))
            self._bodies.append(body)
            self._batch_bytes += len(body)
            self.records += 1
        if self._batch_bytes > _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was added."""
        if self._bodies:
            data, _, _ = encode_batch(self._kinds, self._bodies, self.size)
            self._kinds, self._bodies, self._batch_bytes = [], [], 0
            self.last = self.size
            self._write(data)
            if self.size - self._synced > _UNSYNCED_BYTES:
                self.sync()

    def _write(self, data: bytes) -> None:
        write_all(self.files, self.fd, data)
        self.size += len(data)

    def sync(self) -> None:
        """Bring what was added to the disk."""
        self.flush()
        if self._synced < self.size:
            self.files.datasync(self.fd)
            self._synced = self.size

    def finish(self) -> None:
        """Make it a complete log, on the disk.

        The number comes after what it counts: a log that says it and has less was live, and is damaged.
        """
        self.sync()
        self._snapshot.copies = self.records
        write_all(self.files, self.fd, beginning(self.generation, self._snapshot, BEGINNING_BYTES), 0)
        self.files.datasync(self.fd)

    def take_name(self) -> None:
        """Give it the name of its generation, which must be free. The caller sees to it, and syncs the directory."""
        target = self.layout.log(self.generation)
        self.files.rename(self.path, target)
        self.path = target

    def is_named(self) -> bool:
        """Whether its path names this very file (and no other compaction has put another one there)."""
        return self.files.path_identity(self.path) == self.files.identity(self.fd)

    def remove_unless_live(self) -> None:
        """Remove what was written, unless the pointer may name it. Never raises for what the system refuses."""
        try:
            if not self.is_named():
                return
            named = self.path == self.layout.log(self.generation)
            if not (named and pointer_names(self.files, self.layout, self.generation)):
                self.files.unlink(self.path)
        except OSError as error:
            logger.warning("could not remove the unfinished log %s: %s", self.path, error)

    def close(self) -> None:
        """Close the file; again: nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self.files.close(fd)
