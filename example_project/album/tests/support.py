"""What the tests share: a site in a temporary directory, and pictures made on the spot."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import TestCase
from PIL import Image

from album.models import Photo, Upload
from nobroker_django import Job
from nobroker_django.queues import get_queue

WEBHOOK = "http://127.0.0.1:9/webhook/"


class AlbumTestCase(TestCase):
    """A test case with files and a queue of its own."""

    directory: Path

    def setUp(self) -> None:
        """Point every setting that names a directory to a fresh one."""
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        # Changing NOBROKER closes the queue of the test before; the end of the block closes this one's.
        self.enterContext(
            self.settings(
                MEDIA_ROOT=self.directory / "media",
                ALBUM_MAIL_DIR=self.directory / "mail",
                ALBUM_RUNNING_DIR=self.directory / "running",
                NOBROKER={"DIR": self.directory / "queue"},
            )
        )

    def jobs(self, task: str) -> list[Job]:
        """The jobs of one of the album's tasks."""
        return [job for job in get_queue().list_jobs() if job.payload["task"] == f"album.tasks.{task}"]

    def stored_photo(self, content: bytes | None = None, **values: Any) -> Photo:
        """A photograph that was uploaded and not prepared yet."""
        upload = Upload.objects.create(email="visitor@example.org")
        photo = Photo(upload=upload, title="A photograph", **values)
        photo.sha256 = photo.id.hex * 2
        photo.original.save("photo.jpg", SimpleUploadedFile("photo.jpg", content or picture()), save=True)
        return photo


def picture(size: tuple[int, int] = (640, 400), *, mode: str = "RGB", file_format: str = "JPEG", **save: Any) -> bytes:
    """A picture that compresses like a photograph would not, which is enough for a test; encoded."""
    gradient = Image.linear_gradient("L").resize(size)
    encoded = io.BytesIO()
    gradient.convert(mode).save(encoded, file_format, **save)
    return encoded.getvalue()


def uploaded(name: str, content: bytes | None = None) -> SimpleUploadedFile:
    """A file as the upload form sends it; without `content` a picture that is different for each name."""
    if content is None:
        content = picture((300 + len(name), 200 + sum(name.encode()) % 97))
    return SimpleUploadedFile(name, content, content_type="image/jpeg")
