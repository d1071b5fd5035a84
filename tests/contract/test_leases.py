"""LEASE-01 to LEASE-05, LEASE-07, LEASE-08: who may run a job, how long, and what ends it."""

import json
import threading

import pytest

from nobroker_django import AlreadyDoneError, BackoffPolicy, InvalidOptionError, JobState, NotLeasedError, Queue
from tests.support.bytes import log_end

from .helpers import LEASE, RECLAIM, RecordingFiles, live_log, read_log, run_python, start_python

AT_ONCE = BackoffPolicy(base=0)


# --- LEASE-01


@pytest.mark.contract("LEASE-01")
def test_a_leased_job_is_invisible_to_every_other_lease_until_its_deadline(open_queue, queue_dir, clock):
    queue = open_queue(visibility_timeout=10, backoff=AT_ONCE)
    other = open_queue(backoff=AT_ONCE)
    job = queue.enqueue("x")
    leased = queue.lease_one()
    assert (leased.id, leased.lease_deadline) == (job.id, clock.now + 10)
    code = (
        "import sys; from nobroker_django import Queue\n"
        "print(Queue(sys.argv[1], clock=lambda: float(sys.argv[2])).lease(5))"
    )
    for seconds in (0, 9, 9.999):
        clock.now = leased.lease_deadline - 10 + seconds
        assert queue.lease(5) == []
        assert other.lease(5) == []
    assert run_python(code, queue_dir, clock.now) == "[]\n"
    clock.now = leased.lease_deadline
    assert other.lease_one().id == job.id


@pytest.mark.contract("LEASE-01")
def test_the_lease_lasts_as_long_as_the_call_the_job_or_the_queue_says(open_queue, clock):
    queue = open_queue(visibility_timeout=10)
    queue.enqueue("queue's")
    queue.enqueue("job's", visibility_timeout=20)
    queue.enqueue("call's", visibility_timeout=20)
    first, second = queue.lease(2)
    third = queue.lease_one(visibility_timeout=30)
    assert [job.lease_deadline - clock.now for job in (first, second, third)] == [10, 20, 30]
    assert queue.extend(second, 5).lease_deadline == clock.now + 25
    with pytest.raises(InvalidOptionError):
        queue.lease(visibility_timeout=float("nan"))


@pytest.mark.contract("LEASE-01")
def test_an_extended_lease_keeps_the_job_until_the_new_deadline(open_queue, clock):
    queue = open_queue(visibility_timeout=10, backoff=AT_ONCE)
    queue.enqueue("x")
    job = queue.lease_one()
    clock.advance(9)
    assert queue.extend(job, 10).lease_deadline == clock.now + 11
    clock.advance(10.9)
    assert open_queue().lease_one() is None
    queue.ack(job)


# --- LEASE-02

WORKER = """
import json, sys
from nobroker_django import Queue
queue = Queue(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
mine = []
while jobs := queue.lease(3):
    mine += [[job.id, job.lease_token, job.attempts] for job in jobs]
    assert queue.ack_many(jobs) == []
print(json.dumps(mine))
queue.close()
"""


@pytest.mark.contract("LEASE-02", "PROC-01")
def test_no_two_processes_get_the_same_delivery(open_queue, queue_dir):
    queue = open_queue(retention=1000)
    ids = [job.id for job in queue.enqueue_many(range(300))]
    workers = [start_python(WORKER, queue_dir) for _ in range(4)]
    for worker in workers:
        assert worker.stdout.readline() == "open\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    taken = [delivery for worker in workers for delivery in json.loads(worker.communicate(timeout=60)[0])]
    assert [worker.returncode for worker in workers] == [0] * 4
    assert sorted(job_id for job_id, _, _ in taken) == sorted(ids)
    assert len({token for _, token, _ in taken}) == 300
    assert {attempts for _, _, attempts in taken} == {1}


@pytest.mark.contract("LEASE-02", "PROC-01")
def test_no_two_threads_get_the_same_delivery(open_queue):
    queues = [open_queue(fsync=False), open_queue(fsync=False)]
    queues[0].enqueue_many(range(200))
    taken: list = []

    def work(queue):
        while (job := queue.lease_one()) is not None:
            taken.append(job.payload)
            queue.ack(job)

    threads = [threading.Thread(target=work, args=(queues[number % 2],)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(200))


# --- LEASE-03


def deliveries(queue, clock, count):
    """Tokens of ``count`` deliveries of one job, each given back."""
    for _ in range(count):
        job = queue.lease_one()
        yield job.lease_token
        queue.release([job])


@pytest.mark.contract("LEASE-03")
def test_tokens_only_rise_over_deliveries_restarts_compactions_and_a_clock_set_back(open_queue, clock):
    queue = open_queue()
    queue.enqueue("x")
    tokens = list(deliveries(queue, clock, 3))
    queue.compact()
    tokens += deliveries(queue, clock, 3)
    queue.close()
    clock.advance(-100_000)
    queue = open_queue()
    tokens += deliveries(queue, clock, 3)
    queue.compact()
    queue.compact()
    tokens += deliveries(queue, clock, 2)
    queue.enqueue("y", priority=1)
    tokens += [job.lease_token for job in queue.lease(2)]
    assert tokens == sorted(set(tokens))
    assert {len(token) for token in tokens} == {28}
    assert all(set(token) <= set("0123456789abcdef") for token in tokens)


@pytest.mark.contract("LEASE-03")
def test_tokens_rise_over_a_power_cut_that_takes_unsynced_leases_away(open_queue, queue_dir, clock):
    queue = open_queue()
    queue.enqueue("x")
    durable = log_end(live_log(queue_dir))
    tokens = []
    for _ in range(4):
        tokens.append(queue.lease_one().lease_token)
        queue.close()
        log = live_log(queue_dir)
        log.write_bytes(log.read_bytes()[:durable])
        (queue_dir / "default.lock").unlink()  # a machine that comes back has no words that are right
        queue = open_queue()
        durable = log_end(log)
    assert tokens == sorted(set(tokens))


@pytest.mark.contract("LEASE-03")
@pytest.mark.parametrize("now_it_is", ["ready again", "leased again", "done"])
@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "bury"])
def test_an_old_token_changes_nothing(open_queue, queue_dir, clock, verb, now_it_is):
    queue = open_queue(visibility_timeout=10, backoff=AT_ONCE, retention=1000)
    queue.enqueue("x")
    old = queue.lease_one()
    clock.advance(10)
    queue.enqueue("another", priority=1)
    assert queue.lease_one().payload == "another"  # takes the expired lease of the first back
    if now_it_is != "ready again":
        new = queue.lease_one()
        assert new.id == old.id
        if now_it_is == "done":
            queue.ack(new, result="theirs")
    before = live_log(queue_dir).read_bytes()
    with pytest.raises(NotLeasedError) as lost:
        {"ack": queue.ack, "nack": queue.nack, "extend": lambda job: queue.extend(job, 5), "bury": queue.bury}[verb](
            old
        )
    assert isinstance(lost.value, AlreadyDoneError) == (now_it_is == "done")
    assert queue.ack_many([old]) == [old]
    assert queue.release([old]) == [old]
    assert live_log(queue_dir).read_bytes() == before


@pytest.mark.contract("LEASE-03")
def test_a_retried_ack_with_the_token_that_acked_returns_quietly(open_queue, queue_dir):
    queue = open_queue(retention=100)
    queue.enqueue("x")
    job = queue.lease_one()
    queue.ack(job, result=1)
    before = live_log(queue_dir).read_bytes()
    queue.ack(job, result=1)
    assert queue.ack_many([job]) == []
    assert live_log(queue_dir).read_bytes() == before
    queue.compact()
    queue.ack(job)
    with pytest.raises(AlreadyDoneError):
        queue.nack(job)


@pytest.mark.contract("LEASE-03")
def test_ack_many_finishes_what_is_held_and_returns_the_rest(open_queue, clock):
    queue = open_queue(visibility_timeout=10)
    queue.enqueue_many(["lost", "kept"])
    lost, kept = queue.lease(2)
    queue.extend(kept, 100)
    clock.advance(11)
    assert queue.lease_one() is None
    assert queue.ack_many([lost, kept]) == [lost]
    assert (queue.get(kept.id).state, queue.get(lost.id).state) == (JobState.DONE, JobState.READY)


# --- LEASE-04


@pytest.mark.contract("LEASE-04")
def test_a_job_that_kills_its_worker_runs_out_of_attempts(open_queue, queue_dir, clock):
    """C13, as the engine sees it."""
    code = (
        "import os, signal, sys; from nobroker_django import BackoffPolicy, Queue\n"
        "options = dict(visibility_timeout=10, backoff=BackoffPolicy(base=0), clock=lambda: float(sys.argv[2]))\n"
        "job = Queue(sys.argv[1], **options).lease_one()\n"
        "print(job.attempts, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    queue = open_queue(backoff=AT_ONCE)
    job = queue.enqueue("poison", max_attempts=3)
    for attempt in (1, 2, 3):
        worker = start_python(code, queue_dir, clock.now)
        assert worker.communicate(timeout=60)[0] == f"{attempt}\n"
        assert worker.returncode == -9
        clock.advance(10)
        assert queue.get(job.id).attempts == attempt
    assert queue.lease_one() is None
    dead = queue.get(job.id)
    assert (dead.state, dead.attempts) == (JobState.DEAD, 3)
    assert dead.last_error.startswith("lease expired")
    assert [error.attempt for error in dead.errors] == [1, 2, 3]


@pytest.mark.contract("LEASE-04")
def test_a_lease_that_is_released_unused_gives_its_attempt_and_its_place_back(open_queue):
    queue = open_queue()
    queue.enqueue_many(["a", "b", "c"])
    jobs = queue.lease(2)
    assert [job.attempts for job in jobs] == [1, 1]
    assert queue.release(jobs) == []
    assert [queue.get(job.id).attempts for job in jobs] == [0, 0]
    assert [(job.payload, job.attempts) for job in queue.lease(3)] == [("a", 1), ("b", 1), ("c", 1)]


# --- LEASE-05


@pytest.mark.contract("LEASE-05")
def test_an_expired_lease_is_a_failed_attempt_with_its_backoff(open_queue, queue_dir, clock):
    queue = open_queue(visibility_timeout=10, backoff=BackoffPolicy(base=7, jitter=0))
    job = queue.enqueue("x")
    queue.lease_one()
    clock.advance(10)
    assert queue.lease_one() is None
    after = queue.get(job.id)
    assert (after.state, after.attempts, after.available_at) == (JobState.READY, 1, clock.now + 7)
    assert after.last_error.startswith("lease expired")
    assert read_log(live_log(queue_dir))[-1].type == RECLAIM
    clock.advance(7)
    assert queue.lease_one().attempts == 2


@pytest.mark.contract("LEASE-05")
def test_an_expired_last_attempt_is_a_dead_letter(open_queue, clock):
    queue = open_queue(visibility_timeout=10)
    job = queue.enqueue("x", max_attempts=1)
    queue.lease_one()
    clock.advance(10)
    assert queue.lease_one() is None
    dead = queue.get(job.id)
    assert (dead.state, dead.attempts, dead.finished_at) == (JobState.DEAD, 1, clock.now)
    assert dead.last_error.startswith("lease expired")


@pytest.mark.contract("LEASE-05")
def test_no_lease_is_taken_back_before_its_deadline_by_anything_else(open_queue, queue_dir, clock):
    first = open_queue(visibility_timeout=10)
    first.enqueue("x")
    job = first.lease_one()
    clock.advance(9.99)
    second = open_queue(visibility_timeout=0.001)  # what the writer used counts
    second.stats()
    second.compact()
    assert second.lease_one() is None
    run_python(
        "import sys; from nobroker_django import Queue; Queue(sys.argv[1], clock=lambda: 0.0).close()", queue_dir
    )
    assert second.get(job.id).state is JobState.LEASED
    first.ack(job)


@pytest.mark.contract("LEASE-05")
def test_opening_and_closing_the_queue_ends_no_lease(open_queue, clock):
    queue = open_queue()
    queue.enqueue("x")
    job = queue.lease_one()
    queue.close()
    queue = open_queue()
    assert queue.lease_one() is None
    queue.ack(job)


@pytest.mark.contract("LEASE-05")
def test_a_clock_that_jumps_forward_ends_a_lease_once_and_the_outcome_stays_single(open_queue, clock):
    """C82."""
    queue = open_queue(backoff=AT_ONCE, retention=10**6)
    queue.enqueue("x")
    early = queue.lease_one()
    clock.advance(86_400)
    second = queue.lease_one()
    assert second.attempts == 2
    with pytest.raises(NotLeasedError):
        queue.ack(early, result="early")
    clock.advance(-86_400)
    assert queue.lease_one() is None
    queue.ack(second, result="second")
    with pytest.raises(AlreadyDoneError):
        queue.ack(early, result="early")
    assert queue.get(second.id).result == "second"


@pytest.mark.contract("LEASE-05")
def test_a_holder_whose_lease_ran_out_unnoticed_may_still_finish(open_queue, clock):
    """A lease ends by a record, not by the clock: as long as nobody took it back, it is the holder's."""
    queue = open_queue(visibility_timeout=10, retention=10)
    queue.enqueue("x")
    job = queue.lease_one()
    clock.advance(60)
    queue.ack(job)
    assert queue.get(job.id).state is JobState.DONE


# --- LEASE-07


def syncs(files: RecordingFiles) -> int:
    return len(files.record.on(".log", "datasync", "sync"))


@pytest.mark.contract("LEASE-07")
def test_lease_and_extend_wait_for_no_sync_and_every_promise_does(open_queue):
    files = RecordingFiles()
    queue = open_queue(files=files)
    queue.enqueue_many(range(6))
    seen = {}

    def counted(name, verb):
        files.record.clear()
        result = verb()
        seen[name] = syncs(files)
        return result

    jobs = counted("lease", lambda: queue.lease(5))
    counted("extend", lambda: queue.extend(jobs[0], 10))
    counted("ack", lambda: queue.ack(jobs[0]))
    counted("ack_many", lambda: queue.ack_many(jobs[1:3]))
    counted("nack", lambda: queue.nack(jobs[3]))
    counted("bury", lambda: queue.bury(jobs[4]))
    counted("requeue_dead", queue.requeue_dead)
    counted("stats", queue.stats)
    counted("purge", queue.purge)
    assert seen == {
        "lease": 0, "extend": 0, "stats": 0,
        "ack": 1, "ack_many": 1, "nack": 1, "bury": 1, "requeue_dead": 1, "purge": 1,
    }  # fmt: skip


@pytest.mark.contract("LEASE-07")
def test_an_ack_makes_the_lease_before_it_durable_as_well(open_queue, queue_dir):
    files = RecordingFiles()
    queue = open_queue(files=files, retention=10)
    queue.enqueue("x")
    queue.ack(queue.lease_one())
    order = [call.name for call in files.record.on(".log", "pwrite", "datasync")][-3:]
    assert order == ["pwrite", "pwrite", "datasync"]
    assert read_log(live_log(queue_dir))[-2].type == LEASE


# --- LEASE-08


@pytest.mark.contract("LEASE-08")
def test_no_verb_leaves_done(open_queue, queue_dir, clock):
    queue = open_queue(retention=10**6, visibility_timeout=10)
    queue.enqueue("x")
    job = queue.lease_one()
    queue.ack(job, result="kept")
    clock.advance(1000)
    before = live_log(queue_dir).read_bytes()
    for verb in (queue.nack, queue.bury, lambda job: queue.extend(job, 5), lambda job: queue.requeue_dead(job.id)):
        with pytest.raises(NotLeasedError):
            verb(job)
    assert queue.release([job]) == [job]
    assert queue.requeue_dead() == 0
    assert queue.lease_one() is None
    assert live_log(queue_dir).read_bytes() == before
    queue.compact()
    after = queue.get(job.id)
    assert (after.state, after.result, after.outcome) == (JobState.DONE, "kept", "succeeded")


@pytest.mark.contract("LEASE-08")
def test_only_a_requeue_or_a_purge_leaves_dead(open_queue, queue_dir, clock):
    queue = open_queue(visibility_timeout=10)
    queue.enqueue("x", max_attempts=1)
    job = queue.lease_one()
    queue.nack(job)
    clock.advance(10**6)
    before = live_log(queue_dir).read_bytes()
    for verb in (queue.ack, queue.nack, queue.bury, lambda job: queue.extend(job, 5)):
        with pytest.raises(NotLeasedError):
            verb(job)
    assert queue.release([job]) == [job]
    assert queue.lease_one() is None
    assert live_log(queue_dir).read_bytes() == before
    queue.compact()
    assert queue.get(job.id).state is JobState.DEAD
    assert queue.requeue_dead(job.id) == 1
    assert queue.get(job.id).state is JobState.READY
    assert queue.bury(queue.lease_one()).state is JobState.DEAD
    assert queue.purge() == 1
    assert queue.list_jobs() == []


@pytest.mark.contract("LEASE-08")
def test_an_ack_by_bare_id_is_the_operators_tool_and_needs_a_lease_as_well(queue: Queue):
    job = queue.enqueue("x")
    with pytest.raises(NotLeasedError):
        queue.ack(job.id)
    queue.lease_one()
    queue.ack(job.id)
    assert queue.get(job.id).state is JobState.DONE
