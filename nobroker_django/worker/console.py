"""The worker's lines on standard output, and the same events for the project's logging.

Invariant: a line never fails and never breaks into two, whatever a task's error text holds and whatever became of
standard output. The project's ``LOGGING`` is not touched: records go to ``nobroker_django.worker``, with
``job_id``, ``task``, ``queue`` and ``attempt``, and are shown only if the project shows them.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TextIO

from nobroker_django.cli.text import escape, iso, shorten, write_line
from nobroker_django.engine.job import TakenBack
from nobroker_django.execution import Outcome, Report, report_of_taken_back

from .progress import ERASE, is_capable

logger = logging.getLogger("nobroker_django.worker")
# Without this, Python prints warnings of a project that has configured no logging to stderr, beside our own lines.
logger.addHandler(logging.NullHandler())

ERROR_LENGTH = 500


class Console:
    """Writes lines; one object a process, made after the fork."""

    def __init__(
        self, stream: TextIO | None, *, prefix: str, verbosity: int = 1, note: Callable[..., None] | None = None
    ) -> None:
        """Args: ``note`` gets level, text and facts of each record for the project's logging; None: that gets them."""
        self._stream = stream
        self._log = note if note is not None else log
        self._prefix = prefix
        self._verbosity = verbosity
        self._live = stream is not None and is_capable(stream)
        self._lock = threading.Lock()

    def line(self, text: str, *, verbosity: int = 1) -> None:
        """One line with the time (UTC) and the process, unless less was asked for."""
        if self._verbosity < verbosity:
            return
        with self._lock:
            write_line(self._stream, f"{ERASE if self._live else ''}{iso(time.time())} {self._prefix}: {escape(text)}")

    def warning(self, text: str) -> None:
        """A line that also goes to the project's logging."""
        self.line(text, verbosity=0)
        self._log(logging.WARNING, f"{self._prefix}: {escape(text)}")

    def taken_back(self, queue: str, one: TakenBack, seconds: float | None = None) -> None:
        """A delivery that has failed without a word of the process that had it, after so long, if that is known."""
        self.job(queue, report_of_taken_back(one, seconds))

    def job(self, queue: str, report: Report) -> None:
        """What became of a delivery."""
        text = describe(report)
        facts = {
            "job_id": report.job_id,
            "task": report.task,
            "queue": queue,
            "attempt": report.attempt,
        }
        level = logging.INFO if report.outcome is Outcome.SUCCEEDED else logging.WARNING
        if report.outcome in (Outcome.DEAD, Outcome.UNRECORDED):
            level = logging.ERROR
        self._log(level, escape(text), facts)
        # On a terminal the live line counts what went well.
        quiet = self._live and report.outcome is Outcome.SUCCEEDED
        self.line(f"{queue}: {text}", verbosity=2 if quiet else 1)


def log(level: int, text: str, facts: Mapping[str, object] | None = None) -> None:
    """A record for the project's logging, whose handlers and filters may fail."""
    try:
        logger.log(level, "%s", text, extra=facts)
    except Exception:
        if logging.raiseExceptions and sys.stderr is not None:  # as logging itself does
            try:
                traceback.print_exc()
            except (OSError, ValueError):
                pass


def describe(report: Report) -> str:
    """A delivery in one sentence."""
    job = f"job {report.job_id} {report.task}"
    attempt = f"attempt {report.attempt} of {report.max_attempts}"
    if report.seconds is not None:
        attempt += f", {report.seconds:.3f} s"
    error = shorten(report.error, ERROR_LENGTH)
    match report.outcome:
        case Outcome.SUCCEEDED:
            return f"{job} succeeded ({attempt})"
        case Outcome.FAILED:
            return f"{job} failed ({attempt}): {error}; next attempt in {report.retry_in or 0.0:.1f} s"
        case Outcome.DEAD:
            return f"{job} failed ({attempt}) and is now a dead letter: {error}"
        case Outcome.LOST:
            return f"{job} ended after its lease was lost, its outcome does not count ({attempt}): {error}"
        case Outcome.UNRECORDED:
            return f"{job} ended, but that could not be recorded; it will run again ({attempt}): {error}"
