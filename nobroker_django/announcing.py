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
_senders: tuple[dict[str, type], str] | None = None


def senders() -> dict[str, type]:
    """The backends of ours that ``TASKS`` has: alias and class, "default" first."""
    return _known()[0]


def alias() -> str:
    """Under which tasks of our own decorator are announced: a backend that stores jobs; empty: there is none."""
    return _known()[1]


def _known() -> tuple[dict[str, type], str]:
    global _senders
    if _senders is None:
        given = getattr(settings, "TASKS", None) if compat.AVAILABLE else None
        if not given:
            _senders = {}, ""
        else:
            from .backend import NobrokerBackend, TaskBackend

            found = {alias: _class_of(given[alias]) for alias in sorted(given, key=lambda alias: alias != "default")}
            ours = {alias: cls for alias, cls in found.items() if issubclass(cls, TaskBackend)}
            _senders = ours, next((alias for alias, cls in ours.items() if issubclass(cls, NobrokerBackend)), "")
    return _senders


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


def _class_of(params: Any) -> type:
    try:
        found = import_string(params["BACKEND"])
    except Exception:
        return object  # Django says so when that backend is used, and its check before
    return found if isinstance(found, type) else object


def _forget(*, setting: str, **kwargs: Any) -> None:
    global _senders
    if setting == "TASKS":
        _senders = None


setting_changed.connect(_forget, dispatch_uid="nobroker_django.announcing")
