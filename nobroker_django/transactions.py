"""Writing a job after the commit of the caller's transaction, and never after its rollback.

The log cannot join the database's transaction, so the write is a ``transaction.on_commit`` callback: it runs after
the outermost commit and is discarded with the savepoint (of a nested ``atomic()``) or the transaction that is
rolled back. Savepoints made by hand with ``transaction.savepoint()`` do not count: Django's callbacks do not know
of them. It is not ``robust``: a job that could not be stored is an error that the caller sees, and it says that
the commit itself did happen.

Django's transactions belong to a thread. ``.aenqueue()`` runs in the thread that Django gives to synchronous code
of the same request (``sync_to_async``, thread-sensitive), so it sees a transaction that was opened there; in a
coroutine outside ``atomic`` there is none and the job is written at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import Error as DatabaseError
from django.db import transaction
from django.utils.connection import ConnectionDoesNotExist

from .engine.errors import InvalidOptionError, JobConflictError, NobrokerError

logger = logging.getLogger("nobroker_django")


class NotStoredAfterCommitError(NobrokerError):
    """The transaction is committed, but a job that belongs to it could not be written.

    ``job_ids`` are the jobs of the failed write; ``stored`` is False, or None where that is not known;
    ``__cause__`` is what happened.
    """

    def __init__(self, job_ids: tuple[str, ...], error: BaseException) -> None:
        self.job_ids = job_ids
        self.stored = error.stored if isinstance(error, NobrokerError) else None
        shown = ", ".join(job_ids[:5]) + (f" and {len(job_ids) - 5} more" if len(job_ids) > 5 else "")
        jobs, was, it = ("jobs", "were", "them") if len(job_ids) > 1 else ("job", "was", "it")
        outcome = {
            False: f"{jobs} {shown} {was} NOT stored. Enqueue {it} again once the cause is removed",
            True: f"{jobs} {shown} {was} stored, but the write reported an error",
        }.get(
            self.stored,  # type: ignore[arg-type]
            f"whether {jobs} {shown} {was} stored is unknown. Look {it} up by id before enqueueing {it} again",
        )
        super().__init__(
            f"the transaction IS committed; {outcome}. Callbacks registered later with on_commit() in the same "
            f"transaction did not run. Cause: {error}"
        )


def must_wait(database: str, *, on_commit: bool) -> bool:
    """Whether a job enqueued now has to wait for the commit of a transaction that is open on ``database``.

    Opens no database connection.

    Raises:
        InvalidOptionError: no such database, or it is in manual transaction management, where no commit can be seen.
    """
    if not on_commit:
        return False
    try:
        connection = transaction.get_connection(database)
    except ConnectionDoesNotExist:
        raise InvalidOptionError(
            "database", f"DATABASES has no {database!r}. Choose one with .using(database=...)"
        ) from None
    if connection.in_atomic_block:
        return True
    # Before the first query the attribute is False whatever the settings say.
    automatic = connection.settings_dict["AUTOCOMMIT"] if connection.connection is None else connection.autocommit
    if not automatic:
        raise InvalidOptionError(
            "on_commit",
            f"database {database!r} is in manual transaction management (autocommit is off), where Django announces "
            "no commit. Enqueue after your commit with .using(on_commit=False)",
        )
    return False


def write_after_commit(
    write: Callable[[], None], conflict: Callable[[JobConflictError], None], *, job_ids: tuple[str, ...], database: str
) -> None:
    """Have ``write`` called after the commit of the open transaction on ``database``.

    Args:
        write: stores the jobs.
        conflict: called in place of raising when one of the ids is taken by another payload.
        job_ids: the jobs, for messages.
        database: alias of the database whose transaction is open.
    """

    def after_commit() -> None:
        try:
            write()
        except JobConflictError as error:
            logger.error(
                "A job was not stored after the commit of its transaction: %s", error, extra={"job_id": error.job_id}
            )
            conflict(error)
        except Exception as error:
            raise NotStoredAfterCommitError(job_ids, error) from error

    transaction.on_commit(after_commit, using=database)


def write_through_outbox(
    write: Callable[[], None],
    conflict: Callable[[JobConflictError], None],
    *,
    job_ids: tuple[str, ...],
    database: str,
    key: str,
) -> None:
    """As ``write_after_commit``, for jobs that are in the outbox too, in the row ``key``.

    They are safe there, so nothing is raised out of the commit: what could not be written now is swept later.
    """
    from .outbox import holding

    def after_commit() -> None:
        extra = {"job_id": job_ids[0]}
        try:
            try:
                write()
            except JobConflictError as error:
                logger.error(
                    "A job cannot be stored after the commit of its transaction, its row %s stays in the outbox of "
                    "database %r: %s", key, database, error, extra={"job_id": error.job_id},
                )  # fmt: skip
                conflict(error)
                holding.park(database, key, f"{type(error).__name__}: {error}")
            except Exception as error:
                logger.error(
                    "Job %s is committed, but could not be written to its queue now; it is safe in the outbox of "
                    "database %r, and is written by the next sweep: %s", job_ids[0], database, error, extra=extra,
                )  # fmt: skip
            else:
                holding.release(database, [key])
        except DatabaseError as error:
            logger.warning(
                "The row %s of job %s stays in the outbox of database %r until the next sweep: %s",
                key, job_ids[0], database, error, extra=extra,
            )  # fmt: skip

    transaction.on_commit(after_commit, using=database)
