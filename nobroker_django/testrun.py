"""Whether this process runs tests, and where the queues of a test run are: never in the project's own directory.

Invariant: what is asked here is what Django's ``setup_test_environment`` has done, which every test runner calls, and
no setting that a project may have outside of tests too. ``conf`` asks each time: settings may be read before.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


def number() -> int | None:
    """Of the process among those of ``manage.py test --parallel``, 0 without; None: this is no test run."""
    utils, runner = sys.modules.get("django.test.utils"), sys.modules.get("django.test.runner")
    # Not ``mail.outbox``: the backend for mails in memory makes that one as well.
    if not hasattr(getattr(utils, "_TestState", None), "saved_data"):
        return None
    return getattr(runner, "_worker_id", 0)


def directory(number: int) -> Path:
    """That of this process in this test run, removed at its end."""
    return _directory() / f"parallel-{number}" if number else _directory()


@cache
def _directory() -> Path:
    from multiprocessing.util import Finalize

    path = tempfile.mkdtemp(prefix=f"nobroker-tests-{os.environ.get('PYTEST_XDIST_WORKER', '')}")
    # Not ``atexit``, which the processes of ``multiprocessing`` do not know. A forked child leaves it alone.
    Finalize(None, shutil.rmtree, args=(path,), kwargs={"ignore_errors": True}, exitpriority=0)
    return Path(path)


def directory_in_module(settings: Any) -> object:
    """``NOBROKER["DIR"]`` of the settings module, whatever ``override_settings`` and its like have laid over it.

    Args:
        settings: ``django.conf.settings``.
    """
    found = settings._wrapped
    while not isinstance(below := vars(found).get("default_settings"), ModuleType | None):
        found = below
    value = vars(found).get("NOBROKER")
    return value.get("DIR") if isinstance(value, Mapping) else None
