"""The control words: what every process that has the queue open knows about the live log.

They stand at the start of ``NAME.lock``, a file that is never replaced or unlinked by this package:

======  =========  =====================================================================================
byte    word       meaning
======  =========  =====================================================================================
0       magic      ``NBWORDS2``
8       log id     of the live log, as in its first record; words of another id are worth nothing
16      end        published end: where the last complete write ends
24      last       where that write begins
32      synced     everything before it is known to be on the disk
40      syncing    1 while a sync is under way; left over, its outcome is unknown
48      poisoned   1 while the tail has to be secured before anything else is written
56      build      number of the projection's current file, 0 = none
64      clean      the build that was left complete and synced by the last closer, 0 = none
72      damaged    position of damage that somebody met in acknowledged data, 0 = none: writers refuse
80      listening  Unix time in milliseconds until which somebody waits for the bell, 0 = nobody
======  =========  =====================================================================================

``end``, ``last`` and ``synced`` are positions: 24 bits of generation above 40 bits of offset, so that they compare
across generations. Every word is an aligned 64-bit number, read and written by ``pread`` and ``pwrite`` alone (a
store into a mapping of a truncated file would kill the process). The words are right while somebody is alive; after
that they are hints, which ``recovery`` checks against the log.

Written under the log's lock: id, end, last, build, clean, damaged. Under the sync lock: synced, syncing. Poison:
under either. Listening: under none, by whoever waits for work; of several at once each writes about the same.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .files import Files, write_all

MAGIC = b"NBWORDS2"
_MAGIC_BYTES = len(MAGIC)
_WORDS = struct.Struct("<QQQQQQQQQQ")
_READ_BYTES = _MAGIC_BYTES + _WORDS.size
_WORD = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")
_ONE = _WORD.pack(1)
AREA_BYTES = 4096

_ID, _END, _SYNCED, _SYNCING, _POISONED, _BUILD, _CLEAN, _DAMAGED, _LISTENING = 8, 16, 32, 40, 48, 56, 64, 72, 80

# Locks of single bytes of the same file, far behind the words.
SESSION_BYTE = 1 << 32
FOLD_BYTE = SESSION_BYTE + 1
COMPACTION_BYTE = SESSION_BYTE + 2

OFFSET_BITS = 40
MAX_OFFSET = (1 << OFFSET_BITS) - 1
MAX_GENERATION = (1 << 23) - 1


def position(generation: int, offset: int) -> int:
    """The word that stands for ``offset`` bytes into log ``generation``."""
    return generation << OFFSET_BITS | offset


def generation_of(word: int) -> int:
    """Generation of a position."""
    return word >> OFFSET_BITS


def offset_of(word: int) -> int:
    """Offset (bytes) of a position."""
    return word & MAX_OFFSET


class Words(NamedTuple):
    """One reading of the control words."""

    log_id: int
    end: int
    last: int
    synced: int
    syncing: int
    poisoned: int
    build: int
    clean: int
    damaged: int = 0
    listening: int = 0

    def belong_to(self, log_id: int, generation: int) -> bool:
        """Whether these words speak of the log with this id and generation."""
        return (
            self.log_id == log_id
            and self.end >> OFFSET_BITS == generation
            and self.synced >> OFFSET_BITS == generation
        )


MISSING = Words(0, 0, 0, 0, 0, 0, 0, 0, 0)


class Control:
    """The words of one open ``NAME.lock`` (``fd`` is not owned)."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd

    def read(self) -> Words:
        """All words; ``MISSING`` when there are none."""
        data = self._files.pread(self._fd, _READ_BYTES, 0)
        if len(data) < _READ_BYTES:
            return MISSING
        words: Words = tuple.__new__(Words, _WORDS.unpack(data[_MAGIC_BYTES:]))  # as _make does it, in one step
        return words if data.startswith(MAGIC) else MISSING

    def prepare(self) -> None:
        """Give the words their place on the disk, so that writing one never needs a new block."""
        size = self._files.size(self._fd)
        if size < AREA_BYTES:
            write_all(self._files, self._fd, bytes(AREA_BYTES - size), size)

    def publish(self, end: int, last: int) -> None:
        """Both positions of the last write, in one call."""
        self._put(_END, _PAIR.pack(end, last))

    def set_synced(self, word: int) -> None:
        """Raise the position up to which the log is durable; no sync is under way any more.

        The caller holds the sync lock and sees to it that the position only rises.
        """
        self._put(_SYNCED, _PAIR.pack(word, 0))

    def begin_sync(self) -> None:
        """Mark a sync as under way; left over, its outcome is unknown."""
        self._put(_SYNCING, _ONE)

    def set_poisoned(self, flag: bool) -> None:
        """Poison the queue for the writers of all processes, or lift that."""
        self._put(_POISONED, _WORD.pack(flag))

    def set_log_id(self, log_id: int) -> None:
        """Say which log the words belong to."""
        self._put(0, MAGIC + _WORD.pack(log_id))

    def set_build(self, build: int) -> None:
        """Name the projection's current file."""
        self._put(_BUILD, _WORD.pack(build))

    def set_damaged(self, word: int) -> None:
        """Say where acknowledged data are damaged (0: nowhere)."""
        self._put(_DAMAGED, _WORD.pack(word))

    def set_listening(self, until: int) -> None:
        """Say until when somebody listens for the bell (Unix milliseconds)."""
        self._put(_LISTENING, _WORD.pack(until))

    def set_clean(self, build: int) -> None:
        """Mark a build as complete and synced (0: none), durably."""
        self._put(_CLEAN, _WORD.pack(build))
        self._files.datasync(self._fd)

    def _put(self, offset: int, data: bytes) -> None:
        if self._files.pwrite(self._fd, data, offset) != len(data):
            write_all(self._files, self._fd, data, offset)
