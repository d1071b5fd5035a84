"""From the name of a queue to the one ``Queue`` object that this process has of it.

Invariant: one object per queue and process, not per thread, opened when first asked for; objects opened under settings
that have changed are closed and dropped. What happens to an object in a forked child is the engine's business.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from pathlib import Path
from typing import Any

from django.core.signals import setting_changed

from . import conf
from .engine.clock import Clock, system_clock
from .engine.errors import NobrokerError
from .engine.worker_queue import WorkerQueue

logger = logging.getLogger("nobroker_django")

_lock = threading.Lock()
_opened: dict[tuple[str, Path], WorkerQueue] = {}
"""By name and directory: a test run begins in a process that may have opened queues before."""


def get_queue(alias: str = conf.DEFAULT_QUEUE) -> WorkerQueue:
    """The queue of that name, opened with its settings.

    Raises:
        InvalidOptionError: ``NOBROKER["QUEUES"]`` has no such queue.
        ImproperlyConfigured: ``NOBROKER`` is wrong.
        NobrokerError: the queue cannot be opened.
    """
    options = conf.queue_settings(alias)
    key = alias, conf.get_settings().dir
    with _lock:
        queue = _opened.get(key)
        if queue is None:
            queue = _opened[key] = open_queue(alias, options)
        return queue


def open_queue(
    alias: str, options: conf.QueueSettings, *, lock_timeout: float = 10.0, clock: Clock = system_clock
) -> WorkerQueue:
    """A new ``Queue`` object below ``NOBROKER["DIR"]``, which the caller closes; it waits that long (s) for others."""
    return WorkerQueue(
        conf.get_settings().dir,
        alias,
        fsync=options.fsync,
        visibility_timeout=options.visibility_timeout,
        max_attempts=options.max_attempts,
        backoff=options.backoff,
        retention=options.retention,
        file_mode=options.file_mode,
        dir_mode=options.dir_mode,
        lock_timeout=lock_timeout,
        clock=clock,
    )


def close_queues() -> None:
    """Close what this process has open; the next ``get_queue`` opens anew."""
    with _lock:
        queues = list(_opened.values())
        _opened.clear()
    for queue in queues:
        queue.close()


def _settings_changed(*, setting: str, **kwargs: Any) -> None:
    if setting in conf.READ_FROM:
        close_queues()


def _unlock_in_child() -> None:
    # Another thread of the parent may have held the lock at the fork; it does not exist in the child.
    global _lock
    _lock = threading.Lock()


def _close_at_exit() -> None:
    """Leave in order, so that the next process need not build the projection anew; best effort."""
    try:
        close_queues()
    except NobrokerError as error:
        logger.warning("a queue was not left in order: %s", error)


atexit.register(_close_at_exit)
setting_changed.connect(_settings_changed, dispatch_uid="nobroker_django.queues")
os.register_at_fork(after_in_child=_unlock_in_child)
