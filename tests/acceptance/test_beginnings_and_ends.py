"""Worker processes that begin late, never begin, or leave others behind; what is done at their end, and what is said
of jobs that nobody can tell of any more."""

import logging
import os
import re
import shutil
import signal
from typing import Any

import pytest

from nobroker_django import JobState

from . import jobs
from .conftest import until


@pytest.fixture
def while_importing(place: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is to happen while a worker process imports the project's tasks."""

    def choose(what: str) -> None:
        monkeypatch.setenv("NOBROKER_TESTS_IMPORTS", "tests.acceptance.importing")
        monkeypatch.setenv("NOBROKER_TESTS_WHILE_IMPORTING", what)

    return choose


@pytest.mark.contract("WORK-01")
@pytest.mark.parametrize("send", ["signal", "signal_group"], ids=["the supervisor", "the whole group"])
def test_a_process_that_was_told_to_stop_while_it_began_leases_nothing(place, while_importing, send):
    while_importing("wait")
    result = jobs.note.enqueue(str(place / "trace"), "x")
    work = place.work("--threads", 2)
    until(lambda: place.lines("importing.started"))
    getattr(work, send)(signal.SIGTERM)
    work.until_says("received SIGTERM")
    place.let_go("importing")
    assert work.end() == 0
    result.refresh()
    assert (result.status, result.attempts, place.lines("trace")) == ("READY", 0, [])


def test_a_process_whose_supervisor_was_killed_while_it_began_leases_nothing(place, while_importing):
    while_importing("wait")
    result = jobs.note.enqueue(str(place / "trace"), "x")
    work = place.work()
    (child,) = until(lambda: place.lines("importing.started"))
    os.kill(work.pid, signal.SIGKILL)
    work.process.wait()
    place.let_go("importing")
    until(lambda: not os.path.exists(f"/proc/{child}"))
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)


@pytest.mark.parametrize(
    ("what", "how"), [("exit", "cannot start: .*importing.*SystemExit: 3"), ("die", "ended with code 9")]
)
@pytest.mark.parametrize("arguments", [(), ("--drain",)], ids=["for ever", "drain"])
def test_a_worker_whose_processes_cannot_begin_ends(place, while_importing, what, how, arguments):
    while_importing(what)
    result = jobs.note.enqueue(str(place / "trace"), "x")
    work = place.work(*arguments)
    assert work.end() == 1
    assert re.search(how, work.text())
    assert "cannot" in work.text()
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)


@pytest.mark.parametrize("arguments", [("--drain",), ("--max-jobs", 1), ("--idle-timeout", 0.1)])
def test_a_process_that_a_task_leaves_behind_holds_up_no_end(place, arguments):
    """PROC-02: neither what it inherited nor that it lives on."""
    jobs.leave_behind.enqueue(str(place))
    work = place.work(*arguments)
    assert work.end() == 0
    (pid,) = place.lines("behind")
    os.kill(int(pid), signal.SIGKILL)


def test_a_process_that_a_task_leaves_behind_holds_up_neither_recycling_nor_a_stop(place):
    jobs.leave_behind.enqueue(str(place))
    work = place.work("--max-jobs-per-process", 1, "--threads", 1, "--grace", 1000)
    work.until_ready(2)
    jobs.leave_behind.enqueue(str(place))
    work.until_ready(3)
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    for pid in place.lines("behind"):
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("arguments", [("--drain",), ("--max-jobs-per-process", 1)])
def test_exit_functions_of_a_process_are_called_at_its_end(place, while_importing, arguments):
    """Those that it has registered itself; of its parent's, which it was forked from, none."""
    while_importing("register")
    jobs.note.enqueue(str(place / "trace"), "x")
    work = place.work("--threads", 1, *arguments)
    until(lambda: place.lines("exit.trace"))
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert place.lines("exit.trace") == [str(pid) for pid in work.children()]


def told(work: Any) -> list[str]:
    """What the project's logging was told of jobs."""
    return re.findall(r"^(\w+ \S+ .*) \|", work.text(), re.MULTILINE)


@pytest.mark.parametrize("kind", ["killed", "over its time"])
def test_a_dead_letter_of_which_no_process_can_tell_is_an_error_in_the_projects_logging(
    place, configure, monkeypatch, kind
):
    configure(TIME_LIMIT=1.0)
    monkeypatch.setenv("NOBROKER_TESTS_SHOW_LOGGING", "yes")
    task = jobs.die if kind == "killed" else jobs.hold
    arguments = (str(place / "deaths"),) if kind == "killed" else (str(place), "late")
    result = task.using(max_attempts=2).enqueue(*arguments)
    work = place.work("--threads", 1)
    until(lambda: place.queue().get(result.id).state is JobState.DEAD)
    work.until_says("is now a dead letter")
    lines = told(work)
    first, second = (f"{level} {result.id} {task.name} default" for level in ("WARNING", "ERROR"))
    assert [line for line in lines if result.id in line.split()] == [f"{first} 1", f"{second} 2"]
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_the_end_of_a_lease_is_told(queue_dir, caplog):
    """By whoever leases next."""
    from nobroker_django import BackoffPolicy, Queue

    now = [1000.0]
    with Queue(queue_dir, clock=lambda: now[0], max_attempts=2, backoff=BackoffPolicy(base=0.0)) as queue:
        queue.enqueue(1, job_id="job")
        for _ in range(3):
            queue.lease(1)
            now[0] += 1000
    told = [(record.levelno, record.getMessage()) for record in caplog.records]
    reason = "lease expired: the job was neither finished nor extended before its deadline"
    assert told == [
        (logging.WARNING, f"job job failed (attempt 1 of 2): {reason}"),
        (logging.ERROR, f"job job failed (attempt 2 of 2) and is now a dead letter: {reason}"),
    ]


@pytest.mark.contract("PROC-03", "WORK-05")
@pytest.mark.parametrize("how", ["removed", "moved away"])
def test_an_idle_worker_follows_a_directory_that_was_replaced(place, how):
    work = place.work("--processes", 2)
    work.until_ready(2)
    jobs.note.enqueue(str(place / "trace"), "before")
    until(lambda: place.lines("trace") == ["before"])
    directory = place.queue().dir
    if how == "removed":
        shutil.rmtree(directory)
    else:
        directory.rename(place / "elsewhere")
    jobs.note.enqueue(str(place / "trace"), "after")
    until(lambda: place.lines("trace") == ["before", "after"])
    assert directory.is_dir()
    work.signal(signal.SIGTERM)
    assert work.end() == 0
