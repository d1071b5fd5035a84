"""Real ``nobroker_work`` processes for a test, and the test's view of their queues."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import Queue
from nobroker_django.queues import get_queue

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait for a condition; returns its value. The time limit is for broken code only."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"never came true: {what or condition}")
        time.sleep(0.01)
    return value


def state_of(pid: int) -> str | None:
    """The kernel's letter for what a process does, "T" for stopped, "Z" for a zombie; None: there is no such one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


class Work:
    """One ``nobroker_work`` with all its processes in a process group of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path, **popen: Any) -> None:
        self.output = output
        with output.open("wb") as stream:
            popen.setdefault("stdout", stream)
            popen.setdefault("stderr", subprocess.STDOUT)
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **popen)

    @property
    def pid(self) -> int:
        """The supervisor."""
        return self.process.pid

    def text(self) -> str:
        return self.output.read_text()

    def children(self) -> list[int]:
        """The processes that have said that they are ready, in that order; also those that have ended."""
        return [int(pid) for pid in re.findall(r"worker \d+ \(pid (\d+)\): ready", self.text())]

    def until_ready(self, count: int = 1) -> list[int]:
        until(lambda: len(self.children()) >= count, f"{count} ready in {self.text()}")
        return self.children()

    def until_says(self, pattern: str) -> re.Match[str]:
        found = until(lambda: re.search(pattern, self.text()), f"{pattern!r} in the output")
        assert isinstance(found, re.Match)
        return found

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """As a terminal does."""
        os.killpg(self.pid, number)

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end:\n{self.text()}") from None


class Place:
    """A directory for traces, the queues in it, and the workers that were started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.works: list[Work] = []
        self.options: dict[str, Any] = {}
        self.database: dict[str, Any] | None = None

    def __str__(self) -> str:
        return str(self.directory)

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def queue(self, name: str = "default") -> Queue:
        return get_queue(name)

    def lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []

    def until_started(self, name: str, times: int = 1) -> list[int]:
        until(lambda: len(self.lines(f"{name}.started")) >= times, f"{name} started {times} times")
        return [int(pid) for pid in self.lines(f"{name}.started")]

    def let_go(self, name: str) -> None:
        (self.directory / f"{name}.go").touch()

    def environment(self) -> dict[str, str]:
        database = {} if self.database is None else {"NOBROKER_TESTS_DATABASE": json.dumps(self.database)}
        return {
            **os.environ,
            **database,
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
            "NOBROKER_TESTS_DIR": str(self.directory),
            "NOBROKER_TESTS_OPTIONS": json.dumps(self.options),
            "PYTHONUNBUFFERED": "",
        }

    def work(self, *arguments: object, **popen: Any) -> Work:
        """Start ``nobroker_work`` with these arguments."""
        command = [sys.executable, "-m", "django", "nobroker_work", *(str(argument) for argument in arguments)]
        return self.start(command, **popen)

    def start(self, command: list[str], **popen: Any) -> Work:
        """Start a command that becomes ``nobroker_work``."""
        work = Work(command, self.environment(), self.directory / f"output{len(self.works)}", **popen)
        self.works.append(work)
        return work

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run Python code, of which Django is set up, in a process of its own to its end."""
        return subprocess.run(
            [sys.executable, "-c", f"import django\ndjango.setup()\n{textwrap.dedent(code)}"],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a management command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )


@pytest.fixture
def place(tmp_path: Path, settings: Any) -> Iterator[Place]:
    """A fresh directory; every process that the test leaves behind is killed at its end."""
    from tests.acceptance import settings as of_the_processes

    made = Place(tmp_path)
    settings.NOBROKER = {**of_the_processes.NOBROKER, "DIR": str(tmp_path / "queues")}
    yield made
    for work in made.works:
        try:
            os.killpg(work.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        work.process.wait()


@pytest.fixture
def on_database(place: Place, configure: Callable[..., None], database: dict[str, Any] | None) -> Callable[..., Place]:
    """A place whose processes have that database, migrated and empty, and these settings."""

    def make(**options: Any) -> Place:
        configure(**options)
        place.database = database
        apps = ["auth", *(["nobroker_outbox"] if options.get("OUTBOX") else [])]
        done = place.run(f"""
            from django.core.management import call_command

            for app in {apps}:
                call_command("migrate", app, verbosity=0)
            call_command("flush", verbosity=0, interactive=False)
        """)
        assert done.returncode == 0, done.stderr
        return place

    return make


@pytest.fixture
def configure(place: Place, settings: Any) -> Callable[..., None]:
    """Change ``NOBROKER`` for the test and for the processes that it starts from then on."""

    def change(**options: Any) -> None:
        place.options.update(options)
        settings.NOBROKER = {**settings.NOBROKER, **options}

    return change
