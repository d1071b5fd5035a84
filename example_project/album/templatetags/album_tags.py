"""Template helpers of the album."""

from django import template
from django.conf import settings

from album.models import Photo
from album.thumbnails import file_name

register = template.Library()


@register.simple_tag
def thumbnail_url(photo: Photo, rendition: str) -> str:
    """Address of one thumbnail of a ready photograph."""
    return f"{settings.MEDIA_URL}thumbnails/{file_name(photo.pk, rendition)}"
