"""Time limits, and leases of tasks that do not let the process say that it lives."""

import json
import os
import re
import signal
import socket
import time

import pytest

from nobroker_django import JobState

from . import jobs
from .conftest import until


@pytest.mark.contract("WORK-02")
def test_the_lease_of_a_task_that_holds_the_interpreters_lock_is_extended(place, configure):
    """C01."""
    configure(VISIBILITY_TIMEOUT=1.5)
    result = jobs.hog.enqueue(str(place), "job", 5.0)
    works = [place.work("--threads", 1), place.work("--threads", 1)]
    assert result.wait(timeout=60).attempts == 1
    assert len(place.lines("job.started")) == 1
    for work in works:
        work.signal(signal.SIGTERM)
        assert work.end() == 0
    assert place.queue().get(result.id).errors == []


def test_how_long_a_job_runs_and_how_often_its_lease_was_extended_can_be_seen(place, configure):
    configure(VISIBILITY_TIMEOUT=0.6)
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--threads", 1)
    place.until_started("job")
    job = until(lambda: (found := place.queue().get(result.id)).extensions >= 2 and found)
    assert job.enqueued_at <= job.started_at <= job.lease_deadline
    stats = place.queue().stats()
    assert stats.oldest_running_age is not None
    assert 0 < stats.oldest_running_age <= time.time() - job.started_at
    assert stats.most_extensions >= 2
    [line] = place.manage("nobroker_list").stdout.splitlines()
    assert re.search(r"  running for \d+\.\ds, extended \d+ times, until ", line)
    table = place.manage("nobroker_stats").stdout.splitlines()
    assert table[0].endswith("LONGEST RUN")
    assert re.search(r" \d+\.\ds$", table[1])
    [document] = json.loads(place.manage("nobroker_list", "--json").stdout)["jobs"]
    assert (document["started_at"], document["extensions"] >= 2) == (job.started_at, True)
    counts = json.loads(place.manage("nobroker_stats", "--json").stdout)["queues"][0]
    assert counts["oldest_running_age"] > 0
    assert counts["most_extensions"] >= 2
    place.let_go("job")
    result.wait(timeout=60)
    stats = place.queue().stats()
    assert (stats.oldest_running_age, stats.most_extensions) == (None, 0)
    work.signal(signal.SIGTERM)
    assert work.end() == 0


@pytest.mark.parametrize("how", ["in C code", "waiting for a thread"])
def test_a_job_that_cannot_be_interrupted_ends_at_its_hard_limit_and_the_worker_goes_on(place, configure, how):
    """C60."""
    configure(TIME_LIMIT=1.0, SOFT_TIME_LIMIT=0.2)
    late = {"in C code": jobs.stay_in_c, "waiting for a thread": jobs.wait_for_a_thread}[how]
    result = late.using(max_attempts=1).enqueue()
    work = place.work("--threads", 1)
    until(lambda: place.queue().get(result.id).state is JobState.DEAD)
    job = place.queue().get(result.id)
    assert [error.error_class for error in job.errors] == ["nobroker_django.TimeLimitExceeded"]
    assert jobs.note.enqueue(str(place / "trace"), "x").wait(timeout=60).attempts == 1
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_a_task_cannot_take_signals_from_the_worker(place):
    """C60: its own handler of SIGALRM is a failed attempt, and the worker goes on."""
    result = jobs.handle_alarms.using(max_attempts=1).enqueue()
    after = jobs.note.using(priority=-1).enqueue(str(place / "trace"), "x")
    work = place.work("--drain", "--threads", 1)
    assert work.end() == 0
    assert place.queue().get(result.id).errors[0].error_class == "ValueError"
    assert after.wait(timeout=60).attempts == 1
    assert len(work.children()) == 1


@pytest.mark.parametrize("hold_the_lock", [False, True])
def test_a_job_over_its_hard_limit_has_failed_whatever_it_does(place, configure, hold_the_lock):
    """C16, C60."""
    configure(TIME_LIMIT=1.0)
    if hold_the_lock:
        late = jobs.hog.using(max_attempts=2).enqueue(str(place), "late", 60.0)
    else:
        late = jobs.hold_against_everything.using(max_attempts=2).enqueue(str(place), "late")
    work = place.work("--threads", 2)
    first, *_ = place.until_started("late")
    until(lambda: place.queue().get(late.id).state is JobState.DEAD)
    job = place.queue().get(late.id)
    assert len(place.lines("late.started")) == job.attempts == 2
    assert {error.error_class for error in job.errors} == {"nobroker_django.TimeLimitExceeded"}
    processes = [pid for pid, *_ in map(str.split, place.lines("late.started"))]
    assert [error.worker for error in job.errors] == [f"{socket.gethostname()}:{pid}" for pid in processes]
    assert "hard time limit of 1 s" in (job.last_error or "")
    assert f"worker 1 (pid {first}): job {late.id} ran over its hard time limit of 1 s" in work.text()
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_a_neighbour_that_was_running_keeps_its_attempts(place, configure):
    late = jobs.hold_against_everything.using(max_attempts=1, queue_name="second").enqueue(str(place), "late")
    neighbour = jobs.hold.enqueue(str(place), "neighbour")
    configure(QUEUES={"default": {}, "second": {"TIME_LIMIT": 1.0}})
    work = place.work("--threads", 2)
    place.until_started("late")
    place.until_started("neighbour")
    until(lambda: place.queue("second").get(late.id).state is JobState.DEAD)
    place.until_started("neighbour", 2)
    place.let_go("neighbour")
    assert neighbour.wait(timeout=60).attempts == 1
    assert place.queue().get(neighbour.id).errors == []
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_a_job_over_its_soft_limit_can_clean_up_and_has_failed(place):
    """C60."""
    result = jobs.clean_up.using(max_attempts=1).enqueue(str(place), "job")
    work = place.work("--threads", 1)
    until(lambda: place.queue().get(result.id).state is JobState.DEAD)
    assert len(place.lines("job.cleaned")) == 1
    assert place.lines("job.swallowed") == []
    assert "soft time limit of 0.2 s" in (place.queue().get(result.id).last_error or "")
    assert len(work.children()) == 1  # the process lives
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_coroutine_tasks_of_one_process_run_side_by_side(place):
    results = [jobs.meet.enqueue(str(place), "all", 12) for _ in range(12)]
    work = place.work("--threads", 1, "--async-concurrency", 12)
    for result in results:
        assert result.wait(timeout=60).attempts == 1
        assert place.queue().get(result.id).result == 12
    assert len(set(place.lines("all.started"))) == 1
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_children_without_their_supervisor_extend_their_leases(place, configure):
    configure(VISIBILITY_TIMEOUT=1.0)
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--threads", 1)
    [child] = place.until_started("job")
    os.kill(work.pid, signal.SIGKILL)
    other = place.work("--threads", 1)
    other.until_ready()
    until(lambda: place.queue().get(result.id).extensions >= 3)
    place.let_go("job")
    assert result.wait(timeout=60).attempts == 1
    assert place.lines("job.done") == [str(child)]
    other.signal(signal.SIGTERM)
    assert other.end() == 0


def test_processes_make_room_for_new_ones(place):
    results = [jobs.note.enqueue(str(place / "trace"), str(number)) for number in range(20)]
    work = place.work("--threads", 1, "--max-jobs-per-process", 5)
    for result in results:
        assert result.wait(timeout=60).attempts == 1
    until(lambda: len(work.children()) >= 4)
    assert "was killed" not in work.text()
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert sorted(map(int, place.lines("trace"))) == list(range(20))
