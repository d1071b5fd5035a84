"""Which job runs here: a context variable that ``execution`` sets for the duration of a task.

Invariant: each job has a context of its own, so one job never sees another's. What a task starts in a copy of its
context (a coroutine, ``asgiref``'s threads, ``contextvars.copy_context()``) belongs to the same job.
"""

from __future__ import annotations

import os
import socket
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class CurrentJob:
    """What a running task may know of its job; ``attempt`` counts from 1."""

    job_id: str
    task: str
    queue: str
    attempt: int


running: ContextVar[CurrentJob | None] = ContextVar("nobroker_current_job", default=None)


def this_worker() -> str:
    """What this process calls itself: host and process id."""
    return worker_called(os.getpid())


def worker_called(process: int) -> str:
    """What a process of this machine with that id calls itself."""
    return f"{_host()}:{process}"


@cache
def _host() -> str:
    return socket.gethostname().encode(errors="replace").decode()


def current_job() -> CurrentJob | None:
    """The job that runs in this context, or None outside of a job."""
    return running.get()
