"""How real workers stop."""

import os
import signal
import time

import pytest

from nobroker_django import JobState

from . import jobs
from .conftest import state_of, until


def alive(pid):
    """Whether the process runs (a zombie does not)."""
    return state_of(pid) not in (None, "Z")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_at_once(place, number):
    work = place.work("--processes", 2)
    work.until_ready(2)
    work.signal(number)
    assert work.end() == 0
    assert not any(alive(pid) for pid in work.children())


@pytest.mark.contract("WORK-01")
@pytest.mark.parametrize("send", ["signal", "signal_group"], ids=["the supervisor", "the whole group"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_jobs_finish_and_no_new_one_begins(place, number, send):
    """C58."""
    held = [jobs.hold.enqueue(str(place), f"job{n}") for n in range(2)]
    work = place.work("--processes", 2, "--threads", 1)
    for n in range(2):
        place.until_started(f"job{n}")
    waiting = jobs.note.enqueue(str(place / "trace"), "x")
    getattr(work, send)(number)
    until(lambda: work.text().count("stopping: 1 running") == 2, "both children heard it")
    for n in range(2):
        place.let_go(f"job{n}")
    assert work.end() == 0
    for result in held:
        result.refresh()
        assert (result.status, result.attempts) == ("SUCCESSFUL", 1)
    waiting.refresh()
    assert (waiting.status, waiting.attempts) == ("READY", 0)
    assert place.lines("trace") == []


@pytest.mark.contract("WORK-01")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_gives_running_jobs_back_and_ends_at_once(place, number):
    """C58."""
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--grace", 1000)
    place.until_started("job")
    work.signal(number)
    work.until_says("stopping: 1 running")
    work.signal(number)
    assert work.end() == 5
    job = place.queue().get(result.id)
    assert (job.state, job.attempts) == (JobState.READY, 0)
    assert job.available_at <= time.time()
    other = place.work("--max-jobs", 1)
    place.until_started("job", 2)
    place.let_go("job")
    assert other.end() == 0
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 1)
    assert len(place.lines("job.done")) == 1


@pytest.mark.contract("WORK-01")
def test_the_end_of_the_grace_time_gives_running_jobs_back(place):
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--grace", 0.3)
    place.until_started("job")
    work.signal(signal.SIGTERM)
    assert work.end() == 5
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)
    work.until_says("was stopped while running and given back")


def test_a_job_that_swallows_every_exception_does_not_keep_the_worker_from_stopping(place):
    """C32."""
    result = jobs.hold_against_everything.enqueue(str(place), "job")
    work = place.work("--grace", 0.3)
    place.until_started("job")
    work.signal(signal.SIGTERM)
    assert work.end() == 5
    result.refresh()
    assert result.status == "READY"


def test_a_last_attempt_that_is_given_back_is_no_dead_letter(place):
    result = jobs.hold.using(max_attempts=1).enqueue(str(place), "job")
    work = place.work("--grace", 0)
    place.until_started("job")
    work.signal(signal.SIGTERM)
    assert work.end() == 5
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)


def test_signals_to_a_child_let_it_finish_and_another_takes_its_place(place):
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--grace", 1000)
    [child] = place.until_started("job")
    for _ in range(3):
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
    work.until_says("stopping: 1 running")
    assert alive(child)
    place.let_go("job")
    assert result.wait(timeout=60).attempts == 1
    until(lambda: len(work.children()) == 2)
    assert jobs.note.enqueue(str(place / "trace"), "x").wait(timeout=60).status == "SUCCESSFUL"
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_children_of_a_killed_supervisor_finish_their_jobs_and_end(place):
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--processes", 2)
    children = work.until_ready(2)
    [busy] = place.until_started("job")
    work.signal(signal.SIGKILL)
    work.process.wait()
    until(lambda: sum(alive(pid) for pid in children) == 1)
    assert alive(busy)
    place.let_go("job")
    assert result.wait(timeout=60).attempts == 1
    until(lambda: not any(alive(pid) for pid in children))


def test_a_stopped_worker_that_holds_nothing_gives_nothing_back(place):
    work = place.work("--grace", 0)
    work.until_ready()
    work.signal(signal.SIGTERM)
    assert work.end() == 0
