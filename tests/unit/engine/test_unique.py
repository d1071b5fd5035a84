"""``enqueue(unique=True)``: an id as the key of work that need not be there twice at a time."""

import shutil

import pytest

from nobroker_django import InvalidOptionError, JobConflictError, JobState, Queue
from nobroker_django.engine.errors import TooLateError
from nobroker_django.engine.once import Entry
from nobroker_django.engine.worker_queue import WorkerQueue
from tests.contract.helpers import FakeClock

RETENTION = 100.0


@pytest.fixture
def clock():
    return FakeClock(1000.0)


@pytest.fixture
def queue(queue_dir, clock):
    with WorkerQueue(queue_dir, retention=RETENTION, clock=clock) as queue:
        yield queue


def finish(queue):
    """Run whatever is there; the payloads of it."""
    jobs = queue.lease(10)
    queue.ack_many(jobs)
    return [job.payload for job in jobs]


def put(queue, payload, key="key", **options):
    job = queue.enqueue(payload, job_id=key, unique=True, **options)
    return job.created, job.payload, job.state


@pytest.mark.contract("ENQ-04")
def test_one_that_waits_or_runs_is_returned_whatever_its_payload_is(queue):
    assert put(queue, 1) == (True, 1, JobState.READY)
    assert put(queue, 2) == (False, 1, JobState.READY)
    (job,) = queue.lease()
    assert put(queue, 3) == (False, 1, JobState.LEASED)
    queue.nack(job, delay=50.0)
    assert put(queue, 4) == (False, 1, JobState.READY)
    assert queue.stats().enqueued_total == 1


@pytest.mark.contract("ENQ-04")
def test_one_that_is_done_makes_way_though_its_id_is_known_for_the_retention(queue):
    put(queue, 1)
    assert finish(queue) == [1]
    assert queue.enqueue(1, job_id="key").created is False
    with pytest.raises(JobConflictError):
        queue.enqueue(2, job_id="key")
    assert put(queue, 2) == (True, 2, JobState.READY)
    assert finish(queue) == [2]
    assert queue.get("key").payload == 2
    assert queue.stats().done == 1


@pytest.mark.contract("ENQ-04")
def test_a_dead_letter_keeps_the_key_until_it_is_requeued_or_purged(queue):
    put(queue, 1, max_attempts=1)
    queue.nack(queue.lease_one(), error="no")
    assert put(queue, 1) == (False, 1, JobState.DEAD)
    queue.requeue_dead("key")
    assert put(queue, 1) == (False, 1, JobState.READY)
    assert finish(queue) == [1]
    assert put(queue, 1)[0] is True


@pytest.mark.contract("ENQ-04", "ENQ-05")
def test_in_one_write_and_with_other_ids(queue):
    jobs = queue.enqueue_many([1, 2, 3], job_ids=["a", "b", "a"], unique=True)
    assert [(job.id, job.payload, job.created) for job in jobs] == [("a", 1, True), ("b", 2, True), ("a", 1, False)]
    assert len(finish(queue)) == 2
    assert [job.created for job in queue.enqueue_many([5, 6], job_ids=["a", "c"], unique=True)] == [True, True]


def test_enqueue_many_takes_one_answer_for_all_or_one_for_each(queue):
    jobs = queue.enqueue_many([1, 2, 3], job_ids=["a", "b", None], unique=[True, False, False])
    assert [job.created for job in jobs] == [True, True, True]
    assert finish(queue) == [1, 2, 3]
    jobs = queue.enqueue_many([1, 2], job_ids=["a", "b"], unique=[True, False])
    assert [job.created for job in jobs] == [True, False]
    with pytest.raises(InvalidOptionError, match="unique: is about job_ids"):
        queue.enqueue_many([1, 2], job_ids=["a", None], unique=[False, True])
    with pytest.raises(InvalidOptionError, match="unique: has 1 entries for 2 payloads"):
        queue.enqueue_many([1, 2], job_ids=["a", "b"], unique=[True])


def test_a_key_is_an_id(queue):
    with pytest.raises(InvalidOptionError, match="unique: is about a job_id"):
        queue.enqueue(1, unique=True)
    for ids in (None, ["a", None]):
        with pytest.raises(InvalidOptionError, match="unique: is about job_ids"):
            queue.enqueue_many([1, 2], job_ids=ids, unique=True)
    assert queue.stats().total == 0


@pytest.mark.contract("LOG-04", "COMP-03")
@pytest.mark.parametrize("compacted", [False, True])
def test_the_log_alone_tells_the_same(queue, queue_dir, clock, compacted):
    for number in range(3):
        put(queue, number)
        finish(queue)
    put(queue, 3)
    if compacted:
        queue.compact()
    before = [job.to_dict() for job in queue.list_jobs()]
    queue.close()
    shutil.rmtree(queue_dir / "default.run", ignore_errors=True)
    with Queue(queue_dir, retention=RETENTION, clock=clock) as again:
        assert [job.to_dict() for job in again.list_jobs()] == before
        assert put(again, 4) == (False, 3, JobState.READY)


# --- a write that may come again


def write(payload, until, key="key"):
    return Entry(job_id=key, payload=payload, known_until=until, unique=True)


def once(queue, payload, until):
    """Whether this write has made the job, now or when it came before, and its payload."""
    (job,) = queue.enqueue_once([write(payload, until)])
    return job.created, job.payload


@pytest.mark.contract("ENQ-04")
def test_a_write_that_comes_again_makes_no_second_job_of_one_that_is_done(queue, clock):
    assert once(queue, 1, 5000.0) == (True, 1)
    assert finish(queue) == [1]
    assert once(queue, 1, 5000.0) == (True, 1)
    assert once(queue, 2, 6000.0) == (True, 2)  # another call
    assert finish(queue) == [2]
    assert once(queue, 1, 5000.0) == (False, 2)
    assert once(queue, 2, 6000.0) == (True, 2)
    clock.now = 5000.0
    with pytest.raises(TooLateError):
        once(queue, 1, 5000.0)
    assert finish(queue) == []


@pytest.mark.contract("ENQ-04")
def test_what_takes_its_place_remembers_the_write(queue):
    assert once(queue, 1, 5000.0) == (True, 1)
    assert finish(queue) == [1]
    assert put(queue, 2) == (True, 2, JobState.READY)
    assert finish(queue) == [2]
    once(queue, 1, 5000.0)
    assert finish(queue) == []
    assert put(queue, 3) == (True, 3, JobState.READY)


@pytest.mark.contract("ENQ-04")
def test_a_write_that_found_the_key_taken_may_come_again_as_work_of_its_own(queue):
    put(queue, 1)
    assert once(queue, 2, 5000.0) == (False, 1)
    assert finish(queue) == [1]
    assert once(queue, 2, 5000.0) == (True, 2)
    assert finish(queue) == [2]
    assert once(queue, 2, 5000.0) == (True, 2)
    assert finish(queue) == []


def test_keys_and_ids_in_one_write(queue):
    entries = [write(1, 5000.0), write(2, 5001.0), Entry(job_id="id", payload=3, known_until=5000.0)]
    assert [(job.payload, job.created) for job in queue.enqueue_once(entries)] == [(1, True), (1, False), (3, True)]
    with pytest.raises(JobConflictError):
        queue.enqueue_once([write(4, 5002.0), Entry(job_id="id", payload=5, known_until=5002.0)])
