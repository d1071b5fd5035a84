"""Template helpers of the album."""

from django import template
from django.conf import settings

from album.models import Photo
from album.thumbnails import file_name
from nobroker_django import Job

register = template.Library()


@register.simple_tag
def thumbnail_url(photo: Photo, rendition: str) -> str:
    """Address of one thumbnail of a ready photograph."""
    return f"{settings.MEDIA_URL}thumbnails/{file_name(photo.pk, rendition)}"


@register.filter
def last_error(job: Job) -> str:
    """Why the last attempt of a job failed, such as `OSError: image file is truncated`."""
    if not job.errors:
        return job.last_error or "no error was recorded"
    error = job.errors[-1]
    return ": ".join(part for part in (error.error_class, error.message) if part)
