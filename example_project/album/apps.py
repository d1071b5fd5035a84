"""The album app."""

from contextlib import suppress
from pathlib import Path

from django.apps import AppConfig
from django.conf import settings


class AlbumConfig(AppConfig):
    """Photographs, their thumbnails, and what happened on the way."""

    name = "album"
    verbose_name = "Photo album"

    def ready(self) -> None:
        """Make the site's data directory, so that `migrate` works in a fresh checkout."""
        with suppress(OSError):  # a read-only checkout: the first command that needs the directory will say so
            Path(settings.DATA_DIR).mkdir(parents=True, exist_ok=True)
