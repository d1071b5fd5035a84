"""The n-th system call of a real process refused, or its last, by the kernel's own hand: ``strace -e inject``.

What ``test_system_calls`` does through the engine's ``Files`` is done here below it, SQLite's calls included.
"""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from nobroker_django import Queue

PROGRAM = """
import sys
from nobroker_django import NobrokerError, Queue

try:
    with Queue(sys.argv[1], lock_timeout=2.0) as queue:
        for key in ("a", "b"):
            try:
                queue.enqueue({"k": key})
                print("stored", key, flush=True)
            except NobrokerError as error:
                print({None: "unknown", False: "refused", True: "stored"}[error.stored], key, flush=True)
        try:
            for job in queue.lease(1):
                queue.ack(job)
                print("done", job.payload["k"], flush=True)
            queue.compact()
        except NobrokerError as error:
            print("error", type(error).__name__, flush=True)
except NobrokerError as error:
    print("error", type(error).__name__, flush=True)
print("ended", flush=True)
"""


@cache
def why_not() -> str:
    """Why strace cannot be used here; empty when it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, text=True)
    return f"ptrace is refused: {tried.stderr.strip()}" if tried.returncode else ""


def run_refused(directory: Path, call: str, how: str, number: int) -> tuple[list[list[str]], bool, str]:
    """Run the program; what it said, whether the call was met, and its stderr."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    with Queue(directory) as queue:
        queue.enqueue({"k": "first"})
    trace = directory.parent / "trace"
    command = [
        *("strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={call}"),
        *("-e", f"inject={call}:{how}:when={number}", sys.executable, "-c", PROGRAM, str(directory)),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    met = "INJECTED" in trace.read_text() or "killed by" in trace.read_text()
    return [line.split() for line in ran.stdout.splitlines()], met, ran.stderr


def check(directory: Path, said: list[list[str]]) -> None:
    """What was said holds, without repair."""
    with Queue(directory) as queue:
        shown = {job.payload["k"]: job.state.value for job in queue.list_jobs()}
        assert "first" in shown or ["done", "first"] in said, (said, shown)
        for word, key in (line for line in said if len(line) == 2):
            if word == "stored":
                assert key in shown, (said, shown)
            elif word == "refused":
                assert key not in shown, (said, shown)
            elif word == "done":
                assert shown.get(key, "done") == "done", (said, shown)
        assert len(queue.list_jobs()) == len(shown)
        queue.enqueue({"k": "after"})
    assert not list(directory.glob("*.tmp"))


CALLS = {
    "pwrite64": ("error=EIO", "error=ENOSPC", "error=EINTR", "signal=KILL"),
    "fdatasync": ("error=EIO", "error=ENOSPC", "signal=KILL"),
    "fsync": ("error=EIO", "signal=KILL"),
    "ftruncate": ("error=EIO", "signal=KILL"),
    "fallocate": ("error=ENOSPC", "signal=KILL"),
    "rename": ("error=EIO", "error=ENOSPC", "signal=KILL"),
}


def sweep(directory: Path, call: str, how: str, numbers: range) -> int:
    """Until n runs out, or through ``numbers``; how many calls were met."""
    if reason := why_not():
        pytest.skip(reason)
    count = 0
    for number in numbers:
        said, met, errors = run_refused(directory / "queue", call, how, number)
        if not met:
            break
        count += 1
        assert how == "signal=KILL" or said[-1] == ["ended"], (call, how, number, said, errors)
        try:
            check(directory / "queue", said)
        except Exception as error:
            raise AssertionError(f"{call} {number} {how}: {said}: {error!r}") from error
    return count


@pytest.mark.contract("API-03", "ENQ-08", "LOG-06", "LOG-09")
@pytest.mark.parametrize(
    ("call", "how"), [("fdatasync", "error=EIO"), ("pwrite64", "error=ENOSPC"), ("rename", "signal=KILL")]
)
def test_a_real_call_refused(fast_path: Path, call: str, how: str):
    assert sweep(fast_path, call, how, range(1, 3)) == 2 or call == "rename"


@pytest.mark.long
@pytest.mark.contract("API-03", "ENQ-08", "LOG-06", "LOG-09", "COMP-02")
@pytest.mark.parametrize(("call", "how"), [(call, how) for call, hows in CALLS.items() for how in hows])
def test_every_real_call_refused(fast_path: Path, call: str, how: str):
    print(f"{call} {how}: {sweep(fast_path, call, how, range(1, 200))} calls")
