"""The process that compacts: forked now and then, beside the workers, so that no job shares an interpreter with it.

Invariant: it does no user code, and ends by itself: when it has looked at every queue, when it is told to, and when
the supervisor is gone. Killed at any moment, it leaves nothing that the next one does not remove.
"""

from __future__ import annotations

import os
from typing import TextIO

from nobroker_django import conf
from nobroker_django.engine.errors import NobrokerError
from nobroker_django.engine.generations import Layout
from nobroker_django.engine.upkeep import compact_if_it_pays, may_pay
from nobroker_django.queues import open_queue

from .console import Console
from .options import EXIT_REFUSED, EXIT_STOPPED, WorkerOptions
from .shutdown import STOP_SIGNALS, SignalPipe, wait_readable


def is_due(options: WorkerOptions) -> bool:
    """Whether a queue has a log that is large enough; opens none."""
    directory = conf.get_settings().dir
    for name in options.queues:
        policy = conf.queue_settings(name).compact
        if policy is not None and may_pay(Layout.of(directory, name), policy):
            return True
    return False


class UpkeepChild:
    """Runs in the forked process. ``orders`` is the reading end of the supervisor's pipe to it."""

    def __init__(self, options: WorkerOptions, orders: int, stream: TextIO | None) -> None:
        self._options = options
        self._orders = orders
        self._console = Console(stream, prefix=f"upkeep (pid {os.getpid()})", verbosity=options.verbosity)

    def run(self) -> int:
        """Compact every queue where that pays; returns the exit code."""
        self._signals = SignalPipe(STOP_SIGNALS)
        code = EXIT_STOPPED
        for name in self._options.queues:
            settings = conf.queue_settings(name)
            if settings.compact is None or self._is_stopped():
                continue
            self._console.line(f"{name}: looks whether a compaction pays", verbosity=2)
            try:
                with open_queue(name, settings) as queue:
                    result = compact_if_it_pays(queue, settings.compact, give_up=self._is_stopped)
            except (NobrokerError, OSError) as error:
                if not self._is_stopped():
                    self._console.warning(f"{name}: could not be compacted: {error}")
                    code = EXIT_REFUSED
            else:
                if result is not None:
                    self._console.line(f"{name}: {result.describe()}")
        return code

    def _is_stopped(self) -> bool:
        return bool(wait_readable((self._orders, self._signals.fd), 0.0))
