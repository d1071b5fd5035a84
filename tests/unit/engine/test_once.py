"""Writes that may come again: their jobs are there once, until the write is refused."""

import pytest

from nobroker_django import JobConflictError, JobNotFoundError
from nobroker_django.engine.errors import TooLateError
from nobroker_django.engine.job import JobState
from nobroker_django.engine.once import Entry
from nobroker_django.engine.worker_queue import WorkerQueue
from tests.contract.helpers import FakeClock

RETENTION = 100.0
UNTIL = 5000.0


@pytest.fixture
def clock():
    return FakeClock(1000.0)


@pytest.fixture
def queue(queue_dir, clock):
    with WorkerQueue(queue_dir, retention=RETENTION, clock=clock) as queue:
        yield queue


def write(job_id="a", payload=1, until=UNTIL, **options):
    return Entry(job_id=job_id, payload=payload, known_until=until, **options)


def finish(queue):
    """Run whatever is there; the payloads of it."""
    jobs = queue.lease(10)
    queue.ack_many(jobs)
    return [job.payload for job in jobs]


@pytest.mark.contract("ENQ-04")
def test_a_write_that_comes_again_adds_nothing(queue):
    queue.enqueue("x", job_id="c")
    made = [write("a"), write("b", 2), write("c", "x")]
    assert [job.created for job in queue.enqueue_once(made)] == [True, True, False]
    assert [job.created for job in queue.enqueue_once(made)] == [True, True, False]
    assert [job.created for job in queue.enqueue_once([write("b", 2, until=UNTIL + 1)])] == [False]
    assert [job.payload for job in queue.list_jobs()] == ["x", 1, 2]
    assert queue.enqueue_once([]) == []


def test_options_are_those_of_the_entry(queue):
    (job,) = queue.enqueue_once([write(due=1500.0, priority=3, max_attempts=2, visibility_timeout=7.0)])
    assert (job.available_at, job.priority, job.max_attempts, job.visibility_timeout) == (1500.0, 3, 2, 7.0)
    (job,) = queue.enqueue_once([write("b", due=999.0)])
    assert job.available_at == 1000.0


@pytest.mark.contract("ENQ-04")
@pytest.mark.parametrize("compact", [True, False])
def test_a_finished_job_stays_known_to_its_write_beyond_its_retention(queue, clock, compact):
    queue.enqueue_once([write()])
    assert finish(queue) == [1]
    clock.now = UNTIL - 1
    if compact:
        queue.compact()
    queue.enqueue_once([write()])
    assert queue.stats().enqueued_total == 1
    assert queue.get("a").state is JobState.DONE
    assert finish(queue) == []


@pytest.mark.contract("ENQ-04")
def test_then_the_write_is_refused_and_the_job_forgotten(queue, clock):
    queue.enqueue_once([write()])
    finish(queue)
    clock.now = UNTIL
    with pytest.raises(TooLateError, match="for a person to decide") as refused:
        queue.enqueue_once([write("b", until=UNTIL + 1), write()])
    assert (refused.value.job_id, refused.value.stored) == ("a", None)
    assert queue.stats().enqueued_total == 1
    queue.compact()
    with pytest.raises(JobNotFoundError):
        queue.get("a")


def test_a_retention_that_ends_later_counts(queue, clock):
    queue.enqueue_once([write()])
    clock.now = UNTIL - 1
    finish(queue)
    clock.now = UNTIL + RETENTION - 2
    queue.compact()
    assert queue.enqueue("x", job_id="b").created is True
    assert queue.enqueue(1, job_id="a").created is False


@pytest.mark.contract("ENQ-04")
@pytest.mark.parametrize("compact", [True, False])
def test_for_other_work_the_id_is_free_after_the_retention_as_always(queue, clock, compact):
    queue.enqueue_once([write()])
    finish(queue)
    clock.now += RETENTION - 1
    assert queue.enqueue(1, job_id="a").created is False
    clock.now += 1
    if compact:
        queue.compact()
    assert queue.enqueue("other work", job_id="a").created is True
    assert finish(queue) == ["other work"]


def test_a_later_write_of_the_same_id_is_other_work(queue, clock):
    queue.enqueue_once([write()])
    finish(queue)
    clock.now += RETENTION
    assert queue.enqueue_once([write(until=UNTIL + RETENTION)])[0].created is True
    assert finish(queue) == [1]


@pytest.mark.contract("ENQ-04")
@pytest.mark.parametrize("again", ["plain", "later write"])
def test_work_that_took_the_id_over_remembers_the_write_before_it(queue, clock, again):
    queue.enqueue_once([write()])
    finish(queue)
    clock.now += RETENTION
    if again == "plain":
        queue.enqueue(1, job_id="a")
    else:
        queue.enqueue_once([write(until=UNTIL + RETENTION)])
    assert finish(queue) == [1]
    clock.now += RETENTION
    queue.compact()
    queue.enqueue_once([write()])
    assert queue.stats().enqueued_total == 2
    assert finish(queue) == []


@pytest.mark.contract("ENQ-04")
def test_another_payload_under_a_known_id_is_a_conflict(queue, clock):
    queue.enqueue_once([write()])
    with pytest.raises(JobConflictError):
        queue.enqueue_once([write("b"), write(payload=2)])
    finish(queue)
    clock.now = UNTIL - 1
    queue.compact()
    with pytest.raises(JobConflictError):
        queue.enqueue_once([write(payload=2)])
    assert queue.stats().enqueued_total == 1


def test_a_replay_knows_what_the_live_queue_knew(queue_dir, queue, clock):
    queue.enqueue_once([write(), write("b", 2)])
    finish(queue)
    queue.close()
    for path in queue_dir.glob("*.run/*.index*"):
        path.unlink()
    clock.now = UNTIL - 1
    again = WorkerQueue(queue_dir, retention=0, clock=clock)
    with again:
        again.enqueue_once([write(), write("b", 2)])
        assert again.stats().enqueued_total == 2
