"""What a job meets in its process, and what it leaves to the next one."""

import signal
from typing import Any

import pytest

from . import jobs
from .conftest import until


def outcomes(place, results):
    """Status and value of each, in order."""
    for result in results:
        result.refresh()
    return [(result.status, place.queue().get(result.id).result) for result in results]


@pytest.mark.contract("WORK-06")
@pytest.mark.parametrize("how", ["stop", "exit", "interrupt", "cancel everybody"])
def test_a_coroutine_task_cannot_take_the_event_loop_from_the_others(place, how):
    """C32, C50: each of them has an outcome, and the next ones run in the same process."""
    disturbing = jobs.disturb.using(max_attempts=1).enqueue(str(place), how)
    beside = [jobs.meet.using(max_attempts=1).enqueue(str(place), "beside", 1) for _ in range(5)]
    later = jobs.meet.using(priority=-1).enqueue(str(place), "later", 1)
    work = place.work("--drain", "--threads", 1, "--async-concurrency", 6)
    assert work.end() == 0
    assert place.lines("disturbed") == [how]
    assert {status for status, _ in outcomes(place, [disturbing, *beside])} <= {"SUCCESSFUL", "FAILED"}
    assert outcomes(place, [later]) == [("SUCCESSFUL", 1)]
    assert len(work.children()) == 1


def test_coroutine_tasks_use_the_database_and_enqueue_and_leave_nothing_behind(place):
    """C50."""
    assert place.manage("migrate", "--verbosity", "0").returncode == 0
    one, two, own = (
        jobs.ask_in_many_ways.enqueue(str(place), "one"),
        jobs.ask_in_many_ways.enqueue(str(place), "two"),
        jobs.run_a_loop.enqueue(),
    )
    assert place.work("--drain").end() == 0
    [(_, first), (_, second), (status, count)] = outcomes(place, [one, two, own])
    assert status == "SUCCESSFUL"
    assert first == second == [0, 1, count]
    assert sorted(place.lines("trace")) == ["one async", "one sync", "two async", "two sync"]


PRELOADED = """
    import os
    import sys

    from tests.acceptance import jobs

    trace = {trace!r}
    jobs.note.using(job_id="master").enqueue(trace, "master")  # as AppConfig.ready() may, before the forks
    for generation in range(2):  # the second one: as after HUP
        pids = []
        for child in range(4):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    for number in range(50):
                        jobs.note.enqueue(trace, f"{{generation}} {{child}} {{number}}")
                    code = 0
                finally:
                    os._exit(code)
            pids.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    jobs.note.using(job_id="master").enqueue(trace, "master")
"""


def test_a_web_server_that_loads_the_project_and_then_forks(place):
    """C54: the master has a queue open, its children enqueue beside a worker, and others take their place."""
    work = place.work("--threads", 2)
    done = place.run(PRELOADED.format(trace=str(place / "trace")))
    assert done.returncode == 0, done.stderr
    until(lambda: place.queue().stats().done == 401)
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    expected = [
        f"{generation} {child} {number}" for generation in (0, 1) for child in range(4) for number in range(50)
    ]
    assert sorted(place.lines("trace")) == sorted(["master", *expected])
    assert len({job.id for job in place.queue().list_jobs()}) == 401
    assert not place.queue().recovery.repaired


def test_what_a_task_leaves_to_the_next_one_in_its_process(place):
    """C48: as docs/explanation/limits.md has it; a process for each job is the way out."""
    found = {}
    for isolated in (False, True):
        jobs.leave_things_behind.enqueue(str(place))
        look = jobs.look_around.using(priority=-1).enqueue()
        limit = ("--max-jobs-per-process", 1) if isolated else ()
        assert place.work("--drain", "--threads", 1, "--processes", 1, *limit).end() == 0
        [(status, found[isolated])] = outcomes(place, [look])
        assert status == "SUCCESSFUL"
    assert found[False] == {
        "directory": str(place), "umask": 0o077, "environment": "left", "locale": "C", "filter": True,
        "process": found[False]["process"],
    }  # fmt: skip
    assert found[True]["directory"] != str(place)
    assert found[True]["environment"] is None
    assert not found[True]["filter"]


@pytest.mark.parametrize("age", ["0", "600", "None"])
def test_a_broken_connection_to_the_database_costs_no_later_job(place, monkeypatch, age):
    """C47: with connections that are kept for no time, for some, and for ever."""
    assert place.manage("migrate", "--verbosity", "0").returncode == 0
    (place / "aged_settings.py").write_text(
        "from tests.acceptance.settings import *\n"
        f"DATABASES['default'] |= {{\n"
        f"    'ENGINE': 'tests.acceptance.honest_sqlite', 'CONN_MAX_AGE': {age}, 'CONN_HEALTH_CHECKS': True\n"
        "}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(place))
    broken: list[Any] = [jobs.lose_connection.using(max_attempts=1).enqueue(False)]
    after: list[Any] = [jobs.count_users.enqueue()]
    quiet = jobs.lose_connection.using(max_attempts=1).enqueue(True)
    after.append(jobs.count_users.enqueue())
    broken.append(jobs.lose_connection_in_a_coroutine.using(max_attempts=1).enqueue())
    after.append(jobs.count_users_in_a_coroutine.enqueue())
    after.append(jobs.count_users.enqueue())
    work = place.work("--drain", "--threads", 1, "--settings", "aged_settings")
    assert work.end() == 0
    assert [status for status, _ in outcomes(place, [*broken, quiet])] == ["FAILED", "FAILED", "SUCCESSFUL"]
    assert [status for status, _ in outcomes(place, after)] == ["SUCCESSFUL"] * 4
    assert len(work.children()) == 1
