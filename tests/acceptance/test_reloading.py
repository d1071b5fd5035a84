"""Real workers that start anew when the code of a task changes."""

import signal
from pathlib import Path

import pytest

from nobroker_django import JobState
from nobroker_django.management.commands.nobroker_work import Command

from . import jobs
from .conftest import state_of, until

MODULE = """
from nobroker_django import task

@task(name="changing")
def changing() -> str:
    return {value!r}
"""


class Code:
    """A module with a task, which the test changes."""

    def __init__(self, path):
        self.path = path

    def write(self, text):
        """Whole or not at all, as editors do it."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    def says(self, value):
        self.write(MODULE.format(value=value))


@pytest.fixture
def code(place, configure, monkeypatch):
    made = Code(place / "changing_jobs.py")
    made.says("first")
    configure(IMPORTS=["tests.acceptance.jobs", "changing_jobs"])
    monkeypatch.setenv("PYTHONPATH", str(place))
    # Compiled code is compared by the second and the size: what changes twice in one would be missed.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return made


def result(place):
    """What the task of the module says."""
    job = place.queue().enqueue({"task": "changing", "args": [], "kwargs": {}})
    until(lambda: place.queue().get(job.id).state is JobState.DONE, "done")
    return place.queue().get(job.id).result


def family(pid):
    """The ids of a process, its children and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found, left = [], [pid]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def all_gone(pids):
    return all(state_of(pid) in (None, "Z") for pid in pids)


def test_a_change_of_a_task_is_seen_and_so_is_the_next_one(place, code):
    work = place.work("--reload")
    work.until_ready()
    assert result(place) == "first"
    code.says("second, changed")
    work.until_ready(2)
    assert result(place) == "second, changed"
    code.says("third")  # perhaps before the new watcher looks
    work.until_ready(3)
    assert result(place) == "third"
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_a_job_that_runs_during_the_change_finishes_once(place, code):
    """C51."""
    held = jobs.hold.enqueue(str(place), "job")
    work = place.work("--reload")
    place.until_started("job")
    code.says("second, changed")
    work.until_says("stopping: 1 running")
    place.let_go("job")
    assert held.wait(timeout=60).attempts == 1
    work.until_ready(2)
    assert result(place) == "second, changed"
    assert len(place.lines("job.started")) == len(place.lines("job.done")) == 1
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_a_job_that_does_not_finish_in_time_is_given_back_and_runs_in_the_new_worker(place, code):
    """C51."""
    held = jobs.hold.enqueue(str(place), "job")
    work = place.work("--reload", "--grace", 0.1)
    place.until_started("job")
    code.says("second, changed")
    place.until_started("job", 2)
    place.let_go("job")
    assert held.wait(timeout=60).attempts == 1
    work.signal(signal.SIGTERM)
    assert work.end() == 0


@pytest.mark.parametrize(
    ("send", "number"),
    [
        ("signal", signal.SIGTERM),
        ("signal", signal.SIGHUP),
        ("signal", signal.SIGINT),
        ("signal_group", signal.SIGINT),
    ],
)
def test_a_signal_ends_everything_and_running_jobs_finish(place, code, send, number):
    held = jobs.hold.enqueue(str(place), "job")
    work = place.work("--reload")
    place.until_started("job")
    everybody = family(work.pid)
    assert len(everybody) >= 4
    getattr(work, send)(number)
    work.until_says("stopping: 1 running")
    place.let_go("job")
    assert work.end() == 0
    assert held.wait(timeout=60).attempts == 1
    assert "again" not in work.text()  # the worker got it once
    assert all_gone(everybody)


def test_a_second_signal_gives_running_jobs_back_and_the_exit_code_says_so(place, code):
    held = jobs.hold.enqueue(str(place), "job")
    work = place.work("--reload")
    place.until_started("job")
    everybody = family(work.pid)
    work.signal(signal.SIGINT)
    work.until_says("stopping: 1 running")
    work.signal(signal.SIGINT)
    assert work.end() == 5
    held.refresh()
    assert (held.status, held.attempts) == ("READY", 0)
    assert all_gone(everybody)


@pytest.mark.parametrize("when", ["ready", "starting"])
def test_nothing_is_left_when_the_outer_process_is_killed(place, code, when):
    work = place.work("--reload")
    if when == "ready":
        work.until_ready()
    until(lambda: len(family(work.pid)) >= 3)
    everybody = family(work.pid)
    work.signal(signal.SIGKILL)
    work.process.wait()
    until(lambda: all_gone(everybody))


def test_a_worker_that_has_done_its_work_ends_the_command(place, code):
    jobs.note.enqueue(str(place / "trace"), "x")
    work = place.work("--reload", "--max-jobs", 1)
    assert work.end() == 0
    assert place.lines("trace") == ["x"]


def test_many_changes_during_a_job_leave_one_worker_with_the_last_code(place, code):
    """C51."""
    held = jobs.hold.enqueue(str(place), "job")
    work = place.work("--reload")
    place.until_started("job")
    for number in range(20):
        code.says(f"change {number}")
    work.until_says("stopping: 1 running")
    code.says("the last change")
    place.let_go("job")
    assert held.wait(timeout=60).attempts == 1
    until(lambda: result(place) == "the last change")
    everybody = family(work.pid)
    assert len([pid for pid in work.children() if pid in everybody]) == 1
    assert len(everybody) == 4  # outer, watcher, supervisor, child
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert all_gone(everybody)
    assert len(place.lines("job.started")) == 1


def test_a_syntax_error_waits_for_the_next_change(place, code):
    """C51."""
    work = place.work("--reload")
    work.until_ready()
    code.write("def changing(:")
    work.until_says("SyntaxError")
    work.until_says("the worker could not start; waiting for a change of the code")
    code.says("mended")
    work.until_ready(2)
    assert result(place) == "mended"
    code.write("import no_such_module")
    until(lambda: work.text().count("waiting for a change of the code") == 2)
    assert "No module named 'no_such_module'" in work.text()
    everybody = family(work.pid)
    work.signal(signal.SIGTERM)
    assert work.end() == 1
    assert all_gone(everybody)


def test_a_drained_worker_is_not_started_anew(place):
    done = place.manage("nobroker_work", "--reload", "--drain")
    assert done.returncode == 2
    assert "--reload and --drain contradict each other" in done.stderr


@pytest.mark.parametrize(("options", "reloads"), [((), True), (("--no-reload",), False), (("--max-jobs", 1), True)])
def test_on_with_debug_unless_it_is_switched_off(place, monkeypatch, options, reloads):
    (place / "debug_settings.py").write_text("from tests.acceptance.settings import *\nDEBUG = True\n")
    monkeypatch.setenv("PYTHONPATH", str(place))
    work = place.work("--settings", "debug_settings", *options)
    [child] = work.until_ready()
    assert child in family(work.pid)
    assert (f"supervisor (pid {work.pid})" in work.text()) != reloads
    work.signal(signal.SIGTERM)
    assert work.end() == 0


@pytest.mark.parametrize(
    ("given", "debug", "by_hand", "drain", "reloads"),
    [
        (None, True, True, False, True),
        (None, True, False, False, False),
        (None, True, True, True, False),
        (None, False, True, False, False),
        (True, False, True, False, True),
        (False, True, True, False, False),
    ],
)
def test_when_the_code_is_watched(settings, given, debug, by_hand, drain, reloads):
    settings.DEBUG = debug
    command = Command()
    command._called_from_command_line = by_hand  # type: ignore[attr-defined]
    assert command._reloads({"reload": given, "drain": drain}) is reloads
