"""Settings of the test suite.

Everything that a test run writes goes below one temporary directory, made once per process and removed at its exit.
A test that starts a real process hands it a directory of its own in NOBROKER_TESTS_DIR; queues and the SQLite file are
then below that one, and nobody but the test removes it.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any


def _remove(directory: Path, owner_pid: int) -> None:
    """Remove the run's directory, unless this is a forked child that inherited the exit handler."""
    if os.getpid() == owner_pid:
        shutil.rmtree(directory, ignore_errors=True)


if "NOBROKER_TESTS_DIR" in os.environ:
    RUN_DIR = Path(os.environ["NOBROKER_TESTS_DIR"])
else:
    RUN_DIR = Path(tempfile.mkdtemp(prefix="nobroker-tests-"))
    atexit.register(_remove, RUN_DIR, os.getpid())

SECRET_KEY = "only-for-the-tests"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.urls"
STATIC_URL = "/static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "nobroker_django",
    "nobroker_django.outbox",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES: list[dict[str, Any]] = [
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

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(RUN_DIR / "db.sqlite3"),
    },
    "other": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(RUN_DIR / "other.sqlite3"),
    },
}

NOBROKER: dict[str, Any] = {
    "DIR": str(RUN_DIR / "queues"),
    "QUEUES": {"default": {}},
}
