"""Settings of the real processes that the acceptance tests start: those of the suite, with queues of the test.

``NOBROKER_TESTS_DIR`` is the test's directory, ``NOBROKER_TESTS_OPTIONS`` (JSON) what the test wants in ``NOBROKER``.
"""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, NOBROKER, RUN_DIR

NOBROKER = {  # noqa: F811
    "DIR": str(RUN_DIR / "queues"),
    "QUEUES": {"default": {}, "second": {}},
    "BACKOFF": {"BASE": 0},
    "IMPORTS": ["tests.acceptance.jobs", *os.environ.get("NOBROKER_TESTS_IMPORTS", "").split()],
    **json.loads(os.environ.get("NOBROKER_TESTS_OPTIONS", "{}")),
}
TASKS = {"default": {"BACKEND": "nobroker_django.backend.NobrokerBackend"}}  # read where Django has tasks
# Django's own log lines of tasks: the package django-tasks leaves them to what Python does without any configuration.
SHOWN = {"handlers": ["console", *(["slow"] if "NOBROKER_TESTS_SLOW_LOGGING" in os.environ else [])]}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"facts": {"format": "%(levelname)s %(job_id)s %(task)s %(queue)s %(attempt)s | %(message)s"}},
    "filters": {"job": {"()": "nobroker_django.logging.JobFilter"}},
    "handlers": {
        "nowhere": {"class": "logging.NullHandler"},
        "slow": {"class": "tests.acceptance.handlers.Slow", "level": "ERROR"},
        "console": {"class": "logging.StreamHandler", "filters": ["job"], "formatter": "facts"},
    },
    "loggers": {
        "django_tasks": {"handlers": ["nowhere"], "propagate": False},
        **({"nobroker_django.worker": SHOWN} if "NOBROKER_TESTS_SHOW_LOGGING" in os.environ else {}),
    },
}
if not NOBROKER.get("OUTBOX"):
    INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "nobroker_django.outbox"]
if "NOBROKER_TESTS_DATABASE" in os.environ:
    DATABASES["default"] = json.loads(os.environ["NOBROKER_TESTS_DATABASE"])  # noqa: F405
