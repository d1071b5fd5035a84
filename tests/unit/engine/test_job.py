"""Jobs as callers see them, ids in time order, counts."""

import json

import pytest

from nobroker_django import Job, JobState, QueueStats
from nobroker_django.engine.job import new_job_id
from tests.contract.helpers import in_child


def test_ids_are_32_hex_digits_unique_and_in_time_order():
    ids = [new_job_id() for _ in range(5000)]
    assert len(set(ids)) == 5000
    assert all(len(job_id) == 32 and set(job_id) <= set("0123456789abcdef") for job_id in ids)
    assert {job_id[12] for job_id in ids} == {"7"}
    assert {job_id[16] for job_id in ids} <= set("89ab")
    assert [job_id[:15] for job_id in ids] == sorted(job_id[:15] for job_id in ids)


@pytest.mark.contract("PROC-02")
def test_a_child_makes_other_ids(tmp_path):
    target = tmp_path / "child"
    assert in_child(lambda: target.write_text(new_job_id()[16:])) == 0
    assert target.read_text() != new_job_id()[16:]


def test_a_job_is_json(queue):
    queue.enqueue({"a": 1}, meta={"m": 1})
    job = queue.nack(queue.lease_one(), error=ValueError("x"))
    data = json.loads(json.dumps(job.to_dict()))
    assert (data["state"], data["payload"], data["errors"][0]["message"]) == ("ready", {"a": 1}, "x")
    assert json.loads(json.dumps(queue.stats().to_dict()))["enqueued_total"] == 1


def test_a_job_is_eligible_when_it_is_ready_and_its_time_has_come():
    job = Job("a", None, available_at=10.0)
    assert job.is_eligible(10.0)
    assert not job.is_eligible(9.9)
    job.state = JobState.LEASED
    assert not job.is_eligible(11.0)


def test_states_are_text():
    assert JobState("dead") is JobState.DEAD
    assert JobState.DONE.value == "done"
    assert {"done": 1}[JobState.DONE] == 1


def test_the_total_is_the_sum_and_the_enqueued_total_never_decreases(queue, clock):
    queue.enqueue_many(range(6), delay=[0, 0, 0, 0, 0, 50])
    first, second, third = queue.lease(3)
    queue.ack(first)
    queue.bury(second)
    stats = queue.stats()
    assert stats == QueueStats(
        ready=2, delayed=1, leased=1, done=1, dead=1, total=6, enqueued_total=6, oldest_ready_age=0.0
    )
    queue.compact()
    assert (queue.stats().total, queue.stats().enqueued_total) == (5, 6)
    queue.purge()
    assert (queue.stats().total, queue.stats().enqueued_total, len(queue), bool(queue)) == (0, 6, 0, True)
    del third
