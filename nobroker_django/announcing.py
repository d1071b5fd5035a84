"""Django's three task signals, for the jobs of this package: enqueued, started, finished.

They are sent where ``TASKS`` has a backend of ours, with its class as the sender. Invariant: a receiver harms nothing,
whatever it raises; it is logged. ``task_enqueued`` follows the write of a new job, ``task_started`` precedes each
attempt, ``task_finished`` follows the last one, in the process that ran it and before its outcome is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from . import compat

if TYPE_CHECKING:
    from .results import JobResult

logger = logging.getLogger("nobroker_django")
_LOGGING = 1
"""How many receivers of each signal Django itself has."""
_senders: dict[str, type] | None = None


def senders() -> dict[str, type]:
    """The backends of ours that ``TASKS`` has: alias and class, in the order of the setting, "default" first."""
    global _senders
    if _senders is None:
        given = getattr(settings, "TASKS", None) if compat.AVAILABLE else None
        found = {alias: cls for alias, params in (given or {}).items() if (cls := _class_of(params)) is not None}
        _senders = dict(sorted(found.items(), key=lambda item: item[0] != "default"))
    return _senders


def alias() -> str:
    """The alias under which tasks of our own decorator are announced; empty: they are not."""
    return next(iter(senders()), "")


def enqueued(result: JobResult[Any]) -> None:
    """A job has been written; nothing is said of one that was there already."""
    if result.created and (sender := senders().get(result.backend)) is not None:
        _send(compat.task_enqueued, sender, result)


def started(result: JobResult[Any]) -> None:
    """An attempt begins now."""
    if (sender := senders().get(result.backend)) is not None:
        _send(compat.task_started, sender, result)


def finished(result: JobResult[Any]) -> None:
    """The last attempt has ended."""
    if (sender := senders().get(result.backend)) is not None:
        _send(compat.task_finished, sender, result)


async def off_the_loop(announce: Callable[[], None]) -> None:
    """Announce from a coroutine: in a thread, unless nobody but Django's own receivers listens, which only log."""
    if not senders():
        return
    signals = (compat.task_started, compat.task_finished)
    if all(len(signal.receivers) <= _LOGGING for signal in signals):
        announce()
    else:
        await sync_to_async(announce)()


def _send(signal: Any, sender: type, result: JobResult[Any]) -> None:
    try:
        signal.send_robust(sender, task_result=result)  # Django logs what a receiver raises
    except KeyboardInterrupt:
        raise
    except BaseException:
        logger.exception("A receiver of a task signal failed for job %s", result.id, extra={"job_id": result.id})


def _class_of(params: Any) -> type | None:
    from .backend import NobrokerBackend

    try:
        found = import_string(params["BACKEND"])
    except Exception:
        return None  # Django says so when that backend is used, and check_tasks before
    return found if isinstance(found, type) and issubclass(found, NobrokerBackend) else None


def _forget(*, setting: str, **kwargs: Any) -> None:
    global _senders
    if setting == "TASKS":
        _senders = None


setting_changed.connect(_forget, dispatch_uid="nobroker_django.announcing")
