"""The processes of the demo: started here, logged to a file each, and ended here, whatever happens.

Invariant: after `close()` nothing that `start()` began is alive. Only processes started here are ever signalled.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PROJECT = Path(__file__).resolve().parent.parent.parent
COMMAND_TIMEOUT = 30.0  # seconds for a command that runs to its end
SERVER_TIMEOUT = 15.0  # seconds until the web server answers
GRACE = 8.0  # seconds between asking a process to stop and making it


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Processes:
    """Runs `manage.py` commands against one data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True)
        self.environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "photosite.demo_settings",
            "PHOTO_ALBUM_DATA": str(directory),
            "PYTHONUNBUFFERED": "1",  # the address of the server is read from its log
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; its output and exit code are the caller's to judge."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
        )

    def must_run(self, *arguments: str) -> str:
        """Run one command that has to succeed and return what it printed."""
        done = self.run(*arguments)
        if done.returncode != 0:
            raise DemoError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command that stays; what it prints goes to the log of that name."""
        with self.log(name).open("ab") as log:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops its processes one by one.
            process = subprocess.Popen(
                self.command(*arguments),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def start_site(self) -> str:
        """Serve the site on a free port of the loopback interface and return its address."""
        process = self.start("site", "runserver", "--noreload", "127.0.0.1:0")
        deadline = time.monotonic() + SERVER_TIMEOUT
        while time.monotonic() < deadline and process.poll() is None:
            if found := re.search(rb"http://127\.0\.0\.1:[1-9]\d*", self.log("site").read_bytes()):
                return found[0].decode()
            time.sleep(0.02)
        raise DemoError(f"the web server did not start:\n{self.tail('site')}")

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """Ask a process to stop, wait, and return its exit code (negative: the signal that ended it)."""
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        self._kill(process)
        return process.returncode

    def close(self) -> None:
        """End everything that is still there, the last started first."""
        try:
            for process in reversed(self._started.copy()):
                self.stop(process)
        finally:  # an impatient second Ctrl-C
            for process in self._started.copy():
                self._kill(process)

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a log."""
        path = self.log(name)
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def log(self, name: str) -> Path:
        """The log file of one process."""
        return self.logs / f"{name}.log"

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """The command line of a management command, with the interpreter that runs the demo."""
        return [sys.executable, str(PROJECT / "manage.py"), *arguments]

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and what is left in its session (a supervisor that has to be killed leaves its children)."""
        if process in self._started:
            self._started.remove(process)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
