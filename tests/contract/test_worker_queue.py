"""What the processes of a worker say to the queue, and what becomes of the jobs of a worker that has ended."""

import logging
import threading

import pytest

from nobroker_django import BackoffPolicy, JobState, NotLeasedError, Queue
from nobroker_django.engine.endings import Ended
from nobroker_django.engine.worker_queue import WorkerQueue

from .helpers import RecordingFiles


@pytest.fixture
def open_worker_queue(queue_dir, clock):
    opened = []

    def open_(**options):
        options = {"clock": clock, "backoff": BackoffPolicy(base=8.0, factor=2.0, jitter=0.0), **options}
        opened.append(WorkerQueue(queue_dir, **options))
        return opened[-1]

    yield open_
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(open_worker_queue):
    return open_worker_queue()


@pytest.fixture
def worker(queue):
    registered = queue._register_worker()
    yield registered
    registered.close()


def lease(queue, worker, count, begin=None):
    return queue.exchange(count=count, begin=count if begin is None else begin, holder=worker.holder).leased


# -- the exchange


def test_who_ran_a_job_is_kept_with_its_end_also_through_a_compaction(open_worker_queue, worker):
    queue = open_worker_queue(retention=100)
    queue.enqueue_many(["good", "bad", "silent"], job_ids=["good", "bad", "silent"])
    for attempt in (1, 2):
        good, bad, silent = lease(queue, worker, 3)
        ends = [Ended.failed(job, "no", delay=0, worker=f"host:{attempt}") for job in (good, bad)]
        queue.exchange([*ends, Ended.failed(silent, "no", delay=0)]).confirm()
    good, bad, silent = lease(queue, worker, 3)
    assert [error.worker for error in queue.get("good").errors] == ["host:1", "host:2"]
    assert queue.get("good").worker is None
    ends = [Ended.succeeded(good, worker="host:3"), Ended.failed(bad, "no", final=True, worker="host:3")]
    queue.exchange([*ends, Ended.succeeded(silent)]).confirm()
    for compact in (False, True, True):
        if compact:
            queue.compact()
        found = {job.id: ([error.worker for error in job.errors], job.worker) for job in queue.list_jobs()}
        assert found == {
            "good": (["host:1", "host:2"], "host:3"),
            "bad": (["host:1", "host:2", "host:3"], None),
            "silent": ([None, None], None),
        }


def test_one_exchange_tells_outcomes_and_beginnings_and_leases(queue, worker):
    queue.enqueue_many(range(8))
    first = queue.exchange(count=5, begin=1, holder=worker.holder)
    assert [job.payload for job in first.leased] == [0, 1, 2, 3, 4]
    assert [job.started_at is not None for job in first.leased] == [True] + [False] * 4
    assert first.more
    a, b, c, d, e = first.leased
    second = queue.exchange(
        [Ended.succeeded(a, {"x": 1}), Ended.failed(b, ValueError("no")), Ended.given_back(c)],
        [d],
        count=9,
        begin=9,
        holder=worker.holder,
    )
    assert [one.state for one in second.settled] == [JobState.DONE, JobState.READY, JobState.READY]
    assert second.settled[1].available_at == queue.now() + 8.0
    assert [job.payload for job in second.leased] == [2, 5, 6, 7]
    assert not second.more
    second.confirm()
    done, failed, again, running, waiting = (queue.get(job.id) for job in (a, b, c, d, e))
    assert (done.state, done.result) == (JobState.DONE, {"x": 1})
    assert (failed.state, failed.attempts, failed.last_error) == (JobState.READY, 1, "ValueError: no")
    assert (again.state, again.attempts) == (JobState.LEASED, 1)
    assert running.started_at == queue.now()
    assert (waiting.state, waiting.started_at) == (JobState.LEASED, None)


def test_when_the_last_delivery_began_stays_known_through_a_compaction(open_worker_queue, worker, clock):
    queue = open_worker_queue(retention=1000.0)
    queue.enqueue_many(range(5))
    began = clock()
    done, failed, dead, back, requeued = lease(queue, worker, 5)
    clock.advance(3)
    queue.exchange(
        [
            Ended.succeeded(done),
            Ended.failed(failed, "x"),
            Ended.failed(dead, "x", final=True),
            Ended.given_back(back),
            Ended.failed(requeued, "x", final=True),
        ]
    ).confirm()
    queue.requeue_dead(requeued.id)
    expected = [began, began, began, None, None]
    assert [queue.get(job.id).started_at for job in (done, failed, dead, back, requeued)] == expected
    queue.compact()
    assert [queue.get(job.id).started_at for job in (done, failed, dead, back, requeued)] == expected
    clock.advance(60)
    (fetched,) = (job for job in lease(queue, worker, 9, begin=0) if job.id == failed.id)
    assert (fetched.started_at, queue.get(failed.id).started_at) == (None, None)


def test_what_ended_finally_is_a_dead_letter_and_a_delay_goes_before_the_backoff(queue, worker):
    queue.enqueue_many(range(3))
    a, b, c = lease(queue, worker, 3)
    answer = queue.exchange(
        [Ended.failed(a, "x", final=True), Ended.failed(b, "x", delay=0), Ended.failed(c, "x", delay=60.0)]
    )
    assert [one.state for one in answer.settled] == [JobState.DEAD, JobState.READY, JobState.READY]
    assert [one.available_at - queue.now() for one in answer.settled[1:]] == [0.0, 60.0]


@pytest.mark.contract("LEASE-03")
def test_what_comes_too_late_is_told_one_by_one_and_changes_nothing(queue, worker, clock):
    queue.enqueue_many(range(4))
    a, b, c, d = lease(queue, worker, 4, begin=0)
    clock.advance(31)
    others = lease(queue, worker, 2, begin=0)  # everything is leased anew after the backoff
    assert others == []
    answer = queue.exchange([Ended.succeeded(a), Ended.failed(b, "x"), Ended.given_back(c)], [d])
    assert all(isinstance(one.lost, NotLeasedError) for one in answer.settled)
    assert answer.lost == [d]
    assert {job.state for job in queue.list_jobs()} == {JobState.READY}
    assert {len(job.errors) for job in queue.list_jobs()} == {1}


def test_an_exchange_waits_for_no_sync_and_confirming_syncs_once(open_worker_queue, worker):
    files = RecordingFiles()
    queue = open_worker_queue(files=files)
    queue.enqueue_many(range(20))
    jobs = queue.exchange(count=10, holder=worker.holder).leased
    files.record.clear()
    answers = [queue.exchange([Ended.succeeded(job)]) for job in jobs]
    assert files.record.on(".log", "datasync", "sync") == []
    for answer in answers[:-1]:
        answer.drop()
    answers[-1].confirm()
    assert len(files.record.on(".log", "datasync")) == 1


# -- workers that have ended


@pytest.mark.contract("LEASE-06")
def test_what_an_ended_worker_had_begun_is_ready_at_once_the_first_time_and_then_after_the_backoff(queue, clock):
    job_id = queue.enqueue("x", max_attempts=3).id
    for attempt, pause in ((1, 0.0), (2, 16.0)):
        worker = queue._register_worker()
        [job] = lease(queue, worker, 1)
        assert queue.reclaim_dead() == 0
        worker.close()
        assert queue.reclaim_dead() == 1
        job = queue.get(job_id)
        assert (job.state, job.attempts, job.available_at) == (JobState.READY, attempt, queue.now() + pause)
        clock.advance(pause)
    worker = queue._register_worker()
    lease(queue, worker, 1)
    worker.close()
    assert queue.reclaim_dead() == 1
    job = queue.get(job_id)
    assert (job.state, job.attempts) == (JobState.DEAD, 3)
    assert [error.error_class for error in job.errors] == ["WorkerDied"] * 3
    queue.requeue_dead(job_id)
    worker = queue._register_worker()
    lease(queue, worker, 1)
    worker.close()
    assert queue.reclaim_dead() == 1
    assert queue.get(job_id).available_at == queue.now()  # deaths are counted anew as well


@pytest.mark.contract("LEASE-04", "LEASE-06")
def test_what_an_ended_worker_had_only_fetched_keeps_its_attempts_and_its_place(queue, clock):
    queue.enqueue_many(range(50))
    worker = queue._register_worker()
    jobs = lease(queue, worker, 50, begin=1)
    queue.exchange([], [jobs[7]]).drop()
    clock.advance(1)
    worker.close()
    assert queue.reclaim_dead() == 50
    attempts = {job.payload: (job.attempts, len(job.errors)) for job in queue.list_jobs()}
    assert attempts == {number: (int(number in (0, 7)), int(number in (0, 7))) for number in range(50)}
    # Those that failed are eligible from now on, so they come last.
    assert [job.payload for job in queue.lease(50)] == [n for n in range(50) if n not in (0, 7)] + [0, 7]


@pytest.mark.contract("LEASE-06")
def test_any_lease_takes_back_what_an_ended_worker_held(open_worker_queue):
    queue, other = open_worker_queue(), open_worker_queue()
    worker = queue._register_worker()
    queue.enqueue("x")
    lease(queue, worker, 1)
    assert other.lease() == []
    worker.close()
    [job] = other.lease()
    assert job.attempts == 2


@pytest.mark.contract("LEASE-06")
def test_a_lease_without_a_worker_lasts_until_its_deadline(queue, clock):
    queue.enqueue("x")
    queue.lease()
    assert queue.reclaim_dead({"anybody": None}) == 0
    assert queue.lease() == []
    clock.advance(31)
    assert queue.reclaim_dead() == 0
    queue.lease()
    assert [error.text for error in queue.list_jobs()[0].errors if "lease expired" in (error.text or "")]


@pytest.mark.contract("LEASE-06")
def test_without_the_workers_file_nothing_is_taken_back_before_the_deadline(queue, queue_dir, clock):
    queue.enqueue("x")
    worker = queue._register_worker()
    lease(queue, worker, 1)
    (queue_dir / "default.run" / "alive").unlink()
    worker.close()
    queue._register_worker().close()  # in a new file
    assert queue.reclaim_dead() == 0
    clock.advance(31 + 8)
    assert queue.lease() == []  # expired just now: the backoff begins
    clock.advance(8)
    assert [job.attempts for job in queue.lease()] == [2]


def test_a_supervisors_word_counts_as_proof_and_may_leave_the_attempts_alone(queue, worker):
    queue.enqueue_many(range(3))
    lease(queue, worker, 3, begin=2)
    assert queue.reclaim_dead({worker.holder: "another job ran over its time"}, punish=False) == 3
    assert [(job.state, job.attempts, job.errors) for job in queue.list_jobs()] == [(JobState.READY, 0, [])] * 3


def test_who_has_ended_is_asked_of_the_kernel_alone_while_nothing_is_written(open_worker_queue):
    """Twenty idle workers look four times a second each."""
    files = RecordingFiles()
    queue = open_worker_queue(files=files)
    queue.enqueue("x")
    with_lease = queue._register_worker()
    lease(queue, with_lease, 1)
    queue.reclaim_dead()
    files.record.clear()
    assert queue.reclaim_dead() == 0
    calls = [call.name for call in files.record.calls]
    assert "flock" not in calls
    assert len(calls) <= 4
    with_lease.close()


@pytest.mark.contract("LEASE-06")
def test_the_holder_outlives_a_compaction_and_a_reopening(queue, open_worker_queue):
    queue.enqueue_many(["x", "y"])
    worker = queue._register_worker()
    lease(queue, worker, 2, begin=1)
    queue.compact()
    again = open_worker_queue()
    assert again.reclaim_dead() == 0
    worker.close()
    assert again.reclaim_dead() == 2
    assert [job.attempts for job in again.list_jobs()] == [1, 0]


# -- leases that last


@pytest.mark.contract("WORK-02")
def test_leases_of_living_workers_are_extended_when_a_third_of_them_is_over(queue, worker, clock):
    queue.enqueue("long", visibility_timeout=90.0)
    queue.enqueue("short")
    lease(queue, worker, 2)
    start = queue.now()
    other = queue.lease()  # nobody's
    assert other == []
    assert queue.keep_alive([worker.holder]) == start + 10.0
    clock.advance(11)
    assert queue.keep_alive([worker.holder, "unknown"]) == start + 21.0
    long, short = queue.list_jobs()
    assert (long.lease_deadline, long.extensions) == (start + 90.0, 0)
    assert (short.lease_deadline, short.extensions) == (start + 41.0, 1)
    clock.advance(19)
    queue.keep_alive([worker.holder])
    assert [job.extensions for job in queue.list_jobs()] == [1, 2]
    assert queue.keep_alive([]) is None


def test_what_is_old_and_not_synced_is_synced(open_worker_queue, worker, monkeypatch):
    files = RecordingFiles()
    queue = open_worker_queue(files=files)
    queue.enqueue("x")
    lease(queue, worker, 1)
    files.record.clear()
    queue.sync_older(0.0)
    assert files.record.on(".log", "datasync") == []  # it has just been noticed
    queue.sync_older(0.0)
    assert len(files.record.on(".log", "datasync")) == 1
    queue.sync_older(0.0)
    queue.sync_older(0.0)
    assert len(files.record.on(".log", "datasync")) == 1


@pytest.mark.contract("LEASE-05")
def test_what_was_taken_back_is_told_by_the_verb_that_did_it_and_by_no_other(queue_dir, clock, caplog):
    with Queue(queue_dir, clock=clock, max_attempts=2, backoff=BackoffPolicy(base=0.0)) as queue:
        told, inside, go = [], threading.Event(), threading.Event()
        log = queue.tell_taken_back

        def slowly(one):
            told.append(threading.current_thread())
            log(one)
            inside.set()
            assert go.wait(60)

        queue.tell_taken_back = slowly
        queue.enqueue(1, job_id="job")
        queue.lease(1)
        clock.advance(1000)
        leasing = threading.Thread(target=lambda: queue.lease(1))
        leasing.start()
        assert inside.wait(60)
        queue.enqueue(2)
        assert told == [leasing]
        go.set()
        leasing.join(60)
        clock.advance(1000)
        queue.lease(1)
    reason = "lease expired: the job was neither finished nor extended before its deadline"
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, f"job job failed (attempt 1 of 2): {reason}"),
        (logging.ERROR, f"job job failed (attempt 2 of 2) and is now a dead letter: {reason}"),
    ]


def test_of_very_many_that_were_taken_back_some_are_told_and_the_number_of_the_rest(queue_dir, clock, caplog):
    with Queue(queue_dir, clock=clock, max_attempts=1) as queue:
        queue.enqueue_many(range(250))
        queue.lease(250)
        clock.advance(1000)
        queue.lease(1)
    assert len(caplog.records) == 101
    assert caplog.records[-1].getMessage() == "default: 150 more jobs have failed like that"


@pytest.mark.parametrize("error", [ValueError("no handler"), RuntimeError()])
def test_a_log_handler_that_fails_costs_nobody_the_answer(queue_dir, clock, error):
    def fail(one):
        raise error

    with Queue(queue_dir, clock=clock, backoff=BackoffPolicy(base=0.0)) as queue:
        queue.tell_taken_back = fail
        queue.enqueue(1, job_id="job")
        queue.lease(1)
        clock.advance(1000)
        assert [job.id for job in queue.lease(1)] == ["job"]
