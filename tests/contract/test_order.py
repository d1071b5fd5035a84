"""ORD-01: priority, then the time at which a job became available, then insertion."""

import random

import pytest

from .helpers import live_log


def drain(queue, clock=None) -> list:
    """Payloads in the order in which they are delivered now."""
    order = []
    while (job := queue.lease_one()) is not None:
        order.append(job.payload)
        queue.ack(job)
    return order


@pytest.mark.contract("ORD-01")
def test_higher_priorities_come_first_and_equal_ones_in_the_order_of_insertion(queue):
    for payload, priority in (("a0", 0), ("b5", 5), ("c0", 0), ("d-5", -5), ("e5", 5), ("f0", 0)):
        queue.enqueue(payload, priority=priority)
    assert drain(queue) == ["b5", "e5", "a0", "c0", "f0", "d-5"]


@pytest.mark.contract("ORD-01")
def test_a_job_is_leased_at_its_time_and_not_before(queue, clock):
    queue.enqueue("later", delay=10)
    assert queue.lease_one() is None
    clock.advance(9.999)
    assert queue.lease_one() is None
    clock.advance(0.002)
    assert queue.lease_one().payload == "later"


@pytest.mark.contract("ORD-01")
def test_within_a_priority_the_one_that_was_available_first_comes_first(queue, clock):
    queue.enqueue("in 30", delay=30)
    queue.enqueue("in 10", delay=10)
    clock.advance(20)
    queue.enqueue("at 20")
    queue.enqueue("urgent, in 20", delay=20, priority=1)
    clock.advance(30)
    queue.enqueue("at 50")
    assert drain(queue) == ["urgent, in 20", "in 10", "at 20", "in 30", "at 50"]


@pytest.mark.contract("ORD-01")
def test_one_lease_of_many_returns_them_in_order(queue):
    queue.enqueue_many(list("abcde"), priority=[0, 1, 0, 1, 0])
    assert [job.payload for job in queue.lease(10)] == ["b", "d", "a", "c", "e"]


@pytest.mark.contract("ORD-01")
@pytest.mark.parametrize("how", ["restart", "compaction", "both", "projection removed"])
def test_the_order_survives_restart_and_compaction(open_queue, queue_dir, clock, how):
    queue = open_queue()
    rng = random.Random(7)
    expected = []
    for number in range(60):
        priority, delay = rng.choice([-1, 0, 3]), rng.choice([0, 0, 5, 40])
        queue.enqueue(number, priority=priority, delay=delay)
        expected.append((-priority, clock.now + delay, number))
        clock.advance(rng.choice([0, 0, 1]))
    if how in ("compaction", "both"):
        queue.compact()
        queue.enqueue(60)
        expected.append((0, clock.now, 60))
    queue.stats()
    if how != "compaction":
        queue.close()
        if how == "projection removed":
            for entry in (queue_dir / "default.run").iterdir():
                entry.unlink()
        queue = open_queue()
    clock.advance(1000)
    queue.enqueue(61)
    expected.append((0, clock.now, 61))
    assert drain(queue) == [number for _, _, number in sorted(expected)]


@pytest.mark.contract("ORD-01")
def test_jobs_copied_by_several_compactions_stay_ahead_of_newer_ones(open_queue, queue_dir):
    queue = open_queue()
    for number in range(4):
        queue.enqueue(number)
        queue.compact()
    assert live_log(queue_dir).name == "default.000005.log"
    assert drain(queue) == [0, 1, 2, 3]


@pytest.mark.contract("ORD-01")
def test_a_clock_that_is_set_back_does_not_let_new_jobs_overtake(queue, clock):
    queue.enqueue("first")
    clock.advance(-3600)
    queue.enqueue("second")
    queue.enqueue("third")
    assert drain(queue) == ["first", "second", "third"]


@pytest.mark.contract("ORD-01")
def test_priorities_are_strict_and_the_stats_show_the_age_of_the_oldest(queue, clock):
    queue.enqueue("old", priority=-1)
    assert queue.stats().oldest_ready_age == 0
    clock.advance(500)
    queue.enqueue_many(["new"] * 3)
    assert queue.stats().oldest_ready_age == 500
    assert [job.payload for job in queue.lease(4)] == ["new", "new", "new", "old"]
    assert queue.stats().oldest_ready_age is None


@pytest.mark.contract("ORD-01")
def test_the_age_is_that_of_the_oldest_eligible_job_and_a_delayed_one_does_not_count(queue, clock):
    queue.enqueue("later", delay=100)
    clock.advance(50)
    assert queue.stats().oldest_ready_age is None
    queue.enqueue("now")
    clock.advance(60)
    assert queue.stats().oldest_ready_age == 60


@pytest.mark.contract("ORD-01")
def test_a_job_keeps_its_place_in_the_order_of_insertion_over_compactions(queue):
    jobs = queue.enqueue_many(range(5))
    for _ in range(2):
        queue.compact()
        jobs.append(queue.enqueue("newer"))
        assert [job.seq for job in queue.list_jobs()] == [job.seq for job in jobs]
    assert [job.seq for job in jobs] == sorted({job.seq for job in jobs})
