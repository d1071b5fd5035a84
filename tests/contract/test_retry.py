"""RETRY-01 to RETRY-04: pauses between attempts, dead letters, failure texts."""

import math

import pytest

from nobroker_django import BackoffPolicy, JobNotFoundError, JobState, NotLeasedError
from nobroker_django.engine import queue as queue_module

from .helpers import FailingFiles


def fail(queue, error="no", **options):
    return queue.nack(queue.lease_one(), error=error, **options)


# --- RETRY-01


@pytest.mark.contract("RETRY-01")
def test_the_pause_grows_to_its_cap(open_queue, clock):
    queue = open_queue(backoff=BackoffPolicy(base=2, factor=3, max_delay=50, jitter=0))
    queue.enqueue("x", max_attempts=100)
    pauses = []
    for _ in range(6):
        job = fail(queue)
        pauses.append(job.available_at - clock.now)
        clock.now = job.available_at
    assert pauses == [2, 6, 18, 50, 50, 50]


@pytest.mark.contract("RETRY-01")
def test_the_random_share_lies_between_half_and_the_whole(open_queue, clock):
    queue = open_queue(backoff=BackoffPolicy(base=100, factor=1, jitter=0.5))
    queue.enqueue("x", max_attempts=1000)
    pauses = []
    for _ in range(40):
        job = fail(queue)
        pauses.append(job.available_at - clock.now)
        clock.now = job.available_at
    assert all(50 <= pause <= 100 for pause in pauses)
    assert max(pauses) - min(pauses) > 10


@pytest.mark.contract("RETRY-01")
@pytest.mark.parametrize("attempt", [16, 46, 1024, 1025, 4999])
def test_after_any_number_of_attempts_the_pause_is_the_cap_and_the_job_is_there(open_queue, clock, attempt):
    """C14."""
    queue = open_queue(backoff=BackoffPolicy(base=5, factor=5, max_delay=3600), max_attempts=5000)
    job = queue.enqueue("x")
    queue.lease_one()
    _set_attempts(queue, job.id, attempt - 1)
    clock.advance(31)
    queue.lease_one()
    failed = queue.get(job.id)
    assert (failed.state, failed.attempts) == (JobState.READY, attempt - 1)
    assert 1800 <= failed.available_at - clock.now <= 3600


def _set_attempts(queue, job_id, attempts):
    """Rewrite the number in the projection, as if the job had failed so often."""

    def act(decision):
        row = decision.unit.find(job_id)
        row.attempts = attempts
        decision.unit.change(row, row.state)

    queue._decide(act)


@pytest.mark.contract("RETRY-01")
def test_a_policy_that_reaches_beyond_the_year_9999_still_lets_a_job_fail(open_queue, clock):
    queue = open_queue(backoff=BackoffPolicy(base=1e12, max_delay=1e13, jitter=0), visibility_timeout=10)
    queue.enqueue("nacked")
    assert fail(queue).available_at < 253_402_300_800
    queue.enqueue("expired")
    job = queue.lease_one()
    clock.advance(10)
    assert queue.lease_one() is None
    assert queue.get(job.id).available_at < 253_402_300_800


@pytest.mark.contract("RETRY-01")
def test_the_callers_own_delay_replaces_the_pause(open_queue, clock):
    queue = open_queue()
    queue.enqueue("x")
    assert fail(queue, delay=0.25).available_at == clock.now + 0.25
    clock.advance(0.25)
    assert fail(queue, delay=0).available_at == clock.now


# --- RETRY-02


@pytest.mark.contract("RETRY-02")
def test_a_job_out_of_attempts_is_kept_with_its_history_through_compactions_and_restarts(open_queue, clock):
    queue = open_queue(backoff=BackoffPolicy(base=1, jitter=0))
    enqueued = clock.now
    job = queue.enqueue({"a": 1}, max_attempts=3, priority=4, meta={"m": 1})
    times = []
    for number in (1, 2, 3):
        times.append(clock.now)
        try:
            raise ValueError(f"failure {number}")
        except ValueError as error:
            fail(queue, error=error)
        clock.advance(300)
    finished = times[-1]
    for _ in range(3):
        dead = queue.get(job.id)
        assert (dead.state, dead.attempts, dead.payload, dead.priority) == (JobState.DEAD, 3, {"a": 1}, 4)
        assert (dead.enqueued_at, dead.finished_at, dead.meta) == (enqueued, finished, {"m": 1})
        assert dead.last_error == "ValueError: failure 3"
        assert [(error.attempt, error.at) for error in dead.errors] == list(zip((1, 2, 3), times, strict=True))
        assert {error.error_class for error in dead.errors} == {"ValueError"}
        assert all("raise ValueError" in error.traceback for error in dead.errors)
        assert [letter.id for letter in queue.dlq()] == [job.id]
        queue.compact()
        queue.close()
        clock.advance(10**8)
        queue = open_queue()


@pytest.mark.contract("RETRY-02")
def test_the_last_twenty_failures_are_kept_and_the_attempts_counted_on(queue, clock):
    job = queue.enqueue("x", max_attempts=25)
    for number in range(25):
        fail(queue, error=f"e{number}", delay=0)
    for _ in range(2):
        dead = queue.get(job.id)
        assert dead.attempts == 25
        assert [error.message for error in dead.errors] == [f"e{number}" for number in range(5, 25)]
        queue.compact()


@pytest.mark.contract("RETRY-02")
def test_a_buried_job_is_a_dead_letter_whatever_attempts_are_left(queue):
    job = queue.enqueue("x")
    buried = queue.bury(queue.lease_one(), error="not a task")
    assert (buried.state, buried.attempts, buried.last_error) == (JobState.DEAD, 1, "not a task")
    assert [letter.id for letter in queue.dlq(limit=5)] == [job.id]


# --- RETRY-03


@pytest.mark.contract("RETRY-03")
def test_a_requeued_dead_letter_is_ready_with_a_fresh_budget_and_its_history(queue, clock):
    job = queue.enqueue("x", max_attempts=1)
    fail(queue, error="why")
    clock.advance(5)
    assert queue.requeue_dead(job.id) == 1
    again = queue.get(job.id)
    assert (again.state, again.attempts, again.available_at, again.finished_at) == (JobState.READY, 0, clock.now, None)
    assert [error.message for error in again.errors] == ["why"]
    assert queue.lease_one().attempts == 1


@pytest.mark.contract("RETRY-03")
def test_one_or_all_are_requeued_and_what_is_no_dead_letter_is_refused(queue):
    for number in range(4):
        queue.enqueue(number, max_attempts=1)
        fail(queue)
    letters = queue.dlq()
    assert queue.requeue_dead(letters[2].id) == 1
    assert [job.payload for job in queue.dlq()] == [0, 1, 3]
    with pytest.raises(NotLeasedError):
        queue.requeue_dead(letters[2].id)
    with pytest.raises(JobNotFoundError):
        queue.requeue_dead("nobody")
    assert queue.requeue_dead() == 3
    assert queue.requeue_dead() == 0
    assert sorted(job.payload for job in queue.lease(9)) == [0, 1, 2, 3]


@pytest.mark.contract("RETRY-03")
def test_several_are_requeued_by_their_ids_and_the_rest_stays(queue):
    for number in range(4):
        queue.enqueue(number, max_attempts=1)
        fail(queue)
    ids = [job.id for job in queue.dlq()]
    assert queue.requeue_dead([ids[0], ids[2], ids[0], "nobody"]) == 2
    assert [job.id for job in queue.dlq()] == [ids[1], ids[3]]
    assert queue.requeue_dead([]) == 0


@pytest.mark.contract("RETRY-03")
@pytest.mark.parametrize("number", range(4))
def test_interrupted_half_way_each_job_is_in_exactly_one_place(open_queue, monkeypatch, number):
    """C18: requeued in pieces of three, the write of one of which fails."""
    monkeypatch.setattr(queue_module, "_REQUEUE_ROWS", 3)
    queue = open_queue(fsync=False)
    ids = [job.id for job in queue.enqueue_many(range(10), max_attempts=1)]
    for job in queue.lease(10):
        queue.nack(job)
    files = FailingFiles(
        lambda call: call.name == "pwrite" and call.path.endswith(".log"), KeyboardInterrupt(), skip=number
    )
    files.armed = False
    interrupted = open_queue(files=files, fsync=False)
    files.armed = True
    with pytest.raises(KeyboardInterrupt):
        interrupted.requeue_dead()
    ready = [job.id for job in queue.list_jobs("ready")]
    dead = [job.id for job in queue.dlq()]
    assert ready + dead == ids
    assert len(ready) == 3 * number
    assert queue.requeue_dead() == len(dead)
    assert [(job.id, job.attempts) for job in queue.list_jobs("ready")] == [(job_id, 0) for job_id in ids]


# --- RETRY-04: the kinds of failures are tried in tests/unit/engine/test_failures.py


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit("no text for you")


@pytest.mark.contract("RETRY-04")
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            Unprintable(),
            f"{__name__}.Unprintable",
            f"<{__name__}.Unprintable: its text cannot be had, str() raised SystemExit>",
        ),
        (ValueError("\x00\x1b[2J\r\nERROR forged\u202e"), "ValueError", "\x00\x1b[2J\r\nERROR forged\u202e"),
        (ValueError("\ud800 and \udfff"), "ValueError", "\\ud800 and \\udfff"),
        (ValueError(), "ValueError", ""),
        ("plain text \udc80", None, "plain text \\udc80"),
        (None, None, None),
    ],
)
def test_failure_text_of_any_kind_is_recorded(open_queue, error, kind, message):
    queue = open_queue()
    job = queue.enqueue("x")
    failed = fail(queue, error=error)
    assert (failed.errors[-1].error_class, failed.errors[-1].message) == (kind, message)
    assert failed.last_error == (": ".join(part for part in (kind, message) if part) or None)
    queue.close()
    assert open_queue().get(job.id) == failed


@pytest.mark.contract("RETRY-04")
def test_huge_messages_and_tracebacks_are_cut_at_the_documented_sizes_with_a_marker(open_queue):
    queue = open_queue()
    job = queue.enqueue("x", max_attempts=2)

    def deep(depth):
        if depth:
            deep(depth - 1)
        raise ValueError("€" * 20_000_000)

    with pytest.raises(ValueError, match="€") as raised:
        deep(3)
    fail(queue, error=raised.value, delay=0)
    fail(queue, error="x" * 60_000_000)
    first, second = queue.get(job.id).errors
    assert 8000 < len(first.message.encode()) <= 8192
    assert first.message.endswith("[cut]")
    assert len(first.traceback.encode()) <= 65_536
    assert "[cut]" in first.traceback
    assert "in deep" in first.traceback  # where it was raised stays
    assert 8000 < len(second.message) <= 8192
    assert math.isfinite(first.at)
