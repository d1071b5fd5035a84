"""``nobroker_work --reload``: the worker starts anew when the project's code changes.

Three processes. The *outer* one is the command that was started; it runs no code of the tasks, keeps the two others,
and hands signals and the exit code on. The *watcher* imports what workers import and waits for a change, by Django's
own autoreload. The *worker* is the same command again, a supervisor as without ``--reload``.

Invariant: on a change the worker gets SIGTERM, so running jobs finish or are given back before the new one starts.
When the outer process ends, by whatever cause, the others end too: it waits for them, or they get a signal from the
kernel (Linux). A worker that cannot start (a syntax error in the project) is started again at the next change.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TextIO

import django
from django.utils import autoreload

from nobroker_django.discovery import discover

from .console import Console
from .options import EXIT_REFUSED, EXIT_STOPPED
from .shutdown import STOP_SIGNALS, SignalPipe, wait_readable

PARENT = "NOBROKER_WORK_PARENT"
"""In the environment of the two inner processes: the id of the outer one."""
STARTED = "NOBROKER_WATCH_SINCE"
"""In the watcher's: Unix time from which on a changed file makes the worker's code old."""
EXIT_CHANGED = 3
"""Django's autoreload ends a process with this code when a file has changed."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def is_inner() -> bool:
    """Whether this process is the worker that an outer one has started."""
    return PARENT in os.environ


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send that signal to this process when the outer one ends; if it has ended, end now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(os.environ.pop(PARENT)):
        sys.exit(EXIT_REFUSED)


class Reloader:
    """The outer process. Made and run once, in the main thread of the command."""

    def __init__(self, stream: TextIO | None, verbosity: int = 1) -> None:
        self._console = Console(stream, prefix=f"reloader (pid {os.getpid()})", verbosity=verbosity)
        self._worker: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._code = EXIT_STOPPED
        self._stopping = False

    def run(self) -> int:
        """Keep worker and watcher until the worker has done its work or a signal comes; returns its exit code."""
        signals = SignalPipe((*STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD))
        try:
            while not self._is_over():
                if self._worker is None and self._watcher is None:
                    self._start()
                wait_readable([signals.fd], None)
                for number in signals.read():
                    if number != signal.SIGCHLD:
                        self._stop(number)
        finally:
            self._end_watcher()
            signals.close()
        return self._code

    def _start(self) -> None:
        environment = {**os.environ, PARENT: str(os.getpid())}
        path = os.pathsep.join(directory for directory in sys.path if directory)
        watching = {**environment, "PYTHONPATH": path, STARTED: repr(time.time())}
        self._worker = _run(autoreload.get_child_arguments(), environment)
        self._watcher = _run(
            [sys.executable, "-c", "from nobroker_django.worker.reloading import watch; watch()"], watching
        )

    def _stop(self, number: int) -> None:
        """Hand a signal on; the worker counts them, and ends at once on the second."""
        self._stopping = True
        self._end_watcher()
        if self._worker is not None:
            self._worker.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def _is_over(self) -> bool:
        """Deal with the processes that have ended; whether that was all."""
        if self._worker is not None and (code := self._worker.poll()) is not None:
            self._worker = None
            self._code = code if code >= 0 else 128 - code
            if self._watcher is not None:
                if code != EXIT_REFUSED:
                    return True
                self._console.line("the worker could not start; waiting for a change of the code")
        if self._watcher is not None and (code := self._watcher.poll()) is not None:
            self._watcher = None
            self._end_worker(code)
        return self._stopping and self._worker is None

    def _end_worker(self, code: int) -> None:
        """The watcher has ended: stop the worker in order; it is started anew when it has ended."""
        if code == EXIT_CHANGED:
            self._console.line("the code has changed, the worker starts anew")
        else:
            self._console.warning(f"the watch for changes ended with code {code}; stopping")
            self._stopping = True
        if self._worker is not None:
            self._worker.send_signal(signal.SIGTERM)

    def _end_watcher(self) -> None:
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            self._watcher = None


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A group of its own: what a terminal sends to its foreground group would otherwise reach the worker twice, and two
    # signals end it at once. Out of that group it could not read from the terminal: it would be stopped.
    return subprocess.Popen(command, env=environment, process_group=0, stdin=subprocess.DEVNULL)


def watch() -> NoReturn:
    """The watcher: import what workers import, and end with ``EXIT_CHANGED`` when some of it has changed."""
    die_with_parent(signal.SIGKILL)
    since = float(os.environ.pop(STARTED))
    load = autoreload.check_errors(_load)  # remembers the file of a syntax error, which is then watched too

    def load_and_look() -> None:
        # The worker reports what goes wrong; here it is only a file to be watched.
        with contextlib.suppress(BaseException):
            load()
        # What changed before the reloader has seen a file for the first time is no change to it. Twice: it takes its
        # first look when everything is imported, and then one a second.
        for pause in (0.0, 2.0):
            time.sleep(pause)
            if any(_changed_between(path, since, time.time()) for path in autoreload.iter_all_python_module_files()):
                os._exit(EXIT_CHANGED)

    autoreload.start_django(autoreload.get_reloader(), load_and_look)
    sys.exit(EXIT_CHANGED)


def _load() -> None:
    django.setup()
    discover()


def _changed_between(path: Path, since: float, until: float) -> bool:
    try:
        return since < path.stat().st_mtime <= until
    except OSError:
        return False
