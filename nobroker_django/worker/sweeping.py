"""The process that writes to the queues what stayed in the outbox: forked now and then, beside the workers.

Invariant: the supervisor opens no connection to a database; this process does, and ends when it has swept every one.
Signals end it at once, whatever it waits for: killed at any moment, it has lost and doubled nothing.
"""

from __future__ import annotations

import os
import signal
from typing import TextIO

from django.apps import apps
from django.db import Error as DatabaseError
from django.db import connections

from nobroker_django.engine.wording import count_of
from nobroker_django.queues import close_queues

from .console import Console
from .options import EXIT_STOPPED, WorkerOptions
from .shutdown import STOP_SIGNALS


def is_wanted() -> bool:
    """Whether there may be an outbox: its app is installed, whatever the setting is by now."""
    return apps.is_installed("nobroker_django.outbox")


class SweepChild:
    """Runs in the forked process. ``first``: it is the first of this supervisor."""

    def __init__(self, options: WorkerOptions, stream: TextIO | None, *, first: bool) -> None:
        self._first = first
        self._console = Console(stream, prefix=f"outbox (pid {os.getpid()})", verbosity=options.verbosity)

    def run(self) -> int:
        """Sweep every database; returns the exit code."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        from nobroker_django.outbox import sweeping

        try:
            for database in connections:
                try:
                    asked = sweeping.has_outbox(database)
                except DatabaseError as error:
                    self._console.warning(f"database {database!r} could not be asked for rows of the outbox: {error}")
                else:
                    if asked:
                        self._sweep(database)
        finally:
            close_queues()
        return EXIT_STOPPED

    def _sweep(self, database: str) -> None:
        """One database, which may fail without keeping the others from being swept."""
        from nobroker_django.outbox import sweeping

        try:
            swept = sweeping.sweep(database, young=0.0 if self._first else sweeping.YOUNG_SECONDS)
            problem = sweeping.standing(database).problem() if self._first or swept.parked else None
        except DatabaseError as error:
            self._console.warning(f"the outbox of database {database!r} could not be swept: {error}")
            return
        if swept.rows:
            jobs = count_of(swept.jobs, "job")
            self._console.line(f"database {database!r}: {jobs} of committed transactions written")
        for queue, why in swept.failed.items():
            self._console.warning(f"{queue}: what is in the outbox of {database!r} could not be written: {why}")
        if problem is not None:
            self._console.warning(f"the outbox of database {database!r} has rows that need somebody: {problem}")
