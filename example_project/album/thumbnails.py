"""Thumbnails of one photograph: decode, scale, and put in place with a rename.

Invariant: a name from `paths()` is either absent or a complete picture. Rendering the same original again
replaces the files by the same bytes, so a job may be delivered twice. Knows nothing of the database or the queue.
"""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from PIL import Image, ImageFilter, ImageOps


class Rendition(NamedTuple):
    """One size in which every photograph is kept; the longer side has at most `longest` pixels."""

    name: str
    longest: int
    quality: int


RENDITIONS = (Rendition("large", 1600, 85), Rendition("thumb", 480, 80))
SHARPEN = ImageFilter.UnsharpMask(radius=1, percent=60, threshold=2)  # scaling down blurs a little


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What is known of a photograph after its thumbnails were made (width and height of the original)."""

    width: int
    height: int
    colour: str


def directory() -> Path:
    """The directory that holds all thumbnails and nothing else."""
    return Path(settings.MEDIA_ROOT) / "thumbnails"


def file_name(photo_id: object, rendition: str) -> str:
    """Name of one thumbnail, fixed by the photograph and the size."""
    return f"{photo_id}-{rendition}.jpg"


def paths(photo_id: object) -> list[Path]:
    """All thumbnails that a ready photograph has."""
    return [directory() / file_name(photo_id, rendition.name) for rendition in RENDITIONS]


def render(original: Path, photo_id: object) -> Rendered:
    """Write all thumbnails of one photograph.

    Raises OSError if the file is missing or cannot be decoded; no thumbnail is written then.
    """
    with Image.open(original) as opened:
        # What a camera stores sideways is turned upright, and what is not RGB (grey, CMYK, alpha) becomes RGB.
        picture = ImageOps.exif_transpose(opened).convert("RGB")
    for rendition in RENDITIONS:
        size = size_within(picture.size, rendition.longest)
        scaled = picture.resize(size, Image.Resampling.LANCZOS).filter(SHARPEN)
        encoded = io.BytesIO()
        scaled.save(encoded, "JPEG", quality=rendition.quality, optimize=True)
        put_in_place(directory() / file_name(photo_id, rendition.name), encoded.getvalue())
    return Rendered(width=picture.width, height=picture.height, colour=average_colour(picture))


def size_within(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """A size in pixels scaled down, never up, so that its longer side has at most `longest`."""
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def average_colour(picture: Image.Image) -> str:
    """The average colour as `#rrggbb`: what a page shows until the thumbnail has loaded."""
    red, green, blue = picture.resize((1, 1), Image.Resampling.BOX).tobytes()
    return f"#{red:02x}{green:02x}{blue:02x}"


def put_in_place(target: Path, content: bytes) -> None:
    """Write a file under a temporary name, sync it, and rename it to `target`.

    On disk: a process killed half way leaves at most a `.part` file, which the next successful run removes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, 0o644)  # mkstemp makes it private, but the web server has to read it
    try:
        os.replace(temporary, target)
    except FileNotFoundError:
        # A second delivery of the same job finished first and cleared this file away: its picture is the same.
        if not target.exists():
            raise
    for leftover in target.parent.glob(f".{target.name}.*.part"):
        with suppress(FileNotFoundError):
            leftover.unlink()
