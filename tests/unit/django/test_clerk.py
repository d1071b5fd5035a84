"""The clerk of a worker process and its desks, in this process; ``tests/acceptance`` runs whole workers."""

import io
import itertools
import os
import threading
import time

import pytest

from nobroker_django import JobState
from nobroker_django.engine.errors import CorruptLogError, LockTimeoutError, OutcomeUnknownError, StorageError
from nobroker_django.execution import Outcome
from nobroker_django.queues import get_queue
from nobroker_django.worker.budget import Budget
from nobroker_django.worker.clerk import Clerk
from nobroker_django.worker.console import Console
from nobroker_django.worker.damaged import Damaged
from nobroker_django.worker.desk import Desk
from nobroker_django.worker.guards import Guards
from nobroker_django.worker.notices import Notices
from nobroker_django.worker.options import (
    EXIT_DAMAGE,
    EXIT_FINISHED,
    EXIT_RECYCLED,
    EXIT_STOPPED,
    WorkerOptions,
)
from nobroker_django.worker.places import Places
from nobroker_django.worker.tally import Tally

from .sample import add

PATIENCE = 60.0


def until(condition):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return value


class Worker:
    """A clerk with its desks and places."""

    def __init__(self, queues, **options):
        self.stream = io.StringIO()
        self.console = Console(self.stream, prefix="test")
        self.damaged = Damaged()
        self.budget = Budget(options.get("max_jobs"))
        self.tally = Tally(self.console)
        self.finished = threading.Event()
        self.liveness = [queue._register_worker() for queue in queues]
        self.desks = [
            Desk(queue, liveness.holder, self.console, self.tally)
            for queue, liveness in zip(queues, self.liveness, strict=True)
        ]
        asked_for = WorkerOptions(queues=tuple(queue.name for queue in queues), **options)
        self.reading, self.writing = os.pipe()
        self.clerk = Clerk(
            list(self.desks), Places(asked_for.threads, asked_for.coroutines), Guards(Notices(self.writing)),
            asked_for, self.budget, self.damaged, self.console, finished=self.finished.set,
        )  # fmt: skip

    def text(self):
        return self.stream.getvalue()

    def run(self):
        """To the end; the exit code."""
        self.clerk.start()
        assert self.finished.wait(PATIENCE), self.text()
        return self.clerk.exit_code

    def stop(self):
        self.clerk.stop()
        assert self.finished.wait(PATIENCE), self.text()
        return self.clerk.exit_code

    def close(self):
        self.clerk.stop()
        self.finished.wait(PATIENCE)
        for desk in self.desks:
            desk.deaf()
        for liveness in self.liveness:
            liveness.close()
        self.damaged.close()
        self.budget.close()
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def make_worker():
    made = []

    def make(queues=None, **options):
        made.append(Worker(queues if queues is not None else [get_queue()], **options))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def exchanges(monkeypatch):
    """What the default queue is asked; ``before`` and ``after`` may be set to act around an exchange."""

    class Exchanges(list):
        def before(self, **asked):
            pass

        def after(self, answer):
            pass

    noted = Exchanges()
    real = get_queue().exchange

    def exchange(ended=(), started=(), **asked):
        noted.append({"ended": len(ended), "started": len(started), **asked})
        noted.before(ended=ended, started=started, **asked)
        answer = real(ended, started, **asked)
        noted.after(answer)
        return answer

    monkeypatch.setattr(get_queue(), "exchange", exchange)
    return noted


def test_everything_is_run_once_and_recorded(make_worker):
    results = [add.enqueue(number) for number in range(300)]
    worker = make_worker(drain=True)
    assert worker.run() == EXIT_FINISHED
    assert worker.tally.counts[Outcome.SUCCEEDED] == worker.tally.ended == 300
    for result in results:
        job = get_queue().get(result.id)
        assert (job.state, job.attempts) == (JobState.DONE, 1)


def test_what_is_counted_has_been_told(make_worker, monkeypatch):
    add.enqueue(1)
    worker = make_worker(drain=True)
    counted, tell = [], worker.console.job

    def job(queue, report):
        counted.append(worker.tally.ended)
        tell(queue, report)

    monkeypatch.setattr(worker.console, "job", job)
    worker.run()
    assert (counted, worker.tally.ended) == ([0], 1)


@pytest.mark.contract("LEASE-04")
def test_a_job_is_recorded_as_begun_before_it_runs(make_worker, make):
    seen = []
    task = make(lambda: seen.append(get_queue().list_jobs(JobState.LEASED)))
    for _ in range(20):
        task.enqueue()
    make_worker(drain=True, threads=1).run()
    for leased in seen:
        assert sum(job.started_at is not None for job in leased) == 1
    assert len(seen) == 20


def test_what_was_leased_while_the_stop_came_is_given_back_untouched(make_worker, exchanges):
    results = [add.enqueue(number) for number in range(9)]
    worker = make_worker(threads=1)
    worker.clerk._pace = 0.0001  # so that much is fetched at once
    exchanges.after = lambda answer: worker.clerk.stop() if answer.leased else None
    assert worker.run() == EXIT_STOPPED
    states = [(job.state, job.attempts) for job in map(get_queue().get, [result.id for result in results])]
    assert states == [(JobState.DONE, 1)] + [(JobState.READY, 0)] * 8


def test_no_more_begins_than_places_are_free(make_worker, make):
    together, most, lock = [0], [0], threading.Lock()
    barrier = threading.Barrier(2)

    def work():
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        barrier.wait(PATIENCE)
        with lock:
            together[0] -= 1

    task = make(work)
    for _ in range(10):
        task.enqueue()
    assert make_worker(threads=2, drain=True).run() == EXIT_FINISHED
    assert most[0] == 2


def test_what_a_slow_job_keeps_waiting_is_given_back(make_worker, make):
    """An idle process can have it; here, this test."""
    begun, go = threading.Event(), threading.Event()

    def work():
        begun.set()
        go.wait(PATIENCE)

    make(work, name="slow").enqueue()
    waiting = [add.enqueue(number) for number in range(5)]
    worker = make_worker(threads=1)
    worker.clerk._pace = 0.0001
    worker.clerk.start()
    assert begun.wait(PATIENCE)
    jobs = []
    until(lambda: jobs.extend(get_queue().lease(5)) or len(jobs) == 5)
    assert {job.id for job in jobs} == {result.id for result in waiting}
    assert [job.attempts for job in jobs] == [1] * 5
    go.set()
    assert worker.stop() == EXIT_STOPPED


def test_draining_looks_again_after_a_job_that_ended_during_a_look_in_vain(make_worker, make, exchanges):
    """It may have put another one into the queue behind the look."""
    looked = threading.Event()

    def work():
        while not looked.wait(0.01):
            get_queue()._session.ring()  # which makes the clerk look
        add.enqueue(2)

    make(work).enqueue()
    worker = make_worker(threads=2, drain=True)

    def after(answer):
        if not answer.leased and not looked.is_set():
            looked.set()
            until(lambda: worker.clerk._inbox)

    exchanges.after = after
    assert worker.run() == EXIT_FINISHED
    assert worker.tally.counts[Outcome.SUCCEEDED] == 2


@pytest.mark.contract("WORK-05")
def test_a_job_that_comes_while_idle_is_run_without_waiting_for_the_next_look(make_worker, monkeypatch):
    monkeypatch.setattr("nobroker_django.worker.clerk.UNTOLD_SECONDS", PATIENCE * 2)
    waiting = threading.Event()
    worker = make_worker()
    wait = worker.clerk._wait

    def note():
        waiting.set()
        wait()

    monkeypatch.setattr(worker.clerk, "_wait", note)
    worker.clerk.start()
    for number in range(5):
        waiting.clear()
        worker.clerk._wake()
        assert waiting.wait(PATIENCE)
        result = add.enqueue(number)
        until(lambda result=result: get_queue().get(result.id).state is JobState.DONE)


@pytest.mark.contract("WORK-05")
def test_an_idle_process_asks_the_queue_only_when_something_was_written(make_worker, monkeypatch, exchanges):
    """C91: its looks cost no lock and no transaction; what rang for nobody is found by them."""
    monkeypatch.setattr("nobroker_django.worker.clerk.UNTOLD_SECONDS", 0.01)
    worker = make_worker()
    looks = itertools.count(1)
    seen = threading.Event()
    passed = worker.desks[0].time_has_passed

    def look():
        passed()
        if next(looks) % 50 == 0:
            seen.set()

    monkeypatch.setattr(Desk, "time_has_passed", lambda desk: look())
    worker.clerk.start()
    assert seen.wait(PATIENCE)
    asked = len(exchanges)
    seen.clear()
    assert seen.wait(PATIENCE)
    assert len(exchanges) == asked
    monkeypatch.setattr("nobroker_django.engine.bell.Bell.ring", lambda bell: None)
    unheard = add.enqueue(1)
    until(lambda: get_queue().get(unheard.id).state is JobState.DONE)


@pytest.mark.contract("WORK-05")
def test_a_process_that_was_told_to_look_does_so_at_once(make_worker, monkeypatch):
    monkeypatch.setattr("nobroker_django.worker.clerk.UNTOLD_SECONDS", PATIENCE * 2)
    monkeypatch.setattr("nobroker_django.engine.bell.Bell.ring", lambda bell: None)
    worker = make_worker()
    worker.clerk.start()
    for number in range(3):
        until(lambda: worker.desks[0]._waits)
        result = add.enqueue(number)
        worker.clerk.look()
        until(lambda result=result: get_queue().get(result.id).state is JobState.DONE)


def test_a_delayed_job_is_run_when_its_time_has_come(make_worker, monkeypatch):
    monkeypatch.setattr("nobroker_django.worker.clerk.UNTOLD_SECONDS", PATIENCE * 2)
    worker = make_worker()
    worker.clerk.start()
    add.using(delay=3600).enqueue(0)
    soon = add.using(delay=0.3).enqueue(1)
    until(lambda: get_queue().get(soon.id).state is JobState.DONE)
    assert get_queue().get(soon.id).finished_at >= get_queue().get(soon.id).enqueued_at + 0.3


# -- trouble with the queue


def trouble(kind):
    if kind == "full disk":
        return StorageError("append to", "/q", OSError(28, "No space left on device"))
    return LockTimeoutError("busy", path="/q", seconds=1.0)


@pytest.mark.parametrize("kind", ["full disk", "busy"])
def test_a_queue_that_does_not_answer_for_a_moment_is_asked_again_and_nothing_runs_twice(
    make_worker, make, exchanges, monkeypatch, kind
):
    monkeypatch.setattr("nobroker_django.worker.desk.FIRST_REST", 0.001)
    ran = []
    task = make(lambda number: ran.append(number))
    for number in range(20):
        task.enqueue(number)
    turns = [0]

    def before(**asked):
        turns[0] += 1
        if turns[0] % 3:
            raise trouble(kind)

    exchanges.before = before
    worker = make_worker(drain=True)
    assert worker.run() == EXIT_FINISHED
    assert sorted(ran) == list(range(20))
    assert worker.tally.counts[Outcome.SUCCEEDED] == 20
    assert "default: the queue does not answer, trying again in 0.001 s" in worker.text()


@pytest.mark.parametrize(
    ("error", "tries"),
    [(trouble("full disk"), 5), (OutcomeUnknownError("sync", "/q", OSError(5, "I/O error")), 1)],
    ids=["can never be written", "may have been written"],
)
def test_an_outcome_that_is_not_recorded_is_reported(make_worker, exchanges, monkeypatch, error, tries):
    """One that may have been written is not written again."""
    monkeypatch.setattr("nobroker_django.worker.desk.FIRST_REST", 0.001)
    add.enqueue(1)
    tried = []

    def before(ended, **asked):
        if ended:
            tried.append(1)
            raise error

    exchanges.before = before
    worker = make_worker()
    worker.clerk.start()
    until(lambda: worker.tally.counts[Outcome.UNRECORDED] == 1)
    assert len(tried) == tries
    assert str(error) in worker.text()
    assert worker.stop() == EXIT_STOPPED
    assert len(tried) == tries


def two_queues(settings):
    settings.NOBROKER = {**settings.NOBROKER, "QUEUES": {"default": {}, "second": {}}}
    return [get_queue("default"), get_queue("second")]


def fail_always(error):
    def exchange(*args, **options):
        raise error

    return exchange


@pytest.mark.parametrize("bad", [0, 1])
def test_a_damaged_queue_does_not_keep_the_others_from_being_worked_on(make_worker, monkeypatch, settings, bad):
    queues = two_queues(settings)
    good, name = queues[1 - bad], queues[bad].name
    results = [add.using(queue_name=good.name).enqueue(number) for number in range(5)]
    monkeypatch.setattr(queues[bad], "exchange", fail_always(CorruptLogError("/q/log", 77, "rotten")))
    worker = make_worker(queues, drain=True)
    assert worker.run() == EXIT_FINISHED
    assert {good.get(result.id).state for result in results} == {JobState.DONE}
    assert worker.damaged.names() == [name]
    assert worker.text().count(f"{name}: this queue is damaged and is not worked on any more: /q/log") == 1


def test_without_any_queue_left_the_work_ends(make_worker, monkeypatch, settings):
    queues = two_queues(settings)
    for queue in queues:
        monkeypatch.setattr(queue, "exchange", fail_always(CorruptLogError("/q/log", 77, "rotten")))
    worker = make_worker(queues)
    assert worker.run() == EXIT_DAMAGE
    assert worker.damaged.names() == ["default", "second"]


def test_a_queue_that_fails_again_and_again_does_not_keep_the_others_from_being_worked_on(
    make_worker, monkeypatch, settings
):
    first, second = two_queues(settings)
    monkeypatch.setattr(first, "exchange", fail_always(trouble("busy")))
    worker = make_worker([first, second])
    worker.clerk.start()
    for number in range(3):
        result = add.using(queue_name="second").enqueue(number)
        until(lambda result=result: second.get(result.id).state is JobState.DONE)
    assert worker.stop() == EXIT_STOPPED
    assert "default: the queue does not answer" in worker.text()


# -- limits of a process


def test_the_budget_is_never_overdrawn(make_worker):
    for number in range(20):
        add.enqueue(number)
    worker = make_worker(max_jobs=7)
    assert worker.run() == EXIT_FINISHED
    assert worker.tally.ended == 7
    stats = get_queue().stats()
    assert (stats.done, stats.ready, stats.leased) == (7, 13, 0)


def test_a_process_makes_room_after_so_many_jobs(make_worker):
    for number in range(20):
        add.enqueue(number)
    worker = make_worker(max_jobs_per_process=5, threads=2)
    assert worker.run() == EXIT_RECYCLED
    assert 5 <= worker.tally.ended <= 7
    stats = get_queue().stats()
    assert (stats.done, stats.leased) == (worker.tally.ended, 0)


def test_a_process_makes_room_when_it_uses_too_much_memory(make_worker, monkeypatch):
    monkeypatch.setattr("nobroker_django.worker.clerk.resident_bytes", lambda: 2_000_000)
    for number in range(20):
        add.enqueue(number)
    worker = make_worker(max_memory=1_000_000, threads=1)
    assert worker.run() == EXIT_RECYCLED
    assert worker.tally.ended < 20
    assert "2 MB are in use: a new process takes over" in worker.text()


def test_running_jobs_are_given_back_at_an_immediate_end(make_worker, make):
    go, begun = threading.Event(), threading.Semaphore(0)

    def work():
        begun.release()
        go.wait(PATIENCE)

    results = [make(work, name="work").enqueue() for _ in range(2)]
    waiting = add.enqueue(1)
    worker = make_worker(threads=2)
    worker.clerk.start()
    for _ in range(2):
        assert begun.acquire(timeout=PATIENCE)
    worker.clerk.leave()
    assert worker.clerk.given_back == 2
    for result in (*results, waiting):
        job = get_queue().get(result.id)
        assert (job.state, job.attempts) == (JobState.READY, 0)
    go.set()


def test_coroutine_tasks_run_side_by_side_however_few_the_threads(make_worker, make):
    import asyncio

    together = 10
    arrived, everybody = [], asyncio.Event()

    async def work():
        arrived.append(1)
        if len(arrived) == together:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), PATIENCE)

    task = make(work)
    for _ in range(together):
        task.enqueue()
    worker = make_worker(threads=1, drain=True, coroutines=together)
    assert worker.run() == EXIT_FINISHED
    assert worker.tally.counts[Outcome.SUCCEEDED] == together
