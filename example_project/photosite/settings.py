"""Settings of the photo album: a small site as it stands on a developer's machine.

Everything the site writes (database, photographs, queue, mails) is below `DATA_DIR`, so that deleting one
directory starts over; `PHOTO_ALBUM_DATA` in the environment names another one. Not for the public internet:
`DEBUG` is on and the secret key is in the repository.
"""

import os
from pathlib import Path
from typing import Any

import django

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("PHOTO_ALBUM_DATA") or BASE_DIR / "var")

DEBUG = True
SECRET_KEY = "insecure-key-of-the-example-site"
ALLOWED_HOSTS: list[str] = []

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "nobroker_django",
    "album",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "photosite.urls"
WSGI_APPLICATION = "photosite.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# The web server and the worker processes write to the same SQLite file. IMMEDIATE makes a transaction wait for
# its turn at the start; a deferred one would fail with "database is locked" when it first writes.
SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATA_DIR / "db.sqlite3", "OPTIONS": SQLITE_OPTIONS}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# All that nobroker_django needs. Without this line the queue would be in BASE_DIR/".nobroker".
NOBROKER: dict[str, Any] = {"DIR": DATA_DIR / "queue"}

MEDIA_ROOT = DATA_DIR / "media"
MEDIA_URL = "media/"
STATIC_URL = "static/"

# Mails are written to files. Django 6.1 has a new setting for it and warns of the old ones.
ALBUM_MAIL_DIR = DATA_DIR / "mail"
MAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": MAIL_BACKEND, "OPTIONS": {"file_path": ALBUM_MAIL_DIR}}}
else:
    EMAIL_BACKEND = MAIL_BACKEND
    EMAIL_FILE_PATH = ALBUM_MAIL_DIR
DEFAULT_FROM_EMAIL = "Photo album <album@example.org>"
ALBUM_OWNER_EMAIL = "owner@example.org"

# One small file per photograph that is being worked on; see album/running.py.
ALBUM_RUNNING_DIR = DATA_DIR / "running"

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True
