"""Real workers doing real work."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest

from nobroker_django import JobState, compat
from nobroker_django.queues import close_queues

from . import jobs
from .conftest import PATIENCE, ROOT, state_of, until


def test_every_job_runs_exactly_once_in_several_processes_of_several_threads(place):
    held = [jobs.hold.enqueue(str(place), f"held {n}") for n in range(5)]
    half = [jobs.note.enqueue(str(place / "trace"), f"before {n}") for n in range(100)]
    work = place.work("--processes", 2, "--threads", 4)
    work.until_ready(2)
    pids = {place.until_started(f"held {n}")[0] for n in range(5)}
    assert len(pids) == 2
    for n in range(5):
        place.let_go(f"held {n}")
    half += jobs.note.enqueue_many(jobs.note.s(str(place / "trace"), f"after {n}") for n in range(100))
    until(lambda: place.queue().stats().done == 205)
    work.signal(15)
    assert work.end() == 0
    assert Counter(place.lines("trace")) == Counter(
        [f"before {n}" for n in range(100)] + [f"after {n}" for n in range(100)]
    )
    for result in held + half:
        result.refresh()
        assert (result.status, result.attempts) == ("SUCCESSFUL", 1)
    lines = [line for line in work.text().splitlines() if "succeeded (" in line]
    assert len(lines) == 205
    assert {int(line.split("pid ")[1].split(")")[0]) for line in lines} == pids


def test_a_result_comes_back_to_the_caller(place):
    work = place.work()
    assert jobs.note.enqueue(str(place / "trace"), "x").wait(timeout=60).return_value == "x"
    work.until_says("job .* succeeded")


@pytest.mark.skipif(not compat.AVAILABLE, reason="this Django has no task framework")
@pytest.mark.contract("DJ-07")
def test_tasks_of_djangos_decorator_are_found_run_and_announced(place):
    """By real workers, which import a module when they meet the first job of one of its tasks, on the loop too."""
    names = ["note", "note_later", "note_later", "note"]
    jobs = [
        place.queue().enqueue(
            {"task": f"tests.acceptance.django_jobs.{name}", "args": [str(place / f"{number}")], "kwargs": {}}
        )
        for number, name in enumerate(names)
    ]
    assert place.work("--drain", "--processes", 1, "--threads", 1).end() == 0
    assert [place.queue().get(job.id).result for job in jobs] == ["noted", 1, 1, "noted"]
    told = [["NobrokerBackend RUNNING", name.replace("_", " "), "NobrokerBackend SUCCESSFUL"] for name in names]
    # Of the very first job the module with the receivers was imported by the search for its task.
    assert [place.lines(f"{number}") for number in range(4)] == told


def test_drain_runs_what_is_ready_and_what_that_enqueues_but_waits_for_nothing(place, configure):
    configure(BACKOFF={"BASE": 3600})
    jobs.note.using(delay=3600).enqueue(str(place / "trace"), "late")
    jobs.fail.enqueue(str(place / "trace"), "will be retried in an hour")
    jobs.chain.enqueue(str(place / "trace"), 5)
    assert place.work("--drain", "--processes", 2).end() == 0
    assert Counter(place.lines("trace")) == Counter(["failed", *"543210"])
    stats = place.queue().stats()
    assert (stats.done, stats.delayed, stats.ready, stats.leased) == (6, 2, 0, 0)


def test_drain_of_empty_queues_ends_at_once(place):
    assert place.work("--drain").end() == 0


UNHEARD = """
    import django

    django.setup()
    from django.core.management import execute_from_command_line
    from nobroker_django.worker import clerk

    clerk.UNTOLD_SECONDS = 3600.0
    execute_from_command_line(["manage.py", "nobroker_work", "--no-reload", "--processes", "2", "--threads", "1"])
"""


@pytest.mark.contract("WORK-05")
def test_what_was_enqueued_unheard_is_told_to_an_idle_process_by_its_supervisor(place):
    work = place.start([sys.executable, "-c", textwrap.dedent(UNHEARD)])
    work.until_ready(2)
    enqueue = f"""
        from nobroker_django.engine.bell import Bell
        from tests.acceptance import jobs

        Bell.ring = lambda self: None
        jobs.note.enqueue({str(place / "trace")!r}, "x")
    """
    assert place.run(enqueue).returncode == 0
    until(lambda: len(place.lines("trace")) == 1)
    assert place.run(enqueue).returncode == 0  # who was told waits again
    until(lambda: len(place.lines("trace")) == 2)
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def test_max_jobs_counts_the_jobs_of_all_processes(place):
    for n in range(30):
        jobs.note.enqueue(str(place / "trace"), str(n))
    assert place.work("--max-jobs", 7, "--processes", 3, "--threads", 2).end() == 0
    assert len(place.lines("trace")) == 7
    assert (place.queue().stats().done, place.queue().stats().ready) == (7, 23)


def test_max_jobs_waits_for_jobs_that_are_not_there_yet(place):
    work = place.work("--max-jobs", 2)
    work.until_ready()
    jobs.note.enqueue(str(place / "trace"), "1")
    until(lambda: place.lines("trace"))
    jobs.note.enqueue(str(place / "trace"), "2")
    assert work.end() == 0
    assert place.lines("trace") == ["1", "2"]


def test_idle_timeout_ends_a_worker_without_work(place):
    jobs.note.enqueue(str(place / "trace"), "x")
    assert place.work("--idle-timeout", 0.3, "--processes", 2).end() == 0
    assert place.lines("trace") == ["x"]


def test_named_queues_are_served_in_the_given_order_and_unnamed_ones_take_turns(place):
    for n in range(3):
        jobs.note.enqueue(str(place / "trace"), f"default {n}")
        jobs.note.using(queue_name="second").enqueue(str(place / "trace"), f"second {n}")
    assert place.work("--drain", "--threads", 1, "-q", "second", "-q", "default").end() == 0
    assert place.lines("trace") == [f"{name} {n}" for name in ("second", "default") for n in range(3)]
    for n in range(3):
        jobs.note.enqueue(str(place / "turns"), f"default {n}")
        jobs.note.using(queue_name="second").enqueue(str(place / "turns"), f"second {n}")
    assert place.work("--drain", "--threads", 1).end() == 0
    assert place.lines("turns") == [f"{name} {n}" for n in range(3) for name in ("default", "second")]


def test_a_worker_of_one_queue_leaves_the_others_alone(place):
    jobs.note.enqueue(str(place / "trace"), "default")
    jobs.note.using(queue_name="second").enqueue(str(place / "trace"), "second")
    assert place.work("--drain", "-q", "second").end() == 0
    assert place.lines("trace") == ["second"]
    assert place.queue().stats().ready == 1


def test_a_job_that_runs_longer_than_its_lease_is_not_delivered_again(place, configure):
    """C01."""
    configure(VISIBILITY_TIMEOUT=2.0)
    result = jobs.hold.enqueue(str(place), "long")
    own = jobs.hold.using(visibility_timeout=1.0).enqueue(str(place), "own")
    work = place.work("--processes", 2)
    place.until_started("long")
    place.until_started("own")
    first = {one.id: place.queue().get(one.id).lease_deadline for one in (result, own)}
    for one, length in ((result, 2.0), (own, 1.0)):

        def extended(job_id=one.id, length=length):
            return place.queue().get(job_id).lease_deadline > first[job_id] + 1.5 * length

        until(extended)
        job = place.queue().get(one.id)
        assert (job.state, job.attempts) == (JobState.LEASED, 1)
        # Extended by what is needed, not by a full length three times in each: a killed worker's job must come back.
        assert job.lease_deadline < time.time() + 1.1 * length
    place.let_go("long")
    place.let_go("own")
    assert result.wait(timeout=60).attempts == 1
    assert own.wait(timeout=60).attempts == 1
    work.signal(15)
    assert work.end() == 0
    assert len(place.lines("long.started")) == len(place.lines("own.started")) == 1


@pytest.mark.contract("WORK-03")
@pytest.mark.parametrize("how", ["exit", "interrupt", "cancel", "generator"])
def test_what_is_no_exception_is_a_failed_attempt_too_and_the_worker_goes_on(place, how):
    """C32."""
    result = jobs.leave.using(max_attempts=2).enqueue(str(place / "trace"), how)
    jobs.note.using(priority=-1).enqueue(str(place / "after"), "x")
    work = place.work("--threads", 1, "--drain")
    assert work.end() == 0
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 2)
    assert place.lines("trace") == [how, how]
    assert place.lines("after") == ["x"]
    assert len(work.children()) == 1


def test_jobs_that_no_task_here_can_run_stop_nobody(place):
    """C37, C38."""
    place.queue().enqueue({"task": "gone", "args": [], "kwargs": {}})
    place.queue().enqueue("not a task")
    place.queue().enqueue({"task": jobs.note.name, "args": [1, 2, 3, 4], "kwargs": {}}, max_attempts=1)
    jobs.note.enqueue(str(place / "trace"), "x")
    work = place.work("--drain")
    assert work.end() == 0
    assert place.lines("trace") == ["x"]
    stats = place.queue().stats()
    assert (stats.done, stats.delayed, stats.dead) == (1, 1, 2)
    work.until_says("no task 'gone' is known here")
    work.until_says("not a task")


def test_an_error_text_cannot_forge_a_line_of_the_log(place):
    """C35: nor one of a command's output; JSON loses nothing of it."""
    text = "x\r\n2026-01-01T00:00:00Z worker 1: all is well\x1b[2J\x1b]0;title\x07\u202eback\x00"
    result = jobs.fail.using(max_attempts=1, job_id="an\x1b[2J id\n").enqueue(str(place / "trace"), text)
    place.queue().enqueue({"task": "a\x1b[2J\ntask", "args": [], "kwargs": {}})
    work = place.work("--drain")
    assert work.end() == 0
    assert [line for line in work.text().splitlines() if " (pid " not in line] == []
    work.until_says(r"x\\r\\n2026-01-01T00:00:00Z worker 1: all is well\\x1b\[2J")
    commands = ("list", "dlq", "inspect", "stats", "verify")
    shown = [place.manage(f"nobroker_{command}").stdout for command in commands]
    for output in (work.text(), *shown):
        assert all(character.isprintable() for line in output.split("\n") for character in line)
    assert [len(output.splitlines()) for output in shown[:2]] == [2, 1]
    for command in commands[:2]:
        documents = json.loads(place.manage(f"nobroker_{command}", "--json").stdout)["jobs"]
        [document] = [document for document in documents if document["id"] == result.id]
        assert document["errors"][0]["message"] == text


def test_a_tasks_module_that_fails_to_import_is_refused_and_the_jobs_stay(place, configure):
    """C37."""
    jobs.note.enqueue(str(place / "trace"), "x")
    configure(IMPORTS=["tests.acceptance.jobs", "tests.acceptance.no_such_module"])
    work = place.work("--processes", 2)
    assert work.end() == 1
    work.until_says(
        r"ModuleNotFoundError: No module named[\s\S]*"
        r"cannot start: tests\.acceptance\.no_such_module cannot be imported: ModuleNotFoundError: No module named"
    )
    assert place.queue().stats().ready == 1


@pytest.mark.contract("WORK-06")
@pytest.mark.parametrize(
    ("how", "returned"),
    [
        ("stdout", "stdout"),
        ("replace", "replace"),
        ("chdir", "chdir"),
        ("fork", "fork"),
        ("exit handlers", "exit handlers 3"),
        ("raise", "raise 1"),
        ("return", "return 0"),
    ],
)
def test_a_task_cannot_keep_the_worker_from_recording_its_outcome(place, how, returned):
    """C48: also one that changes the working directory."""
    result = jobs.wreck.enqueue(how)
    after = jobs.note.using(priority=-1).enqueue(str(place / "trace"), "x")
    assert place.work("--drain", "--threads", 1).end() == 0
    result.refresh()
    after.refresh()
    assert (result.status, after.status) == ("SUCCESSFUL", "SUCCESSFUL")
    assert result.return_value == returned
    assert (result.attempts, after.attempts) == (1, 1)


@pytest.mark.parametrize("method", ["subprocess", "fork", "spawn", "executor fork", "executor spawn"])
def test_a_task_may_use_processes(place, method):
    """C56."""
    result = jobs.square_elsewhere.enqueue([1, 2, 3], method)
    work = place.work("--drain")
    assert work.end() == 0
    result.refresh()
    assert result.status == "SUCCESSFUL", work.text()
    assert result.return_value == [1, 4, 9]


@pytest.mark.contract("LEASE-06")
@pytest.mark.parametrize("how", ["fork", "subprocess", "multiprocessing"])
@pytest.mark.parametrize("killed", [False, True], ids=["given back", "killed"])
def test_a_process_that_a_task_leaves_behind_holds_neither_lease_nor_lock(place, how, killed):
    """C56: another worker has the job at once, when the first one was stopped or all of it killed."""
    result = jobs.leave_a_process.enqueue(str(place), how)
    work = place.work("--threads", 1, "--grace", 0)
    orphan = place.until_started("orphan")[0]
    try:
        if killed:
            for pid in (work.pid, *work.children()):
                os.kill(pid, signal.SIGKILL)
        else:
            work.signal(signal.SIGTERM)
        assert work.end() == (-signal.SIGKILL if killed else 5)
        until(lambda: all(state_of(pid) in (None, "Z") for pid in work.children()), "all of it is dead")
        assert state_of(orphan) not in (None, "Z")
        assert place.work("--drain").end() == 0
        result.refresh()
        assert (result.status, result.attempts) == ("SUCCESSFUL", 2 if killed else 1)
    finally:
        os.kill(orphan, signal.SIGKILL)


def shell(place, redirection):
    """Run a draining worker under a shell with its output redirected."""
    return subprocess.run(
        ["sh", "-c", f"{sys.executable} -m django nobroker_work --drain --processes 2 {redirection}"],
        cwd=ROOT,
        env=place.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("redirection", "closed"),
    [(">&-", [1]), ("2>&-", [2]), ("<&- >&- 2>&-", [0, 1, 2]), (">/dev/full", []), (">/dev/full 2>/dev/full", [])],
)
def test_a_worker_without_a_usable_output_does_its_work(place, redirection, closed):
    for n in range(10):
        jobs.note.enqueue(str(place / "trace"), str(n))
    standard = jobs.standard_descriptors.enqueue()
    done = shell(place, redirection)
    assert done.returncode == 0, done.stderr
    standard.refresh()
    # Not a file or a pipe of ours: what somebody prints would be written into it.
    assert [standard.return_value[number] for number in closed] == ["/dev/null"] * len(closed)
    assert sorted(place.lines("trace")) == [str(n) for n in range(10)]
    assert place.queue().stats().done == 11


def test_a_worker_whose_reader_has_gone_away_does_its_work(place):
    reading, writing = os.pipe()
    os.close(reading)
    jobs.note.enqueue(str(place / "trace"), "x")
    work = place.work("--drain", stdout=writing, stderr=subprocess.DEVNULL)
    os.close(writing)
    assert work.end() == 0
    assert place.lines("trace") == ["x"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--processes", "0"], "argument --processes: '0' is no whole number above 0"),
        (["--threads", "-1"], "argument --threads: '-1' is no whole number above 0"),
        (["--max-jobs", "many"], "argument --max-jobs: 'many' is no whole number above 0"),
        (["--grace", "x"], "argument --grace: 'x' is no number of seconds, such as 0.5 or 30"),
        (["--idle-timeout", "nan"], "argument --idle-timeout: 'nan' is no number of seconds, such as 0.5 or 30"),
        (["-q", "no"], "there is no queue 'no' in NOBROKER['QUEUES']. Known queues: default, second"),
        (["--reload", "--drain"], "--reload and --drain contradict each other: a drained worker has ended"),
    ],
)
def test_wrong_usage_has_its_exit_code_and_a_sentence(place, arguments, said):
    done = place.manage("nobroker_work", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_other_commands_are_usable_by_scripts(place):
    jobs.note.enqueue(str(place / "trace"), "x")
    done = place.manage("nobroker_stats", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"ready": 1' in done.stdout
    assert place.manage("nobroker_dlq", "--requeue", "nothing").returncode == 1
    assert place.manage("nobroker_dlq", "--requeue").returncode == 2
    assert place.manage("nobroker_compact").returncode == 0
    piped = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m django nobroker_stats 2>&1 >&3 3>&- | head -c 0"],
        cwd=ROOT,
        env=place.environment(),
        pass_fds=(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in piped.stdout + piped.stderr


def test_adding_the_app_is_enough_in_development(tmp_path):
    (tmp_path / "site_settings.py").write_text(
        textwrap.dedent(
            """
            from pathlib import Path
            BASE_DIR = Path(__file__).parent
            DEBUG = True
            SECRET_KEY = "x"
            INSTALLED_APPS = ["shop", "nobroker_django"]
            """
        )
    )
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(
        textwrap.dedent(
            """
            from pathlib import Path
            from nobroker_django import task

            @task
            def leave(name: str) -> None:
                (Path(__file__).parent / name).touch()
            """
        )
    )
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "DJANGO_SETTINGS_MODULE": "site_settings",
    }

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("-c", "import django; django.setup()")
    assert not (tmp_path / ".nobroker").exists()
    run("-c", "import django; django.setup(); from shop.tasks import leave; leave.enqueue('trace')")
    assert (tmp_path / ".nobroker").is_dir()
    output = run("-m", "django", "nobroker_work", "--drain")
    assert (tmp_path / "shop" / "trace").exists()
    assert "shop.tasks.leave succeeded" in output


def damage_the_last_write(place, name):
    """Flip a bit in the last acknowledged job of a queue; the bytes of its log afterwards."""
    log = place.queue(name).path
    close_queues()
    data = bytearray(log.read_bytes())
    data[data.rindex(b'"args"')] ^= 1
    log.write_bytes(data)
    for entry in place.directory.glob(f"queues/{name}.run/*"):
        entry.unlink()
    return data


def test_a_damaged_log_is_not_worked_on_and_has_its_exit_code(place):
    jobs.note.enqueue(str(place / "trace"), "x")
    log = place.queue().path
    data = damage_the_last_write(place, "default")
    work = place.work("--processes", 2, "--queue", "default")
    assert work.end() == 3
    work.until_says("default: this queue is damaged and is not worked on( any more)?: .* is damaged at byte")
    work.until_says("no queue is left to work on")
    assert log.read_bytes() == data
    assert place.lines("trace") == []


@pytest.mark.parametrize("bad", ["default", "second"])
def test_a_damaged_queue_does_not_stop_a_worker_of_several(place, bad):
    good = {"default": "second", "second": "default"}[bad]
    jobs.note.using(queue_name=bad).enqueue(str(place / "trace"), "never")
    jobs.note.using(queue_name=good).enqueue(str(place / "trace"), "first")
    log = place.queue(bad).path
    data = damage_the_last_write(place, bad)
    work = place.work("--processes", 2)
    # Said when it is opened; or, when the one who met it first was somebody else, at the first look.
    work.until_says(f"{bad}: this queue is damaged and is not worked on( any more)?: .* is damaged at byte")
    jobs.note.using(queue_name=good).enqueue(str(place / "trace"), "second")
    until(lambda: sorted(place.lines("trace")) == ["first", "second"])
    work.signal(signal.SIGTERM)
    assert work.end() == 3
    work.until_says(f"damaged, and not worked on: {bad}")
    assert log.read_bytes() == data


def test_a_queue_that_is_found_damaged_during_the_work_is_left_alone(place):
    jobs.note.using(queue_name="second").enqueue(str(place / "trace"), "never")
    jobs.note.enqueue(str(place / "trace"), "first")
    second = place.queue("second")  # stays open: the worker's processes are not the first to open it, and find nothing
    second.release(second.lease())  # the projection shows the job
    data = bytearray(second.path.read_bytes())
    data[data.index(b'"args"')] ^= 1
    second.path.write_bytes(data)
    work = place.work("--drain")
    assert work.end() == 3
    work.until_says("second: this queue is damaged and is not worked on any more: .* is damaged at byte")
    assert place.lines("trace") == ["first"]


def test_on_a_terminal_one_live_line_tells_how_the_work_is_going(place, monkeypatch):
    """What succeeds is counted there; what fails has a line of its own, and no line tears another."""
    for number in range(5):
        jobs.note.enqueue(str(place / "trace"), str(number))
    jobs.fail.using(max_attempts=1).enqueue(str(place / "trace"), "no such address")
    monkeypatch.setenv("TERM", "xterm")
    owner, terminal = pty.openpty()
    work = place.work("--no-reload", stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    while b"5 done \xc2\xb7 1 failed" not in shown:
        assert select.select([owner], [], [], PATIENCE)[0], shown
        shown += os.read(owner, 4096)
    work.signal(signal.SIGTERM)
    while True:
        try:
            if not (data := os.read(owner, 4096)):
                break
        except OSError:  # nobody has the terminal open any more
            break
        shown += data
    assert work.end() == 0
    os.close(owner)
    text = shown.decode()
    assert "succeeded (attempt" not in text
    for line in text.replace("\r\n", "\n").split("\n"):
        seen = line.rpartition("\x1b[K")[2]  # what was there before is erased
        assert seen.count("supervisor (pid") + seen.count("worker 1 (pid") <= 1
    assert "no such address" in text
