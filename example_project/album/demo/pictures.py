"""The photographs of the demo: which ones, in which uploads, and the one that is sent broken.

All but one are good. The broken one is a real JPEG that breaks off half way, as after a lost connection: its header
passes the form, and decoding it fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from album.demo.processes import PROJECT, DemoError
from album.demo.visitor import SentFile
from album.forms import FORMATS, MAX_FILE_MEGABYTES, MAX_MEGAPIXELS

OWN_PHOTOS = PROJECT / "photos"
SENT_BROKEN = OWN_PHOTOS / "coffee.jpg"
LARGEST = OWN_PHOTOS / "dandelion-meadow.jpg"
MOST_PHOTOS = 36  # more photographs, or more pixels in all, would not end in a minute on two busy cores
MOST_PIXELS = 250_000_000
FILES_PER_UPLOAD = 4
LARGE_ENOUGH = 8_000_000  # pixels; such a photograph takes long enough for a worker to be caught at it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """What is uploaded. `late` is kept back until the compaction is over, `whole` mends `broken`."""

    good: list[SentFile]
    late: SentFile
    broken: SentFile
    whole: SentFile
    notes: list[str]

    def uploads(self) -> Iterator[list[SentFile]]:
        """The good photographs, a few at a time."""
        for start in range(0, len(self.good), FILES_PER_UPLOAD):
            yield self.good[start : start + FILES_PER_UPLOAD]


def choose(directory: Path | None) -> Pictures:
    """Read the photographs of a directory (None: those that come with the site). Raises DemoError."""
    whole = read(SENT_BROKEN)
    seen = {digest(whole)}
    good: list[SentFile] = []
    notes: list[str] = []
    largest_size = total = 0
    for path in candidates(directory or OWN_PHOTOS):
        try:
            file, size = read(path), pixels_of(path)
        except (OSError, Image.DecompressionBombError) as error:
            notes.append(f"{path.name} is left out: {error}")
            continue
        if size > MAX_MEGAPIXELS * 1_000_000 or len(file.content) > MAX_FILE_MEGABYTES * 1_000_000:
            notes.append(f"{path.name} is left out: too large for the site's form")
        elif digest(file) in seen:
            if path != SENT_BROKEN:
                notes.append(f"{path.name} is left out: the same photograph as another one")
        elif len(good) == MOST_PHOTOS or total + size > MOST_PIXELS:
            notes.append(f"only the first {len(good)} photographs are taken, to be done within a minute")
            break
        else:
            seen.add(digest(file))
            good.append(file)
            largest_size = max(largest_size, size)
            total += size
    if largest_size < LARGE_ENOUGH and digest(largest := read(LARGEST)) not in seen:
        good.insert(0, largest)
        notes.append(f"{LARGEST.name} is added: the others are small, and a worker is to be caught at work")
    if len(good) < 2:
        raise DemoError(f"there are no photographs (JPEG, PNG or WebP) in {directory}")
    broken = SentFile("interrupted-upload.jpg", whole.content[: len(whole.content) // 2])
    return Pictures(good=good[:-1], late=good[-1], broken=broken, whole=whole, notes=notes)


def candidates(directory: Path) -> list[Path]:
    """The picture files of a directory, by name."""
    suffixes = {".jpg", ".jpeg", ".png", ".webp"}
    try:
        return sorted(path for path in directory.iterdir() if path.is_file() and path.suffix.lower() in suffixes)
    except OSError as error:
        raise DemoError(f"the photographs cannot be read: {error}") from error


def read(path: Path) -> SentFile:
    """One file as it is sent."""
    return SentFile(path.name, path.read_bytes())


def pixels_of(path: Path) -> int:
    """Number of pixels of a picture that decodes completely and has a format that the site takes."""
    with Image.open(path) as picture:
        if picture.format not in FORMATS:
            raise OSError(f"{picture.format} is not a format that the site takes")
        picture.load()
        return picture.width * picture.height


def digest(file: SentFile) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.content).hexdigest()
