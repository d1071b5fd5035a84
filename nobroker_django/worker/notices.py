"""What a child tells its supervisor beside the log: which running job may not run for longer than how long.

Invariant: the supervisor knows of a job's time limit before the job runs, and needs no answer of the child to enforce
it: a task that holds the interpreter's lock in C code cannot be asked. Lines of JSON in a pipe; each is shorter than
what a pipe takes in one piece, so those of several threads do not mix.
"""

from __future__ import annotations

import os

import msgspec

from .shutdown import read_available


class Notice(msgspec.Struct, omit_defaults=True):
    """A job with a time limit begins, or (without ``seconds``) has ended. ``token`` is that of its lease.

    Without one, the process has started and begins to work.
    """

    token: str = ""
    queue: str = ""
    job_id: str = ""
    seconds: float | None = None


class Notices:
    """The child's end of the pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def ready(self) -> None:
        """The process has started."""
        self._send(Notice())

    def begins(self, queue: str, job_id: str, token: str, seconds: float) -> None:
        """The job is about to run, for so long at the most."""
        self._send(Notice(token, queue, job_id, seconds))

    def ended(self, token: str) -> None:
        """The job has ended by itself."""
        self._send(Notice(token))

    def _send(self, notice: Notice) -> None:
        try:
            os.write(self._fd, msgspec.json.encode(notice) + b"\n")
        except OSError:
            pass  # the supervisor is gone: nobody enforces hard limits any more, and this process is ending


class Reader:
    """The supervisor's end: non-blocking."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._rest = b""

    def read(self) -> list[Notice]:
        """The notices since the last look."""
        found = []
        while data := read_available(self.fd):
            *lines, self._rest = (self._rest + data).split(b"\n")
            found += [msgspec.json.decode(line, type=Notice) for line in lines]
        return found
