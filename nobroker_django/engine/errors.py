"""Every failure of the engine, as types under one base.

Invariant: an error carries its facts as attributes and says, in ``stored``, what became of the caller's data:
``True`` it is stored, ``False`` it is not, ``None`` nobody can say. No verb lets a bare ``OSError`` or
``sqlite3.Error`` through.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .wording import count_of


class NobrokerError(Exception):
    """Base of all errors of this package. ``stored`` says what became of the data of the failed call."""

    stored: bool | None = False

    def comes_after(self, count: int) -> None:
        """The call has recorded something about ``count`` jobs before it failed: not all of it is undone."""
        if count:
            self.stored = None
            are = "is" if count == 1 else "are"
            self.args = (f"{count_of(count, 'job')} of this call {are} dealt with, the rest is not: {self}",)


class InvalidOptionError(NobrokerError, ValueError):
    """An option has a wrong type or value; nothing was stored. ``option`` names it, ``reason`` says what is wrong."""

    def __init__(self, option: str, reason: str) -> None:
        """Args: ``reason`` does not say what was stored, and needs no full stop: both are added here."""
        self.option = option
        self.reason = reason.removesuffix(".")
        stop = "" if self.reason.endswith(("?", "!")) else "."
        super().__init__(f"{option}: {self.reason}{stop} Nothing was stored.")

    def without_outcome(self) -> None:
        """The call was to store nothing: the message does not say that it has not."""
        self.args = (f"{self.option}: {self.reason}",)


@contextmanager
def storing_nothing() -> Iterator[None]:
    """Around what only looks or makes something: a wrong option of it is no matter of what was stored."""
    try:
        yield
    except InvalidOptionError as error:
        error.without_outcome()
        raise


class SerializationError(NobrokerError, ValueError):
    """The data are not exactly representable as JSON, too large or too deep; nothing was stored.

    ``path`` is where in the value the trouble is, such as ``payload["user"][2]``.
    """

    def __init__(self, message: str, *, path: str = "payload") -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.reason = message


class TaskArgumentError(NobrokerError, TypeError):
    """The arguments of a task call do not fit the function; nothing was stored."""

    def __init__(self, message: str, *, task: str = "", parameter: str = "") -> None:
        super().__init__(message)
        self.task = task
        self.parameter = parameter


class JobNotFoundError(NobrokerError, LookupError):
    """No job of that id is known to the queue (never enqueued, purged, or finished and compacted away)."""

    def __init__(self, job_id: str, queue: str, *others: str) -> None:
        """Args: ``others`` were asked after ``queue``."""
        who = f"queues {', '.join(map(repr, (queue, *others)))} know" if others else f"queue {queue!r} knows"
        super().__init__(
            f"{who} no job {job_id!r}: it was never enqueued (or not committed), it was "
            "purged, or it is finished and its retention is over. Nothing was changed."
        )
        self.job_id = job_id
        self.queue = queue


class JobConflictError(NobrokerError):
    """The ``job_id`` is taken by a job with another payload; nothing of the call was stored."""

    def __init__(self, job_id: str, queue: str, *, detail: str = "") -> None:
        super().__init__(
            f"job id {job_id!r} is already used in queue {queue!r} with a different payload"
            f"{detail and f' ({detail})'}; nothing of this call was stored. Use another id for other work."
        )
        self.job_id = job_id
        self.queue = queue


class TooLateError(NobrokerError):
    """A write that may have been made before came again after its ``known_until``: whether it was made is forgotten.

    Nothing was stored by this call; made again, the job could run a second time.
    """

    stored = None

    def __init__(self, job_id: str, queue: str) -> None:
        super().__init__(
            f"queue {queue!r} may have had job {job_id!r}, finished and forgotten it. Nothing was stored by this "
            "call; whether the job still has to run is for a person to decide."
        )
        self.job_id = job_id
        self.queue = queue


class NotLeasedError(NobrokerError):
    """The caller does not hold the lease (any more); the queue is unchanged.

    With at-least-once delivery this is a normal event: the lease ended, and the job runs or ran elsewhere.
    """

    def __init__(self, job_id: str, message: str) -> None:
        super().__init__(f"job {job_id!r}: {message}; nothing was changed")
        self.job_id = job_id


class AlreadyDoneError(NotLeasedError):
    """The job is finished already, by another delivery; that outcome stands."""


class LockTimeoutError(NobrokerError):
    """The log's lock, or the durability of what was written, was not had within ``lock_timeout`` seconds."""

    def __init__(self, message: str, *, path: str, seconds: float, stored: bool | None = False) -> None:
        super().__init__(message)
        self.path = path
        self.seconds = seconds
        self.stored = stored


class ReentrantCallError(NobrokerError):
    """A signal handler or a finaliser called the queue in the middle of another call of the same thread.

    Nothing of the inner call was stored; the outer one goes on. Note the wish and call the queue outside the handler.
    """

    def __init__(self) -> None:
        super().__init__(
            "the queue was called by a signal handler or a finaliser in the middle of another call of its thread. "
            "Nothing of this call was stored; call the queue outside the handler."
        )


class ReadOnlyError(NobrokerError):
    """The queue was opened with ``read_only=True``; the call changed nothing."""

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue {queue!r} was opened read-only: nothing was changed. Open it without read_only=True to change it."
        )
        self.queue = queue


class QueueClosedError(NobrokerError):
    """The queue object was closed; the call did nothing."""


class CorruptLogError(NobrokerError):
    """Data that had been acknowledged are damaged; nothing was changed, cut or repaired.

    ``path`` and ``offset`` (bytes) say where, ``reason`` what was found.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int, reason: str) -> None:
        super().__init__(
            f"{os.fspath(path)} is damaged at byte {offset}: {reason}. Nothing was changed. Stop the workers, keep a "
            "copy of the directory, and restore the file from a backup or save what is left of it (recover --salvage)."
        )
        self.path = os.fspath(path)
        self.offset = offset
        self.reason = reason


class PointerError(CorruptLogError):
    """The pointer file is missing, unreadable or names a log that is not there; no queue was created."""

    def __init__(self, path: str | os.PathLike[str], message: str) -> None:
        NobrokerError.__init__(self, message)
        self.path = os.fspath(path)
        self.offset = 0
        self.reason = message


class UnsupportedVersionError(CorruptLogError):
    """The log has a format that this version cannot write to; nothing was changed."""

    def __init__(self, path: str | os.PathLike[str], found: int, supported: int) -> None:
        NobrokerError.__init__(
            self,
            f"{os.fspath(path)} has log format version {found}; this release of nobroker_django reads and writes "
            f"version {supported}. Nothing was changed. Use the release that wrote it, or a newer one.",
        )
        self.path = os.fspath(path)
        self.offset = 8
        self.reason = f"log format version {found}"
        self.found = found
        self.supported = supported


class StorageError(NobrokerError):
    """The file system refused an operation (disk full, quota, I/O error, permission).

    ``path``, ``errno`` and ``operation`` say which; ``stored`` says what became of the data of the call.
    """

    def __init__(
        self, operation: str, path: str | os.PathLike[str], error: Any, *, stored: bool | None = False
    ) -> None:
        outcome = {False: "Nothing of this call was stored", True: "The data of this call are stored"}
        super().__init__(
            f"could not {operation} {os.fspath(path)}: {error}. "
            f"{outcome.get(stored, 'Whether the data of this call are stored is unknown')}."  # type: ignore[arg-type]
            f"{_advice(getattr(error, 'errno', None))}"
        )
        self.operation = operation
        self.path = os.fspath(path)
        self.errno = getattr(error, "errno", None)
        self.stored = stored


def _advice(number: int | None) -> str:
    """The next step after an error of the operating system."""
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return " Free some space (or raise the limit) and try again; nothing has to be repaired."
    if number in (errno.EACCES, errno.EPERM):
        return " Check who owns the directory and its files, and FILE_MODE and DIR_MODE if several users share them."
    if number == errno.EROFS:
        return " The file system is mounted read-only; open the queue with read_only=True to look at it."
    if number == errno.EIO:
        return " The disk reports an error: look into the system's log before you go on."
    return ""


class OutcomeUnknownError(StorageError):
    """What was written may or may not survive: a sync failed, or the bytes are not there any more.

    Look the job up by its id (``job_id``) before enqueueing it again, or enqueue it again under the same id.
    """

    def __init__(
        self, operation: str, path: str | os.PathLike[str], error: Any, *, job_ids: tuple[str, ...] = ()
    ) -> None:
        super().__init__(operation, path, error, stored=None)
        self.job_ids = job_ids


class CompactionError(NobrokerError):
    """The compaction was given up; the queue is usable, and the message says whether its log is still the old one."""


class CompactionRunningError(CompactionError):
    """Another compaction of the queue is running; this one did nothing."""
