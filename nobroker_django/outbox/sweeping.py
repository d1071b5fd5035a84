"""Rows that stayed in the outbox, written to the log by somebody else than who made them.

Invariant: a row is deleted only once its jobs are durable in the log, and swept only while the log still knows
whether they have been there (``engine.once``). Sweepers may meet each other and the process that made a row: where the
database can, they pass by the rows that another one has, elsewhere both write, which adds nothing.

Rows of one process are written in the order of its calls. A row that can never be written is parked with the reason; a
queue that refuses is left for the next time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from django.db import Error as DatabaseError
from django.db import connections, router, transaction

from nobroker_django import conf
from nobroker_django.engine.errors import (
    InvalidOptionError,
    JobConflictError,
    NobrokerError,
    SerializationError,
    TooLateError,
)
from nobroker_django.engine.once import Entry
from nobroker_django.queues import get_queue

from .holding import park, release
from .models import OutboxRow
from .rows import known_until, unpack

logger = logging.getLogger("nobroker_django")

YOUNG_SECONDS = 10.0
"""Rows younger than this are most likely being written by the process that made them."""
_ROWS, _BYTES = 200, 8 * 1024 * 1024
_NEVER = (JobConflictError, SerializationError, InvalidOptionError, ValueError)


@dataclass(slots=True)
class Swept:
    """What a sweep of one database did: rows and jobs that are in the log now, rows that were parked, and why the
    queues that refused did so."""

    rows: int = 0
    jobs: int = 0
    parked: int = 0
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """The rows of one database: those that a sweep takes, those that are too old for it, those that were parked, and
    those of queues that are not in the settings."""

    waiting: int = 0
    old: int = 0
    parked: int = 0
    orphaned: int = 0

    @property
    def needs_somebody(self) -> int:
        """How many no sweep will take."""
        return self.old + self.parked + self.orphaned

    def problem(self) -> str | None:
        """One clause about the rows that no sweep will take."""
        parts = [
            (self.old, "too old to be swept: the log may have forgotten whether their jobs ran"),
            (self.parked, "parked: they can never be written as they are"),
            (self.orphaned, "for queues that are not in NOBROKER['QUEUES']"),
        ]
        return "; ".join(f"{count} {what}" for count, what in parts if count) or None


def databases() -> list[str]:
    """The databases that have an outbox.

    Raises:
        django.db.Error: one of them cannot be asked; the message says which.
    """
    found = []
    for alias in connections:
        try:
            if has_outbox(alias):
                found.append(alias)
        except DatabaseError as error:
            raise DatabaseError(f"database {alias!r} cannot be asked for rows of the outbox: {error}") from error
    return found


def has_outbox(database: str) -> bool:
    """Whether this database has the table, and it is not another's replica by the word of a router.

    Raises:
        django.db.Error: it cannot be asked.
    """
    if not router.allow_migrate_model(database, OutboxRow):
        return False
    return OutboxRow._meta.db_table in connections[database].introspection.table_names()


def standing(database: str) -> Standing:
    """Count the rows.

    Raises:
        django.db.Error: the database cannot be asked.
    """
    rows, now = OutboxRow._base_manager.using(database), time.time()
    sound = rows.filter(problem="", queue__in=list(conf.get_settings().queues))
    parked = rows.exclude(problem="").count()
    old, waiting = sound.filter(known_until__lte=now).count(), sound.filter(known_until__gt=now).count()
    return Standing(waiting, old, parked, rows.count() - parked - old - waiting)


def sweep(database: str, *, queues: Sequence[str] | None = None, young: float = 0.0) -> Swept:
    """Write to the log, and delete, what stayed in the outbox of one database.

    Args:
        queues: only rows for these queues; by default all of the settings.
        young: rows younger than so many seconds are left alone.

    Raises:
        django.db.Error: the database refused; what was written stays written, and its rows are swept once more.
    """
    swept, after = Swept(), ""
    names = list(conf.get_settings().queues if queues is None else queues)
    while names:
        with _locked(database):
            rows = _next(database, names, after, time.time() - young)
            if not rows:
                break
            after = rows[-1].key
            for queue in dict.fromkeys(row.queue for row in rows):
                _write(database, queue, [row for row in rows if row.queue == queue], swept)
        names = [name for name in names if name not in swept.failed]
    return swept


def sweep_old(database: str, keys: Sequence[str]) -> Swept:
    """Write rows that are too old to be swept, because a person has decided that their jobs have to run.

    Raises:
        django.db.Error: the database refused.
    """
    swept, now = Swept(), time.time()
    for row in OutboxRow._base_manager.using(database).filter(key__in=keys).order_by("key"):
        if row.queue in conf.get_settings().queues:
            row.known_until = known_until(now, conf.queue_settings(row.queue).retention)
            _write(database, row.queue, [row], swept)
    return swept


def _locked(database: str) -> AbstractContextManager[object]:
    if connections[database].features.has_select_for_update_skip_locked:
        return transaction.atomic(using=database)
    return nullcontext()


def _next(database: str, queues: Sequence[str], after: str, called_before: float) -> list[OutboxRow]:
    """The next rows that may be swept: some, and not too large together."""
    rows = OutboxRow._base_manager.using(database).order_by("key")
    wanted = rows.filter(
        key__gt=after, queue__in=queues, problem="", called_at__lte=called_before, known_until__gt=time.time()
    )
    if connections[database].features.has_select_for_update_skip_locked:
        wanted = wanted.select_for_update(skip_locked=True)
    sizes = wanted.values_list("key", "size_bytes")[:_ROWS]
    return list(rows.filter(key__in=list(_together(sizes))))


def _together(sizes: Iterable[tuple[str, int]]) -> Iterator[str]:
    total = 0
    for key, size in sizes:
        total += size
        if total > _BYTES and total != size:
            return
        yield key


def _write(database: str, queue: str, rows: list[OutboxRow], swept: Swept) -> None:
    """Write rows of one queue to its log; together if that can be, else one by one, in their order."""
    try:
        entries = [_entries(row) for row in rows]
        get_queue(queue).enqueue_once([entry for some in entries for entry in some])
    except (TooLateError, *_NEVER) as error:
        if len(rows) > 1:
            for row in rows:
                if queue not in swept.failed:
                    _write(database, queue, [row], swept)
        elif not isinstance(error, TooLateError):
            _park(database, rows[0], error)
            swept.parked += 1
        return
    except NobrokerError as error:
        swept.failed[queue] = str(error)
        return
    release(database, [row.key for row in rows])
    swept.rows += len(rows)
    swept.jobs += sum(map(len, entries))


def _entries(row: OutboxRow) -> list[Entry]:
    return unpack(bytes(row.content), row.known_until)


def _park(database: str, row: OutboxRow, error: Exception) -> None:
    logger.error(
        "A job of a committed transaction cannot be stored, its row %s stays in the outbox of database %r: %s",
        row.key, database, error, extra={"job_id": row.job_id},
    )  # fmt: skip
    park(database, row.key, f"{type(error).__name__}: {error}")
