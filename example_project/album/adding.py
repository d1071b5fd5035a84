"""Storing photographs: the rows, the files and the jobs of one upload, all together or not at all.

Invariant: after `add_photos` raised, neither a row, a file nor a job of that call is left. Rows and jobs are
undone by the transaction (a job enqueued inside it is written after the commit); files are undone here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import PurePath

from django.core.files.base import File
from django.db import IntegrityError, transaction

from album.models import Photo, Upload
from album.tasks import make_thumbnails, send_notice


class DuplicatePhoto(Exception):
    """The album has this photograph already; nothing of the call was stored."""

    def __init__(self, name: str) -> None:
        super().__init__(f"“{name}” is in the album already. Nothing of this upload was kept.")
        self.name = name


def add_photos(files: Iterable[File[bytes]], email: str, webhook_url: str) -> Upload:
    """Store an upload and enqueue its work.

    `webhook_url` is the absolute address that is called when a photograph is ready. Raises DuplicatePhoto.
    """
    stored: list[Photo] = []
    try:
        with transaction.atomic():
            upload = Upload.objects.create(email=email)
            for file in files:
                stored.append(photo := Photo(upload=upload, title=title_of(file.name or ""), sha256=digest(file)))
                photo.original.save(file.name or "", file, save=False)
                # The id of the job is known here, before the job itself exists.
                photo.thumbnail_job = make_thumbnails.enqueue(photo.pk, webhook_url).id
                insert(photo, file.name or "")
            send_notice.enqueue(upload.pk)
    except BaseException:
        for photo in stored:
            delete_file(photo, photo.original.name)
        raise
    return upload


def replace_original(photo: Photo, file: File[bytes]) -> None:
    """Put a better file in the place of one that cannot be read; its job can be requeued then.

    Raises DuplicatePhoto if the better file is in the album under another title.
    """
    old = photo.original.name
    photo.sha256 = digest(file)
    photo.prepared_at = None
    photo.original.save(file.name or "", file, save=False)
    new = photo.original.name
    try:
        with transaction.atomic():
            insert(photo, file.name or "")
    except BaseException:
        delete_file(photo, new)
        raise
    delete_file(photo, old)


def delete_file(photo: Photo, name: str | None) -> None:
    """Delete a stored file of a photograph, if there is one."""
    if name:
        photo.original.storage.delete(name)


def insert(photo: Photo, name: str) -> None:
    """Write the row; the unique digest refuses a photograph that is there already, also between two requests."""
    try:
        photo.save()
    except IntegrityError as error:
        raise DuplicatePhoto(name) from error


def digest(file: File[bytes]) -> str:
    """SHA-256 of a file's content, as hex digits."""
    file.seek(0)
    sha256 = hashlib.sha256()
    for chunk in file.chunks():
        sha256.update(chunk)
    file.seek(0)
    return sha256.hexdigest()


def title_of(name: str) -> str:
    """A readable title out of a file name: `red-panda.jpg` becomes `Red panda`."""
    words = PurePath(name).stem.replace("-", " ").replace("_", " ").split()
    title = " ".join(words)[:100] or "Untitled"
    return title[0].upper() + title[1:]
