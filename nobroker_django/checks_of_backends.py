"""``manage.py check`` for the backends of ours in ``TASKS``: what they say against ``NOBROKER``.

Django asks each backend itself, which answers with what only it can say: our application is missing, without which
none of our checks run. The rest is a check of ours. The ids are documented in ``docs/reference/checks.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error

from . import announcing, compat, conf, testrun

if TYPE_CHECKING:
    from .backend import TaskBackend


def check_application(backend: TaskBackend) -> Iterator[CheckMessage]:
    """Whether the application is there that runs the jobs of a backend."""
    if not apps.is_installed("nobroker_django"):
        yield Error(
            f"TASKS[{backend.alias!r}] is a backend of nobroker_django, which is not in INSTALLED_APPS.",
            hint="Add 'nobroker_django' to INSTALLED_APPS: its commands run the jobs, its checks read NOBROKER.",
            id="nobroker.E006",
        )


def check_backends(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """The backends of ours, each against ``NOBROKER``."""
    return [message for alias in announcing.senders() for message in _backend(compat.task_backends[alias])]


def check_immediate(settings: conf.Settings) -> Iterator[CheckMessage]:
    """``NOBROKER["IMMEDIATE"]`` where it does not belong."""
    if settings.immediate and _in_production():
        yield _in_memory("NOBROKER['IMMEDIATE'] is True")


def _backend(backend: TaskBackend) -> Iterator[CheckMessage]:
    where, given, known = f"TASKS[{backend.alias!r}]", django_settings.TASKS[backend.alias], backend.queues
    queues = given.get("QUEUES")
    if queues is not None and known and set(queues) != known:
        yield Error(
            f"{where} has QUEUES {sorted(map(str, queues))}, NOBROKER has {sorted(known)}.",
            hint="The queues are those of NOBROKER. Leave QUEUES out of TASKS.",
            id="nobroker.E007",
        )
    ignored = sorted(
        key for key, value in given.items() if key not in ("BACKEND", "QUEUES") and value not in ({}, None)
    )
    if ignored:
        yield checks.Warning(
            f"{where} has {', '.join(ignored)}, which has no effect.",
            hint="The options of this backend are those of NOBROKER, such as NOBROKER['ON_COMMIT'].",
            id="nobroker.W010",
        )
    if backend.memory is not None and _in_production():
        yield _in_memory(f"{where} is {type(backend).__name__}")


def _in_production() -> bool:
    return not django_settings.DEBUG and testrun.number() is None


def _in_memory(what: str) -> CheckMessage:
    return checks.Warning(
        f"{what} while DEBUG is off, outside of tests: jobs run in the process that enqueues them, or not at all, "
        "once, and are lost if it ends.",
        hint="It is for development and tests.",
        id="nobroker.W011",
    )
