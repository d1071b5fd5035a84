"""The public names of ``nobroker_django``, imported when they are first used.

Importing this package reads no settings and imports no Django: the engine works on its own
(``from nobroker_django import Queue``), and the Django layer (``from nobroker_django import task``) is imported
only by those who ask for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .compat import TaskContext
    from .current import CurrentJob, current_job
    from .decorators import task
    from .engine.aio import AsyncQueue
    from .engine.backoff import BackoffPolicy
    from .engine.compaction import CompactionResult
    from .engine.errors import (
        AlreadyDoneError,
        CompactionError,
        CorruptLogError,
        InvalidOptionError,
        JobConflictError,
        JobNotFoundError,
        LockTimeoutError,
        NobrokerError,
        NotLeasedError,
        OutcomeUnknownError,
        QueueClosedError,
        ReadOnlyError,
        SerializationError,
        StorageError,
        TaskArgumentError,
    )
    from .engine.job import Job, JobError, JobState, QueueStats
    from .engine.queue import Queue
    from .engine.recovery import RecoveryReport
    from .engine.thresholds import CompactionPolicy
    from .engine.worker import Worker, WorkerStats
    from .limits import SoftTimeLimitExceeded, TimeLimitExceeded
    from .results import JobResult

_HOME = {
    "task": "decorators",
    "CurrentJob": "current",
    "current_job": "current",
    "TaskContext": "compat",
    "AsyncQueue": "engine.aio",
    "JobResult": "results",
    "SoftTimeLimitExceeded": "limits",
    "TimeLimitExceeded": "limits",
    "BackoffPolicy": "engine.backoff",
    "CompactionPolicy": "engine.thresholds",
    "CompactionResult": "engine.compaction",
    "Job": "engine.job",
    "JobError": "engine.job",
    "JobState": "engine.job",
    "QueueStats": "engine.job",
    "Queue": "engine.queue",
    "RecoveryReport": "engine.recovery",
    "Worker": "engine.worker",
    "WorkerStats": "engine.worker",
    "AlreadyDoneError": "engine.errors",
    "CompactionError": "engine.errors",
    "CorruptLogError": "engine.errors",
    "InvalidOptionError": "engine.errors",
    "JobConflictError": "engine.errors",
    "JobNotFoundError": "engine.errors",
    "LockTimeoutError": "engine.errors",
    "NobrokerError": "engine.errors",
    "NotLeasedError": "engine.errors",
    "OutcomeUnknownError": "engine.errors",
    "QueueClosedError": "engine.errors",
    "ReadOnlyError": "engine.errors",
    "SerializationError": "engine.errors",
    "StorageError": "engine.errors",
    "TaskArgumentError": "engine.errors",
}

__all__ = [
    "AlreadyDoneError",
    "AsyncQueue",
    "BackoffPolicy",
    "CompactionError",
    "CompactionPolicy",
    "CompactionResult",
    "CorruptLogError",
    "CurrentJob",
    "InvalidOptionError",
    "Job",
    "JobConflictError",
    "JobError",
    "JobNotFoundError",
    "JobResult",
    "JobState",
    "LockTimeoutError",
    "NobrokerError",
    "NotLeasedError",
    "OutcomeUnknownError",
    "Queue",
    "QueueClosedError",
    "QueueStats",
    "ReadOnlyError",
    "RecoveryReport",
    "SerializationError",
    "SoftTimeLimitExceeded",
    "StorageError",
    "TaskArgumentError",
    "TaskContext",
    "TimeLimitExceeded",
    "Worker",
    "WorkerStats",
    "__version__",
    "current_job",
    "task",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
