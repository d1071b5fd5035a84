"""Worker processes that begin late, never begin, or leave others behind; what is done at their end, and what is said
of jobs that nobody can tell of any more."""

import os
import re
import shutil
import signal
import sys
import textwrap
from typing import Any

import pytest

from nobroker_django import JobState

from . import jobs
from .conftest import until
from .test_work import UNHEARD


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


def test_code_that_breaks_under_a_running_worker_is_tried_again(place, while_importing):
    while_importing("fail")
    work = place.work("--max-jobs-per-process", 1, "--threads", 1)
    work.until_ready()
    (place / "broken").touch()
    jobs.note.enqueue(str(place / "trace"), "before")
    work.until_says(r"cannot start: .*half a deploy[\s\S]* a new one starts in ")
    (place / "broken").unlink()
    work.until_ready(2)
    jobs.note.enqueue(str(place / "trace"), "after")
    until(lambda: place.lines("trace") == ["before", "after"])
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_a_process_that_cannot_begin_does_not_stop_those_that_have(place, while_importing):
    while_importing("one dies")
    work = place.work("--processes", 2)
    work.until_ready(2)  # at the fifth time the second one can
    assert len(place.lines("died")) == 5
    jobs.note.enqueue(str(place / "trace"), "x")
    until(lambda: place.lines("trace"))
    work.signal(signal.SIGTERM)
    assert work.end() == 0


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
    if "--drain" not in arguments:  # which ends by itself
        work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert place.lines("exit.trace") == [str(pid) for pid in work.children()]


@pytest.mark.parametrize("how", ["recycled", "stopped", "stopped twice"])
def test_exit_functions_that_hang_hold_up_nothing_for_long(place, while_importing, monkeypatch, how):
    while_importing("hang")
    work = place.work("--threads", 1, "--max-jobs-per-process", 1, "--grace", 1000)
    work.until_ready()
    if how == "recycled":
        jobs.note.enqueue(str(place / "trace"), "x")
        work.until_ready(2)
    work.signal(signal.SIGTERM)
    if how == "stopped twice":
        work.until_says("stopped: no jobs")
        work.signal(signal.SIGTERM)
    assert work.end() == 0
    work.until_says("functions registered with atexit were still running when the process ended")
    assert "does not react" not in work.text()


def test_exit_functions_are_not_called_while_a_task_runs(place, while_importing, configure):
    """Its lease may be lost by then, so that there is nothing to be given back."""
    while_importing("register")
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--threads", 1, "--grace", 0.2)
    place.until_started("job")
    place.queue().ack(result.id)
    work.signal(signal.SIGTERM)
    work.end()
    assert place.lines("exit.trace") == []


@pytest.mark.contract("WORK-02", "LEASE-06")
def test_a_log_handler_that_takes_long_costs_no_running_job_its_lease(place, configure, monkeypatch):
    """A dead letter is an error, which the project may want to mail."""
    configure(VISIBILITY_TIMEOUT=1.0)
    for name in ("SHOW", "SLOW"):
        monkeypatch.setenv(f"NOBROKER_TESTS_{name}_LOGGING", "yes")
    held = jobs.hold.enqueue(str(place), "held")
    work = place.work("--processes", 2, "--threads", 1)
    place.until_started("held")
    before = place.queue().get(held.id).lease_deadline
    dead = jobs.die.using(max_attempts=1).enqueue(str(place / "deaths"))
    until(lambda: place.lines("handler.started"))
    assert place.queue().get(dead.id).state is JobState.DEAD
    until(lambda: place.queue().get(held.id).lease_deadline > before + 3)
    note = jobs.note.enqueue(str(place / "trace"), "x")
    until(lambda: place.lines("trace"))
    place.let_go("held")
    assert held.wait(timeout=60).attempts == note.wait(timeout=60).attempts == 1
    assert place.lines("handler.ended") == []
    place.let_go("handler")
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert place.lines("handler.ended") == place.lines("handler.started")


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
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    lines = told(work)
    first, second = (f"{level} {result.id} {task.name} default" for level in ("WARNING", "ERROR"))
    assert [line for line in lines if result.id in line.split()] == [f"{first} 1", f"{second} 2"]


@pytest.mark.contract("PROC-03", "WORK-05")
@pytest.mark.parametrize("how", ["removed", "moved away"])
def test_an_idle_worker_follows_a_directory_that_was_replaced(place, how):
    work = place.start([sys.executable, "-c", textwrap.dedent(UNHEARD)])
    work.until_ready(2)
    jobs.note.enqueue(str(place / "trace"), "before")
    until(lambda: place.lines("trace") == ["before"])
    directory = place.queue().dir
    directory.rename(place / "elsewhere")  # first: what is removed file by file may be made again meanwhile
    if how == "removed":
        shutil.rmtree(place / "elsewhere", ignore_errors=True)
    jobs.note.enqueue(str(place / "trace"), "after")
    until(lambda: place.lines("trace") == ["before", "after"])
    assert directory.is_dir()
    work.signal(signal.SIGTERM)
    assert work.end() == 0
