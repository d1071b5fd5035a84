"""Does the album hold what its jobs promised? Looks at rows and files, changes nothing.

Every check returns the complaints it has; no complaint means that it holds. The queue is not asked: what counts
is what the jobs left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from PIL import Image

from album import thumbnails
from album.models import Photo, Upload
from album.tasks import notice_message_id
from album.views import WEBHOOK_FAILURES


class CheckResult(NamedTuple):
    """One check: what it looks at, how many things it looked at, and what is wrong with them."""

    name: str
    looked_at: int
    complaints: list[str]

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return not self.complaints


def check_album() -> list[CheckResult]:
    """Run all checks on the site's database and files."""
    return [run(name, check) for name, check in CHECKS]


def run(name: str, check: Callable[[], tuple[int, list[str]]]) -> CheckResult:
    """Run one check."""
    looked_at, complaints = check()
    return CheckResult(name, looked_at, complaints)


def every_photo_is_ready() -> tuple[int, list[str]]:
    """Each row has what the thumbnail task writes last."""
    photos = list(Photo.objects.all())
    return len(photos), [
        f"{photo}: not prepared" for photo in photos if not (photo.is_ready and photo.width and photo.colour)
    ]


def every_thumbnail_exists_once() -> tuple[int, list[str]]:
    """The directory holds each thumbnail of each photograph, complete, and nothing else."""
    expected = {
        thumbnails.file_name(photo.pk, rendition.name): (photo, rendition)
        for photo in Photo.objects.all()
        for rendition in thumbnails.RENDITIONS
    }
    directory = thumbnails.directory()
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    complaints = [f"{expected[name][0]}: {name} is missing" for name in sorted(expected.keys() - found)]
    complaints += [f"{name} belongs to no photograph" for name in sorted(found - expected.keys())]
    for name in sorted(expected.keys() & found):
        photo, rendition = expected[name]
        if problem := thumbnail_problem(directory / name, photo, rendition):
            complaints.append(f"{photo}: {name} {problem}")
    return len(expected), complaints


def thumbnail_problem(path: Path, photo: Photo, rendition: thumbnails.Rendition) -> str | None:
    """What is wrong with one thumbnail: it has to decode completely and to have the right size."""
    try:
        with Image.open(path) as picture:
            picture.load()
            size = picture.size
    except OSError as error:
        return f"cannot be decoded ({error})"
    longest = min(rendition.longest, max(photo.width or 0, photo.height or 0))
    if max(size) != longest:
        return f"is {max(size)} pixels long instead of {longest}"
    return None


def every_webhook_was_delivered() -> tuple[int, list[str]]:
    """Each photograph's webhook was refused as often as the endpoint refuses, and then taken."""
    complaints = []
    photos = Photo.objects.prefetch_related("webhook_calls")
    for photo in photos:
        statuses = [call.status for call in photo.webhook_calls.all()]
        refused, taken = statuses[:WEBHOOK_FAILURES], statuses[WEBHOOK_FAILURES:]
        # More than one 200 is allowed: a worker that is killed after the call makes it again.
        if refused != [503] * WEBHOOK_FAILURES or set(taken) != {200}:
            complaints.append(f"{photo}: the webhook answered {statuses or 'nothing'}")
    return len(photos), complaints


def every_notice_was_sent() -> tuple[int, list[str]]:
    """Each upload has a mail with its Message-ID."""
    mailbox = Path(settings.ALBUM_MAIL_DIR)
    sent = set()
    for path in mailbox.glob("*.log") if mailbox.is_dir() else ():
        # The file backend writes each mail of a connection followed by a line of dashes.
        for text in path.read_bytes().split(b"\n" + b"-" * 79 + b"\n"):
            if message_id := message_from_bytes(text.lstrip())["Message-ID"]:
                sent.add(message_id.strip())
    uploads = list(Upload.objects.all())
    return len(uploads), [f"{upload}: no mail" for upload in uploads if notice_message_id(upload.pk) not in sent]


CHECKS: list[tuple[str, Callable[[], tuple[int, list[str]]]]] = [
    ("every photograph is ready", every_photo_is_ready),
    ("every thumbnail exists exactly once", every_thumbnail_exists_once),
    ("every webhook was refused, retried and taken", every_webhook_was_delivered),
    ("every upload had its notice", every_notice_was_sent),
]
