"""One thread that makes durable what a worker process has told its queues.

Outcomes are written as they come and synced together: the first that waits is durable within ``PAUSE_SECONDS`` and the
time of a sync, and so is all that came meanwhile.
"""

from __future__ import annotations

import threading
import time

from nobroker_django.engine.errors import NobrokerError
from nobroker_django.engine.worker_queue import Exchange

from .console import Console

PAUSE_SECONDS = 0.005


class Confirming:
    """Takes the queues' answers; the last of a queue covers those before it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._changed = threading.Condition()
        self._answers: dict[str, Exchange] = {}
        self._busy = False

    def start(self) -> None:
        """Start the thread (after the fork)."""
        threading.Thread(target=self._run, name="nobroker-confirming", daemon=True).start()

    def add(self, queue: str, answer: Exchange) -> None:
        """Make durable what the queue has been told."""
        with self._changed:
            before = self._answers.get(queue)
            self._answers[queue] = answer
            self._changed.notify_all()
        if before is not None:
            before.drop()

    def wait(self, seconds: float) -> None:
        """Until everything is durable, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._answers and not self._busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._answers)
            time.sleep(PAUSE_SECONDS)
            with self._changed:
                answers, self._answers, self._busy = self._answers, {}, True
            for queue, answer in answers.items():
                try:
                    answer.confirm()
                except NobrokerError as error:
                    self._console.warning(f"{queue}: the last outcomes may not survive a loss of power: {error}")
            with self._changed:
                self._busy = False
                self._changed.notify_all()
