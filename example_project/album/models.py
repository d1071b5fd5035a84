"""What the album stores: uploads, their photographs, and the calls that reached the webhook.

A photograph is *ready* when `prepared_at` is set; the task that makes the thumbnails sets it last. The files
below MEDIA_ROOT are named after the photograph's id, so running a task twice writes the same files twice.
"""

from __future__ import annotations

import uuid
from pathlib import PurePosixPath

from django.db import models
from django.urls import reverse


class Upload(models.Model):
    """One use of the upload form: a few photographs and the address that gets the notice."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField("send a notice to")
    created_at = models.DateTimeField(auto_now_add=True)
    notice_sent_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"Upload of {self.created_at:%Y-%m-%d %H:%M}"


def original_path(photo: Photo, filename: str) -> str:
    """Where an uploaded file goes: named after the photograph's content, never after what the browser sent."""
    return f"originals/{photo.id}-{photo.sha256[:12]}{PurePosixPath(filename).suffix.lower()}"


class Photo(models.Model):
    """One photograph and the state of its thumbnails."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="photos")
    title = models.CharField(max_length=100)
    original = models.FileField(upload_to=original_path, max_length=200)
    sha256 = models.CharField("SHA-256 of the file", max_length=64, unique=True, editable=False)
    thumbnail_job = models.CharField("job that makes the thumbnails", max_length=200, blank=True, editable=False)
    width = models.PositiveIntegerField(null=True, blank=True, editable=False)
    height = models.PositiveIntegerField(null=True, blank=True, editable=False)
    colour = models.CharField("average colour", max_length=7, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    prepared_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-created_at", "title"]

    def __str__(self) -> str:
        return self.title

    def get_absolute_url(self) -> str:
        """The photograph's own page."""
        return reverse("album:photo", args=[self.id])

    @property
    def is_ready(self) -> bool:
        """Whether all thumbnails are there."""
        return self.prepared_at is not None


class WebhookCall(models.Model):
    """One call that reached the webhook endpoint, and what it answered."""

    photo = models.ForeignKey(Photo, on_delete=models.CASCADE, related_name="webhook_calls")
    number = models.PositiveIntegerField(help_text="1 for the first call about this photograph")
    status = models.PositiveSmallIntegerField("HTTP status answered")
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["photo", "number"]
        constraints = [models.UniqueConstraint(fields=["photo", "number"], name="one_row_per_call")]

    def __str__(self) -> str:
        return f"call {self.number}: {self.status}"
