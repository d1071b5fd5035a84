"""What a disk may hold after a power cut, worked out from a recorded trace.

The model is the weakest that file systems are allowed to be. Until a sync of the file, each 512-byte sector holds
any one of the contents that it had since the last one, independently of the others; the file has any of the sizes that
it had, or one between; sectors that never reached the disk read as zeros, and so does what was only allocated. Until
a sync of the directory, each change of a name is kept or lost independently. A failed sync leaves everything open, and
later syncs do not write those sectors again (they are clean in the cache): the behaviour of Linux since 4.13. That
holds for the zeros behind a cut as well, in the block that it goes through. Blocks that were cut off whole are given
up by the file's metadata, which a file system tries again, or no later sync succeeds.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .faulty import WRITING, Call, Watched

SECTOR = 512
BLOCK = 4096


@dataclass
class Event:
    """One thing that happened: a change of the files, or a note of the script."""

    kind: str
    arguments: tuple[Any, ...] = ()


class Killed(BaseException):
    """The process ended here."""


class TraceFiles(Watched):
    """Records what changes files and names in one directory. ``note`` puts the script's own events between them.

    Args:
        before: the trace to go on with: of the processes that were there earlier.
        fail_syncs: numbers of the syncs of a log (0 is the first) that fail.
        fail_writes: numbers of the writes to a log that fail, half done.
        kill_at: number of the changing call before which the process ends (if it is a sync: in it): that call, and
            every later one, raises ``Killed``. ``bury`` then closes what it had open.
        kill_anywhere: every call counts for ``kill_at``, also those that look, lock and close; see ``counted``.
        half: when that call is a write, half of it is done.
    """

    def __init__(
        self,
        directory: Path,
        before: TraceFiles | None = None,
        *,
        fail_syncs: frozenset[int] = frozenset(),
        fail_writes: frozenset[int] = frozenset(),
        kill_at: int | None = None,
        kill_anywhere: bool = False,
        half: bool = False,
    ) -> None:
        super().__init__()
        self.directory = str(directory)
        self.trace: list[Event] = before.trace if before else []
        self.fail_syncs, self.fail_writes = fail_syncs, fail_writes
        self.kill_at, self.kill_anywhere, self.half = kill_at, kill_anywhere, half
        self.syncs = self.writes = self.changes = 0
        self.counted: list[Call] = []
        self.dead = False
        self._numbers: dict[str, int] = before._numbers if before else {}
        self._lock = threading.RLock()

    @classmethod
    def over(cls, directory: Path, image: dict[str, bytes], **options: Any) -> TraceFiles:
        """Of a directory that holds what a power cut left: all of it is on the disk."""
        files = cls(directory, **options)
        for number, (name, content) in enumerate(sorted(image.items())):
            if "/" not in name:
                files._numbers[str(directory / name)] = number
                files.trace.append(Event("found", (str(directory / name), number, content)))
        return files

    def bury(self) -> None:
        """Close what the killed process had open: that is what lets its locks go."""
        self.dead = True
        for fd in list(self.paths):
            os.close(fd)
        self.paths.clear()

    def close(self, fd: int) -> None:
        if not self.dead:
            super().close(fd)

    def funlock(self, fd: int) -> None:
        if not self.dead:  # its end lets the locks go, not what runs while the exception passes
            super().funlock(fd)

    def unlock_byte(self, fd: int, offset: int) -> None:
        if not self.dead:
            super().unlock_byte(fd, offset)

    def note(self, kind: str, *arguments: Any) -> None:
        with self._lock:
            self.trace.append(Event(kind, arguments))

    def _ours(self, path: str) -> bool:
        return os.path.dirname(path) == self.directory

    def _number(self, path: str) -> int:
        return self._numbers[path]

    def before(self, call: Call) -> Call:
        creates = call.kind == "open" and bool(call.arguments[0] & os.O_CREAT)
        if self.kill_at is not None and (creates or self.kill_anywhere or call.kind in WRITING):
            self.changes += 1
            self.counted.append(call)
            if self.changes > self.kill_at and not self.dead:
                self.dead = True
                if self.half and call.kind in ("write", "pwrite") and self._ours(call.path):
                    data, offset = call.arguments
                    self._write_half(data[: len(data) // 2], offset, call.path)
                self.note("killed")
                if call.kind in ("datasync", "sync") and self._ours(call.path):
                    self.note("sync-begins", self._number(call.path), threading.get_ident())
        if self.dead:
            raise Killed
        if creates and self._ours(call.path):
            with self._lock:
                if not os.path.exists(call.path):
                    number = sum(event.kind in ("create", "found") for event in self.trace) + 1000
                    self._numbers[call.path] = number
                    self.trace.append(Event("create", (call.path, number)))
        elif call.kind in ("datasync", "sync") and self._ours(call.path):
            self.note("sync-begins", self._number(call.path), threading.get_ident())
            self.syncs += call.path.endswith(".log")
            if call.path.endswith(".log") and self.syncs - 1 in self.fail_syncs:
                self.note("sync-fails", self._number(call.path), threading.get_ident())
                raise OSError(5, "made up")
        elif call.kind == "sync_directory" and call.path == self.directory:
            self.note("directory-sync-begins", threading.get_ident())
        elif call.kind == "pwrite" and call.path.endswith(".log"):
            self.writes += 1
            if self.writes - 1 in self.fail_writes:
                return Call(
                    call.kind, call.path, (call.arguments[0][: len(call.arguments[0]) // 2], call.arguments[1])
                )
            if self.writes - 2 in self.fail_writes:
                raise OSError(28, "made up")
        return call

    def _write_half(self, data: bytes, offset: int, path: str) -> None:
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(data)
        self.note("write", self._number(path), offset, data)

    def after(self, call: Call, result: Any) -> None:
        kind, path = call.kind, call.path
        if kind == "sync_directory" and path == self.directory:
            self.note("directory-sync", threading.get_ident())
        if not self._ours(path) or call.path == self.directory:
            return
        with self._lock:
            if kind in ("write", "pwrite"):
                data, offset = call.arguments
                self.trace.append(Event("write", (self._number(path), offset, data[:result])))
            elif kind == "allocate":
                self.trace.append(Event("allocate", (self._number(path), sum(call.arguments))))
            elif kind == "truncate":
                self.trace.append(Event("truncate", (self._number(path), call.arguments[0])))
            elif kind in ("datasync", "sync"):
                run = _read_directory(Path(path.removesuffix(".lock") + ".run")) if path.endswith(".lock") else None
                self.trace.append(Event("sync", (self._number(path), threading.get_ident(), run)))
            elif kind == "rename":
                self._numbers[call.arguments[0]] = self._numbers.pop(path)
                self.trace.append(Event("rename", (path, call.arguments[0])))
            elif kind == "link":
                self._numbers[call.arguments[0]] = self._number(path)
                self.trace.append(Event("link", (call.arguments[0], self._number(path))))
            elif kind == "unlink":
                self._numbers.pop(path, None)
                self.trace.append(Event("unlink", (path,)))


def _read_directory(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in path.iterdir() if entry.is_file()} if path.is_dir() else {}


@dataclass
class SimulatedFile:
    """The cached content of a file, and what each sector and the size may be on the disk."""

    content: bytearray = field(default_factory=bytearray)
    sectors: dict[int, list[bytes]] = field(default_factory=dict)  # possible contents, oldest first
    dirty: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)  # of the dirty ones, those of blocks that were cut off whole
    sizes: list[int] = field(default_factory=lambda: [0])
    size_dirty: bool = False
    begun: dict[Any, tuple[dict[int, bytes], int]] = field(default_factory=dict)  # syncs under way

    @classmethod
    def of(cls, content: bytes) -> SimulatedFile:
        """A file that is on the disk."""
        file = cls(bytearray(content), sizes=[len(content)])
        for index in range((len(content) + SECTOR - 1) // SECTOR):
            file.sectors[index] = [file._sector(index)]
        return file

    def _sector(self, index: int) -> bytes:
        return bytes(self.content[index * SECTOR : (index + 1) * SECTOR]).ljust(SECTOR, b"\0")

    def _touch(self, start: int, stop: int) -> None:
        for index in range(start // SECTOR, (stop + SECTOR - 1) // SECTOR):
            self.sectors.setdefault(index, [bytes(SECTOR)]).append(self._sector(index))
            self.dirty.add(index)
            self.given_up.discard(index)

    def write(self, offset: int, data: bytes) -> None:
        if len(self.content) < offset:
            self.content.extend(bytes(offset - len(self.content)))
        self.content[offset : offset + len(data)] = data
        self._touch(offset, offset + len(data))
        self._sized()

    def allocate(self, stop: int) -> None:
        """Place for the bytes up to ``stop``: zeros where there was nothing; what is there stays."""
        self.content.extend(bytes(max(0, stop - len(self.content))))
        self._sized()

    def truncate(self, size: int) -> None:
        before = len(self.content)
        del self.content[size:]
        if size % SECTOR and before > size:
            self._touch(size, size + 1)
        for index in [index for index in self.sectors if index * SECTOR >= size]:
            self.sectors[index].append(bytes(SECTOR))
            self.dirty.add(index)
            if index * SECTOR >= size + -size % BLOCK:
                self.given_up.add(index)
        self._sized()

    def _sized(self) -> None:
        if self.sizes[-1] != len(self.content):
            self.sizes.append(len(self.content))
            self.size_dirty = True

    def sync_begins(self, key: Any) -> None:
        self.begun[key] = {index: self._sector(index) for index in self.dirty}, len(self.content)
        self.dirty = set(self.given_up)

    def sync_ends(self, key: Any, *, well: bool) -> None:
        written, size = self.begun.pop(key)
        if not well:
            return
        for index, content in written.items():
            if index in self.given_up and content == self._sector(index):
                self.given_up.discard(index)
                self.dirty.discard(index)
            possible = self.sectors[index]
            newest = len(possible) - 1 - possible[::-1].index(content) if content in possible else 0
            self.sectors[index] = possible[newest:]
        self.sizes = self.sizes[len(self.sizes) - 1 - self.sizes[::-1].index(size) :]

    def open_sectors(self) -> list[int]:
        """Sectors whose content on the disk is not certain."""
        return [index for index, possible in self.sectors.items() if len(set(possible)) > 1]

    def possible_sizes(self) -> list[int]:
        """Every size that the file had, and the sector boundaries between them.

        Where no byte was ever written, one is like another: only the first boundary of such an end stands for all.
        """
        least, most = min(self.sizes), max(self.sizes)
        zeros = (max(self.sectors, default=-1) + 1) * SECTOR
        between = range(least - least % SECTOR + SECTOR, min(most, zeros + SECTOR + 1), SECTOR)
        return sorted({*self.sizes, *between})

    def image(self, size: int, choice: dict[int, int]) -> bytes:
        """The content with ``size`` bytes and, for each open sector, the ``choice``-th of its possible contents."""
        parts = []
        for index in range((size + SECTOR - 1) // SECTOR):
            possible = self.sectors.get(index)
            parts.append(bytes(SECTOR) if possible is None else possible[choice.get(index, len(possible) - 1)])
        return b"".join(parts)[:size]

    def draw(self, rng: random.Random) -> bytes:
        """One legal content, with a bias to what hurts."""
        sizes, open_sectors = self.possible_sizes(), self.open_sectors()
        how = rng.choice(("old", "new", "random", "random", "one lost", "one kept", "prefix"))
        size = {"old": self.sizes[0], "new": self.sizes[-1]}.get(how) if rng.random() < 0.7 else None
        if size is None:
            size = self.sizes[-1] if rng.random() < 0.5 else rng.choice(sizes)
        choice: dict[int, int] = {}
        special = rng.choice(open_sectors) if open_sectors else 0
        for index in open_sectors:
            last = len(self.sectors[index]) - 1
            choice[index] = {
                "old": 0,
                "new": last,
                "one lost": rng.randrange(last) if index == special else last,
                "one kept": last if index == special else 0,
                "prefix": last if index < special else 0,
            }.get(how, rng.randint(0, last))
        return self.image(size, choice)

    def all_images(self, most: int) -> Iterator[bytes] | None:
        """Every legal content, or ``None`` when there are more than ``most``."""
        open_sectors, sizes = self.open_sectors(), self.possible_sizes()
        count = len(sizes)
        for index in open_sectors:
            count *= len(self.sectors[index])
        if count > most:
            return None

        def generate() -> Iterator[bytes]:
            for size in sizes:
                for number in range(count // len(sizes)):
                    choice = {}
                    for index in open_sectors:
                        number, choice[index] = divmod(number, len(self.sectors[index]))
                    yield self.image(size, choice)

        return generate()


class Disk:
    """The directory as the events of a trace change it, and the images that a power cut may leave."""

    def __init__(self) -> None:
        self.files: dict[int, SimulatedFile] = {}
        self.durable: dict[str, int] = {}
        self.pending: list[tuple[str, ...] | tuple[str, str, int]] = []
        self.clean_run: dict[str, bytes] = {}
        self._begun: dict[Any, int] = {}

    def apply(self, event: Event) -> bool:
        """Whether the event changed something that a power cut could show."""
        a = event.arguments
        match event.kind:
            case "found":
                self.files[a[1]] = SimulatedFile.of(a[2])
                self.durable[a[0]] = a[1]
            case "create":
                self.files[a[1]] = SimulatedFile()
                self.pending.append(("create", a[0], a[1]))
            case "write":
                self.files[a[0]].write(a[1], a[2])
            case "allocate":
                self.files[a[0]].allocate(a[1])
            case "truncate":
                self.files[a[0]].truncate(a[1])
            case "sync-begins":
                self.files[a[0]].sync_begins(a[1])
            case "sync-fails":
                self.files[a[0]].sync_ends(a[1], well=False)
            case "sync":
                self.files[a[0]].sync_ends(a[1], well=True)
                if a[2] is not None:
                    self.clean_run = a[2]
            case "link":
                self.pending.append(("create", *a))
            case "rename":
                self.pending.append(("rename", *a))
            case "unlink":
                self.pending.append(("unlink", *a))
            case "directory-sync-begins":
                self._begun[a[0]] = len(self.pending)
            case "directory-sync":
                count = self._begun.pop(a[0])
                self.durable = self._names([True] * count)
                self.pending = self.pending[count:]
                self._begun = {key: max(0, number - count) for key, number in self._begun.items()}
            case _:
                return False
        return True

    def _names(self, kept: list[bool]) -> dict[str, int]:
        names = dict(self.durable)
        sources = dict(self.durable)  # who a name stood for, had every change been kept
        for change, keep in zip(self.pending, [*kept, *[False] * len(self.pending)], strict=False):
            if change[0] == "create":
                sources[change[1]] = change[2]  # type: ignore[assignment]
                if keep:
                    names[change[1]] = sources[change[1]]
            elif change[0] == "rename":
                sources[change[2]] = sources.pop(change[1])  # type: ignore[index]
                if keep:
                    names.pop(change[1], None)
                    names[change[2]] = sources[change[2]]  # type: ignore[index]
            else:
                sources.pop(change[1], None)
                if keep:
                    names.pop(change[1], None)
        return names

    def newest_names(self) -> dict[str, int]:
        """The names as they are: path to file."""
        return self._names([True] * len(self.pending))

    def draw_names(self, rng: random.Random) -> dict[str, int]:
        """One legal set of names: path to file."""
        count = len(self.pending)
        how = rng.choice(("all", "none", "prefix", "random"))
        point = rng.randint(0, count)
        kept = [
            {"all": True, "none": False, "prefix": number < point}.get(how, rng.random() < 0.5)
            for number in range(count)
        ]
        return self._names(kept)

    def every(self, most: int) -> list[dict[str, bytes]]:
        """Every legal image, without the caches, when there are at most ``most``; none otherwise."""
        count = len(self.pending)
        if 2**count > most:
            return []
        found: dict[Any, dict[str, bytes]] = {}
        for bits in range(2**count):
            images: list[dict[str, bytes]] = [{}]
            for path, number in self._names([bool(bits >> place & 1) for place in range(count)]).items():
                contents = list(self.files[number].all_images(most) or ())
                if not contents or len(images) * len(contents) > most:
                    return []
                images = [{**image, os.path.basename(path): content} for image in images for content in contents]
            found.update((frozenset(image.items()), image) for image in images)
        return list(found.values()) if len(found) <= most else []

    def draw(self, rng: random.Random) -> dict[str, bytes]:
        """One legal image: name to content. The control words may be gone; the caches are gone or garbage."""
        image = {os.path.basename(path): self.files[n].draw(rng) for path, n in self.draw_names(rng).items()}
        return self.with_caches(image, rng)

    def with_caches(self, image: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
        """The image with a legal run directory: as it was left clean, gone, or garbage."""
        for name in [name for name in image if name.endswith(".lock")]:
            if rng.random() < 0.2:
                del image[name]
                continue
            build, clean = _builds(image[name])
            run = name.removesuffix(".lock") + ".run/"
            what = rng.random()
            if clean:
                if what < 0.8:
                    image.update({run + entry: content for entry, content in self.clean_run.items()})
            elif what < 0.5 and build:
                for suffix in ("", "-wal", "-shm"):
                    for generation in (1, 2, 3):
                        image[f"{run}{generation:06d}-{build}.index{suffix}"] = rng.randbytes(600)
        return image


def _builds(content: bytes) -> tuple[int, int]:
    """The numbers of the current build and of the one that was left clean, from the control words; 0 for none."""
    if content[:8] != b"NBWORDS2":
        return 0, 0
    return int.from_bytes(content[56:64], "little"), int.from_bytes(content[64:72], "little")


def write_image(image: dict[str, bytes], directory: Path) -> None:
    """Make a directory that holds the image."""
    directory.mkdir(parents=True)
    for name, content in image.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
