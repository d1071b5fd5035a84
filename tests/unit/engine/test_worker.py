"""The engine's own worker: threads, failures as data, lost leases, leases that last, stopping."""

import itertools
import os
import signal
import threading

import pytest

from nobroker_django import BackoffPolicy, CorruptLogError, JobState, LockTimeoutError, NobrokerError, Queue, Worker
from nobroker_django.engine import worker as module
from tests.contract.helpers import live_log, run_python
from tests.support.bytes import log_end
from tests.support.procs import PATIENCE, wait_until

AT_ONCE = BackoffPolicy(base=0)


def test_jobs_are_run_in_order_and_counted(queue):
    queue.enqueue_many(list("abc"))
    seen = []
    stats = Worker(queue, lambda job: seen.append(job.payload), max_jobs=3).run()
    assert seen == ["a", "b", "c"]
    assert (stats.leased, stats.succeeded, stats.failed, stats.dead, stats.lost_leases) == (3, 3, 0, 0, 0)
    assert queue.stats().done == 3


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("own"), MemoryError()],
)
def test_whatever_a_handler_raises_is_a_failed_attempt_and_the_worker_goes_on(open_queue, error):
    """C32."""
    queue = open_queue(backoff=AT_ONCE)
    bad = queue.enqueue("bad", max_attempts=2, priority=1)
    queue.enqueue("good")

    def handler(job):
        if job.payload == "bad":
            raise error

    stats = Worker(queue, handler, max_jobs=3).run()
    assert (stats.leased, stats.succeeded, stats.failed, stats.dead) == (3, 1, 1, 1)
    dead = queue.get(bad.id)
    assert (dead.state, dead.attempts) == (JobState.DEAD, 2)
    assert dead.errors[0].error_class == type(error).__name__
    assert "in handler" in dead.errors[0].traceback


def test_a_finish_that_comes_too_late_is_counted_and_logged_with_the_job(open_queue, clock, caplog):
    queue = open_queue(visibility_timeout=10, backoff=AT_ONCE)
    job = queue.enqueue("slow")
    other = open_queue(backoff=AT_ONCE)

    def handler(job):
        if job.attempts == 1:
            clock.advance(11)
            assert other.lease_one().id == job.id

    stats = Worker(queue, handler, max_jobs=1).run()
    assert (stats.lost_leases, stats.succeeded) == (1, 0)
    assert any(job.id in record.getMessage() for record in caplog.records)
    assert queue.get(job.id).state is JobState.LEASED


def test_the_lease_of_a_running_job_is_extended(open_queue, clock, monkeypatch):
    """The heartbeat beats after a third of the lease; the handler waits for two beats."""
    queue = open_queue(visibility_timeout=0.15)
    extended = threading.Semaphore(0)
    extend = Queue.extend

    def counted(self, job, seconds):
        result = extend(self, job, seconds)
        extended.release()
        return result

    monkeypatch.setattr(Queue, "extend", counted)
    queue.enqueue("x")
    start = queue.now()

    def handler(job):
        clock.advance(0.05)
        assert extended.acquire(timeout=PATIENCE)
        clock.advance(0.05)
        assert extended.acquire(timeout=PATIENCE)
        assert queue.get(job.id).lease_deadline >= start + 0.15 + 0.04

    assert Worker(queue, handler, max_jobs=1).run().succeeded == 1


@pytest.mark.parametrize("verb", ["_lease_as", "ack"])
def test_a_lock_that_is_not_free_in_time_ends_no_worker(open_queue, monkeypatch, caplog, verb):
    """What was leased and could not be acked comes back after its lease."""
    queue = open_queue()
    failures = [LockTimeoutError("busy", path="/q", seconds=1.0)]
    plain = getattr(Queue, verb)

    def fail_once(self, *arguments, **options):
        if failures:
            raise failures.pop()
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Queue, verb, fail_once)
    queue.enqueue_many(range(2))
    stats = Worker(queue, lambda job: None, idle_timeout=0).run()
    assert (stats.succeeded, queue.stats().leased) == ((1, 1) if verb == "ack" else (2, 0))
    assert "busy" in caplog.text


def test_a_lost_lease_is_noticed_by_the_heartbeat_once(open_queue, clock, caplog):
    queue = open_queue(visibility_timeout=0.1, backoff=AT_ONCE)
    queue.enqueue("x")
    noticed = threading.Event()
    other = open_queue(visibility_timeout=1000, backoff=AT_ONCE)

    class Watching(module.Heartbeat):
        def _extend(self, entry):
            super()._extend(entry)
            if entry.lost:
                noticed.set()

    def lose(job):
        clock.advance(1)
        while other.lease_one() is None:
            clock.advance(1)  # a beat came in between
        assert noticed.wait(PATIENCE)

    worker = Worker(queue, lose, max_jobs=1)
    worker._heartbeat = Watching()
    stats = worker.run()
    assert (stats.lost_leases, stats.failed) == (1, 0)


def test_several_threads_share_the_work_and_run_at_the_same_time(queue):
    queue.enqueue_many(range(4))
    together = threading.Barrier(4, timeout=PATIENCE)
    stats = Worker(queue, lambda job: together.wait(), concurrency=4, max_jobs=4).run()
    assert stats.succeeded == 4


def test_max_jobs_is_exact_with_many_threads(queue):
    queue.enqueue_many(range(20))
    stats = Worker(queue, lambda job: None, concurrency=4, max_jobs=7).run()
    assert stats.leased == 7
    assert queue.stats().ready == 13
    assert Worker(queue, lambda job: None, max_jobs=0).run().leased == 0


def test_an_idle_timeout_ends_an_idle_worker(queue):
    queue.enqueue("x")
    stats = Worker(queue, lambda job: None, idle_timeout=0.05, poll_interval=0.01, concurrency=2).run()
    assert stats.succeeded == 1


def test_an_idle_timeout_ends_no_worker_that_has_not_looked_since_it_was_over(queue):
    """However long the way to the first look, or between two jobs, was."""
    queue.enqueue_many(range(3))
    assert Worker(queue, lambda job: None, idle_timeout=0, poll_interval=0.01).run().succeeded == 3


def test_an_idle_timeout_ends_no_worker_whose_other_thread_has_worked_since_the_look_began(queue, monkeypatch):
    """What that thread ran may have put a job in behind the look."""
    looks, early = itertools.count(), list[threading.Thread]()
    looking, added, again = threading.Event(), threading.Event(), threading.Event()
    lease = Queue._lease_as

    def look(self, *arguments, **options):
        if next(looks) == 0:
            early.append(threading.current_thread())
            looking.set()
            assert added.wait(PATIENCE)
            return []
        assert looking.wait(PATIENCE)
        if threading.current_thread() is early[0]:
            again.set()
        return lease(self, *arguments, **options)

    def handler(job):
        if job.payload == "first":
            queue.enqueue("second")
            added.set()
            wait_until(lambda: again.is_set() or not early[0].is_alive(), "the other thread went on or ended")

    monkeypatch.setattr(Queue, "_lease_as", look)
    queue.enqueue("first")
    assert Worker(queue, handler, idle_timeout=0, poll_interval=0.01, concurrency=2).run().succeeded == 2


def test_stop_lets_the_running_handler_finish_and_ack_and_leases_nothing_more(queue):
    queue.enqueue_many(range(3))
    worker = Worker(queue, lambda job: worker.stop())
    stats = worker.run()
    assert (stats.leased, stats.succeeded) == (1, 1)
    assert (queue.stats().ready, queue.stats().leased) == (2, 0)


def test_a_job_that_comes_later_is_picked_up_and_a_delayed_one_at_its_time(open_queue, clock):
    queue, producer = open_queue(), open_queue()
    seen = []

    def handler(job):
        seen.append(job.payload)
        if job.payload == "first":
            producer.enqueue("second", delay=100)
            clock.advance(100)

    thread = threading.Thread(target=lambda: Worker(queue, handler, max_jobs=2, poll_interval=5).run())
    thread.start()
    producer.enqueue("first")
    thread.join(PATIENCE)
    assert seen == ["first", "second"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_worker_after_the_running_job_and_the_handlers_before_are_back(queue, number):
    queue.enqueue_many(range(3))
    before = signal.getsignal(number)

    def handler(job):
        of_the_worker = signal.getsignal(number)
        os.kill(os.getpid(), number)
        # only the main thread hears of it, and the first signal puts the handler before back
        wait_until(lambda: signal.getsignal(number) is not of_the_worker, "the worker heard the signal")

    stats = Worker(queue, handler, max_jobs=3).run()
    assert stats.succeeded == 1
    assert queue.stats().leased == 0
    assert signal.getsignal(number) is before


SECOND_SIGNAL = """
import os, signal, sys, threading
from nobroker_django import Queue, Worker
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
queue = Queue(sys.argv[1])
job = queue.enqueue("x")
stuck = threading.Event()
def handler(job):
    os.kill(os.getpid(), signal.SIGINT)
    while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        pass
    os.kill(os.getpid(), signal.SIGINT)
    stuck.wait()
try:
    Worker(queue, handler).run()
except KeyboardInterrupt:
    after = queue.get(job.id)
    print(after.state.value, after.attempts, flush=True)
    os._exit(0)
"""


def test_a_second_signal_ends_at_once_and_gives_the_running_job_back(queue_dir):
    assert run_python(SECOND_SIGNAL, queue_dir) == "ready 0\n"


def test_a_damaged_log_stops_the_worker_with_its_error(open_queue, queue_dir):
    """C29: no stack trace in a loop; the error says where."""
    queue = open_queue()
    queue.enqueue_many(range(10))

    def handler(job):
        log = live_log(queue_dir)
        os.truncate(log, log_end(log) // 2)

    with pytest.raises(CorruptLogError):
        Worker(queue, handler).run()


def test_a_job_may_use_the_queue_that_it_came_from(queue):
    queue.enqueue(3)
    stats = Worker(queue, lambda job: job.payload and queue.enqueue(job.payload - 1), max_jobs=4).run()
    assert stats.succeeded == 4
    assert queue.stats().enqueued_total == 4


def test_a_worker_may_run_again(queue):
    queue.enqueue("x")
    Worker(queue, lambda job: None, max_jobs=1).run()
    queue.enqueue("y")
    assert Worker(queue, lambda job: None, max_jobs=1).run().succeeded == 1


def test_a_closed_queue_ends_the_worker_with_the_error(open_queue):
    queue = open_queue()
    queue.enqueue("x")
    with pytest.raises(NobrokerError):
        Worker(queue, lambda job: queue.close()).run()


@pytest.mark.contract("LEASE-06")
def test_the_job_of_a_killed_worker_is_somebody_elses_at_once(queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue("x")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                Worker(Queue(queue_dir), lambda job: os.write(writing, b"x") and signal.pause()).run()
            finally:
                os._exit(1)
        assert os.read(reading, 1) == b"x"
        assert queue.lease() == []
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        [job] = queue.lease()
        assert job.attempts == 2
        assert [error.error_class for error in queue.get(job.id).errors] == ["WorkerDied"]
        os.close(reading)
        os.close(writing)
