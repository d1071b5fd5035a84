"""Verbs that write more than once: when a later write is refused, nobody is told that nothing was stored."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import Job, NobrokerError
from nobroker_django.engine import leasing
from nobroker_django.engine import queue as queue_module
from nobroker_django.engine.endings import Ended
from nobroker_django.engine.worker_queue import WorkerQueue
from tests.support.faulty import Failing
from tests.support.scripts import open_queue

pytestmark = pytest.mark.contract("API-03", "RETRY-03")

JOBS = 5
HOLDER = "0123456789abcdef-1000"
Verb = Callable[[WorkerQueue, list[Job]], Any]


def requeue_all(queue: WorkerQueue, jobs: list[Job]) -> None:
    queue.requeue_dead()


def requeue_some(queue: WorkerQueue, jobs: list[Job]) -> None:
    queue.requeue_dead([job.id for job in jobs])


def discard(queue: WorkerQueue, jobs: list[Job]) -> None:
    queue.discard_dead([job.id for job in jobs])


def reclaim(queue: WorkerQueue, jobs: list[Job]) -> None:
    queue.reclaim_dead({HOLDER: "it was killed"})


def exchange(queue: WorkerQueue, jobs: list[Job]) -> None:
    """What has ended and begun is one write, the new leases are another."""
    ended = [Ended.succeeded(jobs[0], None), Ended.failed(jobs[1], "no"), Ended.given_back(jobs[2])]
    answer = queue.exchange(ended, jobs[3:4], count=2, holder=HOLDER)
    answer.confirm()
    assert not [one.lost for one in answer.settled if one.lost]


def dead(queue: WorkerQueue) -> list[Job]:
    queue.enqueue_many(range(JOBS), max_attempts=1)
    jobs = queue.lease(JOBS)
    for job in jobs:
        queue.bury(job)
    return jobs


def held(queue: WorkerQueue) -> list[Job]:
    queue.enqueue_many(range(JOBS + 3))
    return queue.exchange(count=JOBS, holder=HOLDER).leased


def contents(queue: WorkerQueue) -> list[tuple[Any, ...]]:
    jobs = queue.list_jobs()
    return [(job.payload, job.state, job.attempts, job.lease_token, job.started_at) for job in jobs]


def refused(directory: Path, prepare: Callable[[WorkerQueue], list[Job]], verb: Verb, at: int, error: int) -> str:
    """Refuse the ``at``-th call of the verb; what it said of it: "" when it has no such call."""
    shutil.rmtree(directory, ignore_errors=True)
    files = Failing()
    with open_queue(directory, files, lock_timeout=2.0) as queue:
        assert isinstance(queue, WorkerQueue)
        jobs = prepare(queue)
        before, started = contents(queue), [job.started_at for job in jobs]
        files.arm(at, error)
        try:
            verb(queue, jobs)
            said = "done"
        except NobrokerError as failure:
            said = str(failure.stored)
            message = str(failure)
        files.disarm()
        if files.hit is None:
            return ""
        if said == "False":
            assert contents(queue) == before, f"{files.hit}: {message}"
            assert [job.started_at for job in jobs] == started, f"{files.hit}: {message}"
        elif said == "None" and "are dealt with" in message:
            assert contents(queue) != before, f"{files.hit}: {message}"
        return said


VERBS = [(dead, requeue_all), (dead, requeue_some), (dead, discard), (held, reclaim), (held, exchange)]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(("prepare", "verb"), VERBS, ids=[verb.__name__ for _, verb in VERBS])
def test_a_later_write_refused(
    fast_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[WorkerQueue], list[Job]],
    verb: Verb,
    error: int,
):
    """In pieces of two jobs: at every call of the verb."""
    monkeypatch.setattr(queue_module, "_REQUEUE_ROWS", 2)
    monkeypatch.setattr(leasing, "_RECLAIM_ROWS", 2)
    said = set[str]()
    at = 0
    while answer := refused(fast_path / "queue", prepare, verb, at, error):
        said.add(answer)
        at += 1
    assert at >= 2
    assert said >= ({"False", "None"} if verb is not exchange else {"False", "done"})
