"""For the tests of your project: queues of their own, and jobs that run when the test says so.

Invariant: ``run_jobs`` does what a worker does, with the same records in the same log, but in the thread of the test.
With pytest the fixture ``nobroker`` (see ``pytest_plugin``) has the same.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.test import TestCase, override_settings

from . import conf
from .discovery import discover
from .engine.errors import storing_nothing
from .engine.inspection import queue_exists
from .engine.job import Job, JobState
from .engine.wording import count_of
from .execution import Report, perform_here, record
from .queues import get_queue, open_queue

if TYPE_CHECKING:
    from django.test import SimpleTestCase as _TestCase

    from .engine.worker_queue import WorkerQueue
else:
    _TestCase = object

__all__ = ["NobrokerTestMixin", "committed", "own_queues", "run_jobs"]


def run_jobs(*queues: str, delayed: bool = False, limit: int = 1000) -> list[Report]:
    """Run what is in the queues, and what that enqueues, in this thread; a job that fails raises nothing here.

    Args:
        queues: their names; all of ``NOBROKER["QUEUES"]`` if none is given.
        delayed: also what waits for a later time: delayed jobs and retries, the earliest first, at once.
        limit: of jobs; more than so many look like a job that enqueues itself.

    Returns:
        How each delivery ended, in the order in which they ran.

    Raises:
        KeyboardInterrupt: somebody wants to stop the tests; the job that was running is given back.
        RuntimeError: there were more than ``limit``; those have run.
        InvalidOptionError: there is no such queue.
        NobrokerError: a queue could not be used.
    """
    discover()
    with storing_nothing():
        for name in queues:
            conf.queue_settings(name)
    reports: list[Report] = []
    while (found := _next(queues or tuple(conf.get_settings().queues), delayed=delayed)) is not None:
        if len(reports) == limit:
            get_queue(found[0]).release([found[1]])
            ran = count_of(limit, "job has run", "jobs have run")
            raise RuntimeError(f"{ran}, and there are more. Does a job enqueue itself? See limit=.")
        queue, job = found
        reports.append(_deliver(get_queue(queue), job))
    return reports


@contextmanager
def committed(*queues: str, delayed: bool = False, using: str = "default") -> Iterator[list[Report]]:
    """What is enqueued in the block is written at its end, as if its transaction committed, and run.

    For tests that run in a transaction which is rolled back: there nothing is ever written otherwise. Other
    ``on_commit`` callbacks of the block run as well.

    Args:
        queues, delayed: as ``run_jobs``.
        using: the alias of the database.

    Yields:
        A list that has the reports after the block.
    """
    reports: list[Report] = []
    with TestCase.captureOnCommitCallbacks(using=using, execute=True):
        yield reports
    reports += run_jobs(*queues, delayed=delayed)


@contextmanager
def own_queues(directory: Path | None = None) -> Iterator[Path]:
    """``NOBROKER`` with a directory that nobody else has, for the time of the block; queues are closed at its end.

    Args:
        directory: it is made if it is missing, and stays; None: a temporary one, which does not.
    """
    path = directory
    if path is None:
        path = Path(tempfile.mkdtemp(prefix=f"nobroker-test-{os.environ.get('PYTEST_XDIST_WORKER', '')}"))
    try:
        with override_settings(NOBROKER={**getattr(django_settings, "NOBROKER", {}), "DIR": path}):
            yield path  # what was opened is closed when the setting is put back
    finally:
        if directory is None:
            shutil.rmtree(path, ignore_errors=True)


class NobrokerTestMixin(_TestCase):
    """For ``SimpleTestCase`` and its subclasses: a directory of queues for each test, and one for each class.

    What ``setUpTestData`` enqueues outside of a transaction goes into that of the class, which the tests do not see.
    """

    @classmethod
    def setUpClass(cls) -> None:
        """A directory for what is enqueued before the tests."""
        cls.enterClassContext(own_queues())
        super().setUpClass()

    def setUp(self) -> None:
        """A directory for this test; a ``setUp`` that does not call this one leaves the test that of its class."""
        super().setUp()
        self.nobroker_dir = self.enterContext(own_queues())

    def run_jobs(self, *queues: str, delayed: bool = False, limit: int = 1000) -> list[Report]:
        """See ``testing.run_jobs``."""
        return run_jobs(*queues, delayed=delayed, limit=limit)

    def committed(self, *queues: str, delayed: bool = False, using: str = "default") -> Any:
        """See ``testing.committed``."""
        return committed(*queues, delayed=delayed, using=using)


def _deliver(queue: WorkerQueue, job: Job) -> Report:
    try:
        performed = perform_here(queue.name, job)
        if performed.interrupted:
            raise KeyboardInterrupt
    except KeyboardInterrupt:  # or it came while this thread waited for the one of a coroutine
        queue.release([job])
        raise
    return record(queue, performed)


def _next(queues: tuple[str, ...], *, delayed: bool) -> tuple[str, Job] | None:
    """A job, leased, and its queue."""
    there = [queue for queue in queues if queue_exists(conf.get_settings().dir, queue)]
    for queue in there:
        leased = get_queue(queue).exchange(count=1, begin=1).leased
        if leased:
            return queue, leased[0]
    waiting = [(job.available_at, queue) for queue in there for job in get_queue(queue).list_jobs(JobState.READY)]
    if not delayed or not waiting:
        return None
    when, queue = min(waiting)
    with closing(open_queue(queue, conf.queue_settings(queue), clock=lambda: when)) as later:
        leased = later.exchange(count=1, begin=1).leased
    return (queue, leased[0]) if leased else None
