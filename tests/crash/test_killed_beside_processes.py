"""The same as ``test_killed_beside_producers`` with real processes: the victim, two producers, and the one that looks.

Killed through the engine's ``Files``, and by ``strace`` at the calls of the system themselves, SQLite's included.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from nobroker_django import CorruptLogError, Queue
from tests.crash.test_killed_beside_producers import (
    old_log_unlinked_before_the_pointer,
    pointer_before_the_first_log,
    pointer_before_the_name_of_the_new_log,
)
from tests.crash.test_strace import why_not
from tests.support.crashing import drawn
from tests.support.faulty import Call, Dying
from tests.support.procs import Child, Diary, wait_until
from tests.support.scripts import clock
from tests.support.storm import check, open_queue, producer
from tests.support.version1 import fill_with_keys
from tests.support.victims import PROTOCOLS, check_live_generation

pytestmark = pytest.mark.contract("LOG-03", "LOG-05", "LOG-06", "LOG-10", "ENQ-01", "COMP-02", "COMP-03", "PROC-01")
NEVER = 1 << 30


class GateFiles(Dying):
    """Lets the producers go at one call, and ends the process at another one, or in the middle of it."""

    def __init__(self, gate: int, go_at: int, at: int, *, half: bool) -> None:
        super().__init__(at, half=half)
        self._gate, self._go_at, self._calls = gate, go_at, 0

    def before(self, call: Call) -> Call:
        if self._calls == self._go_at:
            os.write(self._gate, b"go")
        self._calls += 1
        return super().before(call)


@dataclass
class Scene:
    """A directory with what the victim finds, and the pipes: one lets the victim go, one the producers."""

    directory: Path
    diary: Diary
    errors: Diary
    what: str
    victim: tuple[int, int] = field(default_factory=os.pipe)
    producers: tuple[int, int] = field(default_factory=os.pipe)

    def __post_init__(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.before: dict[str, tuple[str, int]] = {}
        if self.what == "conversion":
            self.before = fill_with_keys(self.directory, clock)
        elif self.what == "compaction":
            with open_queue(self.directory) as queue:
                queue.enqueue_many([{"k": f"old{number}"} for number in range(20)])
                jobs = queue.lease(6, visibility_timeout=1e6)
                queue.ack_many(jobs[:2])
                queue.nack(jobs[2], error="no")
                queue.bury(jobs[3], error="no")
                self.before = {job.payload["k"]: (job.state.value, job.attempts) for job in queue.list_jobs()}

    def run_victim(self, go_at: int, at: int, half: bool) -> None:
        os.close(self.producers[0])
        os.read(self.victim[0], 1)
        files = GateFiles(self.producers[1], go_at, at, half=half)
        with open_queue(self.directory, files=files) as queue:
            if self.what == "compaction":
                queue.compact()
            queue.enqueue({"k": f"{os.getpid()}-v-0-0"})
            self.diary.write("E", f"{os.getpid()}-v-0-0")

    def run_producer(self, seed: str) -> None:
        os.close(self.producers[1])
        os.read(self.producers[0], 1)  # also when the victim is gone
        producer(self.directory, self.diary, seed)

    def play(self, go_at: int, at: int = NEVER, *, half: bool = False, traced: tuple[str, int] | None = None) -> int:
        """The victim's exit code, after all is checked.

        Args:
            traced: the system call at which ``strace`` kills it, and its number.
        """
        victim = Child(self.run_victim, go_at, at, half, errors=self.errors)
        others = [Child(self.run_producer, f"{at} {number}", errors=self.errors) for number in range(2)]
        for fd in (*self.producers, self.victim[0]):
            os.close(fd)
        try:
            if traced is None:
                os.write(self.victim[1], b"x")
                code = victim.wait()
            else:
                code = self._wait_traced(victim, *traced)
            size = self.diary.size()
            wait_until(lambda: self.diary.size() > size + 100 or self.errors.size() > 0, "jobs")
        finally:
            os.close(self.victim[1])
            for child in (victim, *others):
                child.kill()
        assert not self.errors.size(), self.errors.path.read_text()
        check(self.directory, self.diary)
        with open_queue(self.directory) as queue:
            self._check_old(queue)
            check_live_generation(queue)
        return code

    def _wait_traced(self, victim: Child, call: str, number: int) -> int:
        command = [
            "strace",
            "-o",
            "/dev/null",
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:signal=KILL:when={number}",
        ]
        tracer = subprocess.Popen([*command, "-p", str(victim.pid)], stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        assert "attached" in said, said
        os.write(self.victim[1], b"x")
        code = victim.wait()
        tracer.communicate(timeout=60)
        return code

    def _check_old(self, queue: Queue) -> None:
        jobs = queue.list_jobs()
        shown = {job.payload["k"]: (job.state.value, job.attempts) for job in jobs if job.payload["k"] in self.before}
        assert shown == self.before
        assert [job.payload["k"] for job in jobs][: len(shown)] == list(self.before)


@pytest.fixture
def stage(fast_path: Path) -> Iterator[tuple[Path, Diary, Diary]]:
    """Where it happens, what was done, what went wrong."""
    errors = Diary(fast_path / "errors")
    yield fast_path / "queue", Diary(fast_path / "diary"), errors
    errors.close()


def play(stage: tuple[Path, Diary, Diary], what: str, go_at: int, **how: object) -> int:
    directory, diary, errors = stage
    diary.path.write_text("")
    return Scene(directory, diary, errors, what).play(go_at, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("what", PROTOCOLS)
def test_killed_at_a_call(stage: tuple[Path, Diary, Diary], what: str, half: bool):
    """The producers begin when the victim is half way there."""
    step = 17
    at = drawn((what, half)).randrange(step)
    while play(stage, what, at // 2, at=at, half=half) == Dying.EXIT_CODE:
        at += step
    assert at > 3 * step


@pytest.mark.long
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("what", PROTOCOLS)
def test_killed_at_every_call(stage: tuple[Path, Diary, Diary], what: str, half: bool):
    calls = next(at for at in count() if play(stage, what, at // 2, at=at, half=half) != Dying.EXIT_CODE)
    print(f"{what}: killed at each of {calls} calls")
    assert calls > 50


@cache
def why_not_attached() -> str:
    """Why strace cannot be attached to a process that runs already; empty when it can."""
    if reason := why_not():
        return reason
    sleeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    command = ["strace", "-o", "/dev/null", "-p", str(sleeper.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    sleeper.communicate()
    tracer.communicate()
    return "" if "attached" in said else f"strace cannot be attached here: {said.strip()}"


# What the engine and SQLite ask of the system about files; reading a clock or memory changes nothing for others.
CALLS = (
    *("openat", "close", "pread64", "pwrite64", "write", "fdatasync", "fsync", "ftruncate", "fallocate"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "linkat", "flock", "fcntl", "statx"),
    *("newfstatat", "fstat", "fchmod", "sync_file_range", "getdents64", "lseek", "mmap", "munmap"),
)


def killed_by_strace(stage: tuple[Path, Diary, Diary], what: str, call: str, numbers: Iterator[int]) -> int:
    """Killed at these calls, until it has no such one; how often."""
    rng = drawn((what, call))
    for times, number in enumerate(numbers):
        code = play(stage, what, rng.randint(20, 60), traced=(call, number))
        if code != -signal.SIGKILL:
            assert code == 0
            return times
    raise AssertionError("the numbers have run out")


@pytest.mark.parametrize("what", PROTOCOLS)
@pytest.mark.parametrize(("call", "step"), [("pwrite64", 11), ("rename", 1), ("renameat", 1), ("flock", 3)])
def test_killed_at_a_real_call(stage: tuple[Path, Diary, Diary], what: str, call: str, step: int):
    if reason := why_not_attached():
        pytest.skip(reason)
    times = killed_by_strace(stage, what, call, count(1, step))
    assert times or call.startswith("rename")


@pytest.mark.long
@pytest.mark.parametrize("what", PROTOCOLS)
def test_killed_at_every_real_call(stage: tuple[Path, Diary, Diary], what: str):
    if reason := why_not_attached():
        pytest.skip(reason)
    met = {call: killed_by_strace(stage, what, call, count(1)) for call in CALLS}
    print(f"{what}: killed at each of {sum(met.values())} calls of the system: {met}")
    assert sum(met.values()) > 100


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (pointer_before_the_first_log, "creation"),
        (pointer_before_the_name_of_the_new_log, "conversion"),
        (old_log_unlinked_before_the_pointer, "compaction"),
    ],
)
def test_that_finds(
    stage: tuple[Path, Diary, Diary], monkeypatch: pytest.MonkeyPatch, plant: Callable[..., None], what: str
):
    """Killed at the call that gives a log or the pointer its name."""
    if reason := why_not_attached():
        pytest.skip(reason)
    plant(monkeypatch)
    with pytest.raises((CorruptLogError, AssertionError), match="names generation"):
        for number in count(1):
            assert play(stage, what, NEVER, traced=("renameat", number)) != 0, "nothing found"
    stage[2].path.write_text("")
