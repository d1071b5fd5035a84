"""The command as a process of its own: exit codes, signals, pipes, other users, and no Django."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from nobroker_django import Queue
from tests.support.procs import wait_until

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-W", "error", "-m", "nobroker_django"]
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
without_setpriv = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root passes every permission check"
)


def run(*arguments, env=ENVIRONMENT):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


MANY = """
import contextlib, io, json, sys
from nobroker_django.cli.main import main
ended = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    ended.append([arguments, code, out.getvalue(), err.getvalue()])
print(json.dumps(ended))
print(sorted(name for name in sys.modules if name.split(".")[0] in ("django", "asgiref")), file=sys.stderr)
"""


def run_many(directory, commands, *, powerless=False, path=""):
    """Run commands one after the other in one process; arguments, code, standard output and error of each."""
    prefix = WITHOUT_CAPABILITIES if powerless and os.geteuid() == 0 else []
    done = subprocess.run(
        [
            *prefix,
            sys.executable,
            "-W",
            "error",
            "-c",
            MANY,
            json.dumps([["-d", str(directory), *c] for c in commands]),
        ],
        cwd=ROOT,
        env={**ENVIRONMENT, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]\n", "Django was imported"
    return [(arguments[2:], *rest) for arguments, *rest in json.loads(done.stdout)]


@pytest.fixture
def read_only(queue_dir):
    """Make the directory read-only; it becomes writable again at the end."""

    def change(directory_mode, file_mode):
        for path in [queue_dir, *queue_dir.rglob("*")]:
            path.chmod(directory_mode if path.is_dir() else file_mode)

    yield lambda: change(0o555, 0o444)
    change(0o755, 0o644)


def fill(directory):
    """A queue with something in each state, left in order."""
    with Queue(directory, max_attempts=1, retention=1000) as queue:
        queue.enqueue_many(["done", "dead", "leased", "ready"])
        done, dead, _ = queue.lease(3)
        queue.ack(done)
        queue.nack(dead, error="went wrong")


@pytest.mark.contract("API-02")
def test_no_command_needs_or_imports_django(queue_dir, tmp_path):
    (tmp_path / "jobs.py").write_text("def handle(job):\n    assert job.payload == 1\n")
    commands = [
        ["enqueue", "1", "--job-id", "one"],
        *(["stats"], ["list"], ["lease"], ["nack", "one", "--delay", "0"]),
        ["work", "jobs:handle", "--max-jobs", "1"],
        *(["enqueue", "2", "--job-id", "two"], ["lease"], ["ack", "two"]),
        *(["dlq"], ["inspect"], ["recover"], ["verify"], ["compact"], ["purge", "--yes"]),
    ]
    for arguments, code, _, err in run_many(queue_dir, commands, path=tmp_path):
        assert (code, err) == (0, ""), arguments


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["stats"], 0), (["ack", "nothing"], 1), (["nothing"], 2), (["purge"], 1), (["dlq", "--requeue"], 2)],
)
def test_the_exit_code_is_that_of_the_process(queue_dir, arguments, code):
    with Queue(queue_dir) as queue:
        queue.enqueue(1)
    done = run("-d", queue_dir, *arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) is (code != 0)


def test_damage_ends_with_3(queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue("x" * 100)
        log = queue.path
    data = bytearray(log.read_bytes())
    data[-50] ^= 1
    log.write_bytes(data)
    assert run("-d", queue_dir, "recover").returncode == 3


def test_a_reader_that_has_enough_is_no_error(queue_dir):
    with Queue(queue_dir, fsync=False) as queue:
        queue.enqueue_many(["x" * 200] * 3000)
    for command in ("inspect", "list --limit 3000"):
        done = subprocess.run(
            f"{' '.join(COMMAND)} -d {queue_dir} {command} | head -n 3; echo ${{PIPESTATUS[0]}}",
            cwd=ROOT,
            env=ENVIRONMENT,
            shell=True,
            executable="/bin/bash",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == 4
        assert done.stdout.splitlines()[-1] == "0"


def test_without_standard_streams_the_command_still_does_its_work(queue_dir):
    code = subprocess.run(
        f"{' '.join(COMMAND)} -d {queue_dir} enqueue 1 >&- 2>&- <&-",
        cwd=ROOT,
        env=ENVIRONMENT,
        shell=True,
        timeout=60,
        check=False,
    ).returncode
    assert code == 0
    with Queue(queue_dir) as queue:
        assert queue.stats().ready == 1


def test_output_that_cannot_be_encoded_is_escaped(queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue({"name": "é😀"})
    done = run("-d", queue_dir, "list", env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert r'{"name": "\xe9\U0001f600"}' in done.stdout


def test_a_signal_ends_work_after_the_running_job(queue_dir, tmp_path):
    (tmp_path / "jobs.py").write_text(
        "import pathlib, signal, time\n"
        "def handle(job):\n"
        f"    pathlib.Path({str(tmp_path / 'started')!r}).touch()\n"
        "    while signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # the worker has not heard it yet\n"
        "        time.sleep(0.01)\n"
    )
    with Queue(queue_dir) as queue:
        queue.enqueue_many([1, 2])
        with subprocess.Popen(
            [*COMMAND, "-d", str(queue_dir), "work", "jobs:handle", "--json"],
            cwd=ROOT,
            env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            wait_until((tmp_path / "started").exists, "the first job")
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert json.loads(out)["succeeded"] == 1
        assert queue.stats().ready == 1


LOOKING = [[command, "--json"] for command in ("stats", "list", "dlq", "inspect", "recover", "verify")]


def tree(directory):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [directory, *directory.rglob("*")]}


@without_setpriv
@pytest.mark.contract("LOG-08")
@pytest.mark.parametrize("in_use", [False, True], ids=["at-rest", "in-use"])
def test_looking_works_in_a_directory_that_one_may_only_read(queue_dir, read_only, in_use):
    """C78."""
    fill(queue_dir)
    with ExitStack() as stack:
        if in_use:
            stack.enter_context(Queue(queue_dir)).enqueue("late")
        read_only()
        before = tree(queue_dir)
        for arguments, code, out, err in run_many(queue_dir, LOOKING, powerless=True):
            assert (code, err) == (0, ""), arguments
            if "stats" in arguments:
                [stats] = json.loads(out)["queues"]
                assert (stats["ready"], stats["leased"], stats["done"], stats["dead"]) == (1 + in_use, 1, 1, 1)
        assert tree(queue_dir) == before
        queue_dir.chmod(0o755)


@pytest.mark.contract("LOG-08")
def test_looking_waits_for_no_writer(queue_dir):
    fill(queue_dir)
    with Queue(queue_dir) as queue, queue._session.locked():
        for arguments, code, _, err in run_many(queue_dir, LOOKING):
            assert (code, err) == (0, ""), arguments


@without_setpriv
def test_changing_what_one_may_only_read_is_refused_with_a_sentence(queue_dir, read_only):
    fill(queue_dir)
    read_only()
    before = tree(queue_dir)
    commands = [
        ["enqueue", "1"],
        ["ack", "x"],
        ["compact"],
        ["dlq", "--requeue", "--all", "--yes"],
        ["purge", "--yes"],
    ]
    for arguments, code, _, err in run_many(queue_dir, commands, powerless=True):
        assert (code, err.count("\n")) == (1, 1), arguments
        assert "Permission denied" in err
    assert tree(queue_dir) == before


@without_setpriv
def test_what_one_may_not_read_is_refused_with_a_sentence(queue_dir, read_only):
    fill(queue_dir)
    (queue_dir / "default.000001.log").chmod(0)
    for arguments, code, _, err in run_many(queue_dir, LOOKING, powerless=True):
        assert (code, err.count("\n")) == (1, 1), arguments
        assert "Permission denied" in err
