"""Dead letters that several operators requeue at the same time, some of whom are killed."""

import os
import random
import signal
from pathlib import Path

import pytest

from nobroker_django import JobState
from tests.contract.helpers import live_log, read_log
from tests.support.procs import Child, Diary, run_all
from tests.support.storm import open_queue

LETTERS = 3000
PAGE = 40


def requeue_all(directory: Path) -> None:
    """Page by page, as ``nobroker_dlq --requeue --task`` does."""
    with open_queue(directory) as queue:
        while page := queue.dlq(limit=PAGE):
            queue.requeue_dead([job.id for job in page])


@pytest.mark.contract("RETRY-03")
@pytest.mark.parametrize("seed", range(3))
def test_operators_who_requeue_the_same_dead_letters_lose_and_double_none(queue_dir: Path, errors: Diary, seed: int):
    """C18: killed at any moment, and at the same time; what is requeued has all of its attempts again."""
    rng = random.Random(seed)
    with open_queue(queue_dir, fsync=False) as queue:
        ids = [job.id for job in queue.enqueue_many(range(LETTERS), max_attempts=1)]
        while jobs := queue.lease(500):
            for job in jobs:
                queue.nack(job)
        assert queue.stats().dead == LETTERS
        for left in (2500, 1500):
            operators = [Child(requeue_all, queue_dir, errors=errors) for _ in range(2)]
            while queue.stats().dead > left - rng.randrange(300):
                assert any(operator.running() for operator in operators)
            for operator in operators:
                os.kill(operator.pid, signal.SIGKILL)
                operator.wait()
            assert queue.stats().total == LETTERS
        run_all([Child(requeue_all, queue_dir, errors=errors) for _ in range(3)])
        found = queue.list_jobs()
        assert [job.id for job in found] == ids
        assert {(job.state, job.attempts) for job in found} == {(JobState.READY, 0)}
        requeued = [record for record in read_log(live_log(queue_dir)) if record.type == 7]
        assert len(requeued) == LETTERS
