"""The parts of ``nobroker_work`` one by one; ``tests/acceptance`` runs the whole."""

import io
import os
import signal
import threading
import time

import pytest
from django.core.management import CommandError, call_command

from nobroker_django import JobState
from nobroker_django.engine.errors import CorruptLogError, LockTimeoutError
from nobroker_django.execution import Outcome, Report, execute
from nobroker_django.queues import get_queue
from nobroker_django.worker.budget import Budget
from nobroker_django.worker.console import Console, describe
from nobroker_django.worker.damaged import Damaged
from nobroker_django.worker.fetcher import Fetcher
from nobroker_django.worker.heartbeat import Heartbeat
from nobroker_django.worker.options import EXIT_DAMAGE, EXIT_FINISHED, EXIT_STOPPED, WorkerOptions
from nobroker_django.worker.shutdown import SignalPipe, read_available, wait_readable

from .sample import add

PATIENCE = 60.0


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def in_child(function):
    """Run a function in a forked process; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_myself():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    return 0


@pytest.fixture
def console():
    return Console(io.StringIO(), prefix="test")


def text_of(console):
    return console._stream.getvalue()


def test_a_budget_is_one_for_all_processes():
    budget = Budget(5)
    assert budget.take(2) == 2
    assert in_child(lambda: budget.take(2)) == 2
    assert budget.take(4) == 1
    assert budget.take(1) == 0
    assert in_child(lambda: budget.take(1)) == 0
    budget.close()


def test_without_a_limit_everything_is_granted():
    assert Budget(None).take(1000) == 1000


def test_signals_arrive_as_bytes_in_a_pipe_and_the_former_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    pipe = SignalPipe([signal.SIGTERM])
    try:
        assert pipe.read() == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert wait_readable([pipe.fd], PATIENCE) == {pipe.fd}
        assert pipe.read() == [signal.SIGTERM]
    finally:
        pipe.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_forked_process_dies_of_its_signals_and_passes_none_on():
    pipe = SignalPipe([signal.SIGTERM])
    try:
        assert in_child(kill_myself) == -signal.SIGTERM
        assert pipe.read() == []
    finally:
        pipe.close()


def test_a_closed_pipe_reads_as_empty():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    assert read_available(reading) == b""
    os.write(writing, b"s")
    os.close(writing)
    assert read_available(reading) == b"s"
    assert wait_readable([reading], 0) == {reading}
    os.close(reading)


def test_a_tracked_lease_lasts_its_length_from_the_last_beat_and_not_much_longer(console):
    add.enqueue(1)
    job = get_queue().lease_one(visibility_timeout=0.3)
    heartbeat = Heartbeat(console)
    heartbeat.start()
    heartbeat.track(get_queue(), job, 0.3)
    first = job.lease_deadline
    until(lambda: get_queue().get(job.id).lease_deadline > first + 0.9)
    now = get_queue().get(job.id)
    assert (now.state, now.attempts) == (JobState.LEASED, 1)
    assert now.lease_deadline <= time.time() + 0.3
    heartbeat.untrack(job)
    assert heartbeat.held() == []
    until(lambda: get_queue().lease_one(timeout=1) is not None)
    assert text_of(console) == ""


def test_a_lost_lease_is_reported_once_and_left_alone(console):
    add.enqueue(1)
    job = get_queue().lease_one()
    get_queue().release([job])
    heartbeat = Heartbeat(console)
    heartbeat.track(get_queue(), job, 0.03)
    heartbeat.start()
    until(lambda: "was lost while it runs" in text_of(console))
    assert heartbeat.held() == []
    other = add.enqueue(2)
    again = get_queue().lease(2, visibility_timeout=0.5)
    beat = next(job for job in again if job.id == other.id)
    heartbeat.track(get_queue(), beat, 0.5)
    until(lambda: get_queue().get(beat.id).lease_deadline != beat.lease_deadline)
    heartbeat.untrack(beat)
    heartbeat.untrack(job)
    assert text_of(console).count("was lost") == 1


def test_a_beat_that_fails_is_tried_again(console, monkeypatch):
    add.enqueue(1)
    job = get_queue().lease_one(visibility_timeout=PATIENCE)
    failures = [LockTimeoutError("busy", path="/q", seconds=1.0)]
    extend = get_queue().extend

    def fail_once(*args):
        if failures:
            raise failures.pop()
        return extend(*args)

    monkeypatch.setattr(get_queue(), "extend", fail_once)
    heartbeat = Heartbeat(console)
    heartbeat.track(get_queue(), job, 0.1)
    # The real lease is longer than what is tracked, so that a slow machine does not lose it.
    heartbeat.start()
    until(lambda: "could not be extended: busy" in text_of(console))
    assert [held.job.id for held in heartbeat.held()] == [job.id]
    heartbeat.untrack(job)


@pytest.fixture
def damaged():
    noted = Damaged()
    yield noted
    noted.close()


@pytest.fixture
def make_fetcher(console, damaged):
    def make(queues, finished, **options):
        heartbeat = Heartbeat(console)
        heartbeat.start()
        queues = queues if isinstance(queues, list) else [queues]
        asked_for = WorkerOptions(queues=tuple(queue.name for queue in queues), **options)
        return Fetcher(queues, asked_for, Budget(None), damaged, heartbeat, console, finished=finished.set)

    return make


def test_what_was_leased_while_the_stop_came_is_given_back_untouched(make_fetcher, monkeypatch):
    result = add.enqueue(1)
    finished = threading.Event()
    fetcher = make_fetcher(get_queue(), finished)
    lease = get_queue().lease

    def lease_and_stop(*args, **options):
        jobs = lease(*args, **options)
        if jobs:
            fetcher.stop()
        return jobs

    monkeypatch.setattr(get_queue(), "lease", lease_and_stop)
    fetcher.start()
    assert finished.wait(PATIENCE)
    fetcher.stop_leasing()
    assert fetcher.exit_code == EXIT_STOPPED
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)


def test_no_more_is_leased_than_threads_are_free(make_fetcher, monkeypatch):
    for n in range(5):
        add.enqueue(n)
    asked = []
    lease = get_queue().lease

    def note(count, **options):
        asked.append(count)
        return lease(count, **options)

    monkeypatch.setattr(get_queue(), "lease", note)
    finished = threading.Event()
    fetcher = make_fetcher(get_queue(), finished, threads=2, drain=True)
    fetcher.start()
    assert finished.wait(PATIENCE)
    assert fetcher.exit_code == EXIT_FINISHED
    assert set(asked) <= {1, 2}
    assert fetcher.counts[Outcome.SUCCEEDED] == 5


def test_draining_looks_again_after_a_job_that_ended_during_a_look_in_vain(make_fetcher, monkeypatch):
    """It may have put another one into the queue behind the look."""
    looked, finished = threading.Event(), threading.Event()
    fetcher = make_fetcher(get_queue(), finished, threads=2, drain=True)
    lease = get_queue().lease

    def look(count, **options):
        jobs = lease(count, **options)
        if not jobs and not looked.is_set():
            looked.set()
            until(lambda: fetcher._running == 0)
        return jobs

    def add_another(queue, job, **options):
        if job.payload["args"] == [1]:
            assert looked.wait(PATIENCE)
            add.enqueue(2)
        return execute(queue, job, **options)

    monkeypatch.setattr(get_queue(), "lease", look)
    monkeypatch.setattr("nobroker_django.worker.fetcher.execute", add_another)
    add.enqueue(1)
    fetcher.start()
    assert finished.wait(PATIENCE)
    assert fetcher.exit_code == EXIT_FINISHED
    assert fetcher.counts[Outcome.SUCCEEDED] == 2


def test_a_queue_that_cannot_be_read_for_a_moment_is_asked_again(console, make_fetcher, monkeypatch):
    add.enqueue(1)
    failures = [LockTimeoutError("busy", path="/q", seconds=1.0)]
    lease = get_queue().lease

    def fail_once(*args, **options):
        if failures:
            raise failures.pop()
        return lease(*args, **options)

    monkeypatch.setattr(get_queue(), "lease", fail_once)
    monkeypatch.setattr("nobroker_django.worker.turns.FIRST_REST", 0.01)
    finished = threading.Event()
    fetcher = make_fetcher(get_queue(), finished, drain=True)
    fetcher.start()
    assert finished.wait(PATIENCE)
    assert fetcher.counts[Outcome.SUCCEEDED] == 1
    assert "default: no job could be leased, trying again in 0.01 s: busy" in text_of(console)


def fail_always(error):
    def lease(*args, **options):
        raise error

    return lease


def two_queues(settings):
    settings.NOBROKER = {**settings.NOBROKER, "QUEUES": {"default": {}, "second": {}}}
    return [get_queue("default"), get_queue("second")]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_damaged_queue_does_not_keep_the_others_from_being_worked_on(
    console, make_fetcher, damaged, monkeypatch, settings, bad
):
    queues = two_queues(settings)
    good, name = queues[1 - bad], queues[bad].name
    results = [add.using(queue_name=good.name).enqueue(number) for number in range(5)]
    monkeypatch.setattr(queues[bad], "lease", fail_always(CorruptLogError("/q/log", 77, "rotten")))
    finished = threading.Event()
    fetcher = make_fetcher(queues, finished, drain=True)
    fetcher.start()
    assert finished.wait(PATIENCE)
    assert fetcher.exit_code == EXIT_FINISHED
    for result in results:
        result.refresh()
        assert result.status == "SUCCESSFUL"
    assert damaged.names() == [name]
    assert text_of(console).count(f"{name}: this queue is damaged and is not worked on any more: /q/log") == 1


def test_without_any_queue_left_the_work_ends(console, make_fetcher, damaged, monkeypatch, settings):
    queues = two_queues(settings)
    for queue in queues:
        monkeypatch.setattr(queue, "lease", fail_always(CorruptLogError("/q/log", 77, "rotten")))
    finished = threading.Event()
    fetcher = make_fetcher(queues, finished)
    fetcher.start()
    assert finished.wait(PATIENCE)
    assert fetcher.exit_code == EXIT_DAMAGE
    assert damaged.names() == ["default", "second"]


def test_a_queue_that_fails_again_and_again_does_not_keep_the_others_from_being_worked_on(
    console, make_fetcher, monkeypatch, settings
):
    first, second = two_queues(settings)
    monkeypatch.setattr(first, "lease", fail_always(LockTimeoutError("busy", path="/q", seconds=1.0)))
    finished = threading.Event()
    fetcher = make_fetcher([first, second], finished)
    fetcher.start()
    for number in range(3):
        result = add.using(queue_name="second").enqueue(number)
        until(lambda result=result: result.refresh() or result.status == "SUCCESSFUL")
    fetcher.stop()
    assert finished.wait(PATIENCE)
    assert fetcher.exit_code == EXIT_STOPPED
    assert "default: no job could be leased, trying again in 0.5 s: busy" in text_of(console)


def test_names_of_damaged_queues_are_known_to_all_processes(damaged):
    assert damaged.names() == []
    assert in_child(lambda: damaged.add("emails") or 0) == 0
    damaged.add("default")
    assert in_child(lambda: damaged.add("emails") or 0) == 0
    assert damaged.names() == ["default", "emails"]


def report(outcome, **facts):
    return Report(
        **{
            "job_id": "the-id",
            "task": "a.b",
            "attempt": 2,
            "max_attempts": 5,
            "outcome": outcome,
            "seconds": 0.1234,
            "error": "ValueError: x\ny",
            **facts,
        }
    )


def test_each_outcome_has_its_sentence():
    assert describe(report(Outcome.SUCCEEDED)) == "job the-id a.b succeeded (attempt 2 of 5, 0.123 s)"
    assert "ValueError: x\ny; next attempt in 3.0 s" in describe(report(Outcome.FAILED, retry_in=3.0))
    assert "is now a dead letter" in describe(report(Outcome.DEAD))
    assert "lease was lost" in describe(report(Outcome.LOST))
    assert "could not be recorded" in describe(report(Outcome.UNRECORDED))


def test_the_projects_logging_gets_the_facts_of_each_delivery(console, caplog):
    with caplog.at_level("INFO", logger="nobroker_django.worker"):
        console.job("emails", report(Outcome.FAILED, retry_in=1.0))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert (record.job_id, record.task, record.queue, record.attempt) == ("the-id", "a.b", "emails", 2)
    assert "\n" not in record.getMessage()
    assert text_of(console).count("\n") == 1


def test_verbosity_zero_leaves_warnings_only():
    console = Console(io.StringIO(), prefix="test", verbosity=0)
    console.job("default", report(Outcome.SUCCEEDED))
    assert text_of(console) == ""
    console.warning("look here")
    assert "look here" in text_of(console)


def test_the_command_belongs_into_the_main_thread():
    errors = []

    def run():
        try:
            call_command("nobroker_work", drain=True, stdout=io.StringIO())
        except CommandError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == ["nobroker_work handles signals and must run in the main thread"]
