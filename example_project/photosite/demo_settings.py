"""Settings of `manage.py demo`: the same site in a directory of its own, with short times.

`manage.py demo` starts every process of the demo with this module and with `PHOTO_ALBUM_DATA` naming a fresh
directory. Nothing of the site's own `var/` is read or written.
"""

import os
from pathlib import Path

from photosite.settings import *  # noqa: F403
from photosite.settings import SQLITE_OPTIONS

DATA_DIR = Path(os.environ["PHOTO_ALBUM_DATA"])
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATA_DIR / "db.sqlite3", "OPTIONS": SQLITE_OPTIONS}
}
MEDIA_ROOT = DATA_DIR / "media"
EMAIL_FILE_PATH = DATA_DIR / "mail"
ALBUM_RUNNING_DIR = DATA_DIR / "running"

# Three seconds, so that the work of a killed process comes back while somebody is watching.
NOBROKER = {"DIR": DATA_DIR / "queue", "VISIBILITY_TIMEOUT": 3.0}
