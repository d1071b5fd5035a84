"""The three statements of an enqueue call on the outbox: insert in the transaction, delete after the write, or park.

Each is one statement, whatever receivers of model signals and routers a project has: the row belongs into the database
whose transaction is open, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from nobroker_django.engine.errors import NobrokerError
from nobroker_django.engine.once import Entry

from .apps import APP
from .rows import new_key, pack

MAX_PROBLEM = 2000


class OutboxError(NobrokerError):
    """The database refused the row of a job; nothing was stored. ``database`` is its alias, ``__cause__`` why."""

    stored = False

    def __init__(self, database: str, error: Exception) -> None:
        super().__init__(
            f"the job could not be put into the outbox of database {database!r}, so it was NOT stored: {error}. "
            f"If the table is missing: manage.py migrate --database={database}"
        )
        self.database = database


def hold(database: str, queue: str, entries: Sequence[Entry], *, task: str, called_at: float) -> str:
    """Put a call into the outbox, as part of the open transaction; returns the key of its row.

    Raises:
        ImproperlyConfigured: the app is not installed.
        OutboxError: the database refused.
    """
    if not apps.is_installed(APP):
        raise ImproperlyConfigured(
            f"NOBROKER['OUTBOX'] is True, but {APP!r} is not in INSTALLED_APPS. Add it and run manage.py migrate. "
            "Nothing was stored."
        )
    from .models import OutboxRow

    content = pack(entries)
    row = OutboxRow(
        key=new_key(),
        queue=queue,
        job_id=entries[0].job_id,
        task=task[:200],
        jobs=len(entries),
        size_bytes=len(content),
        called_at=called_at,
        known_until=entries[0].known_until,
        content=content,
    )
    try:
        OutboxRow._base_manager.using(database).bulk_create([row])  # sends no signals
    except DatabaseError as error:
        raise OutboxError(database, error) from error
    return row.key


def release(database: str, keys: Sequence[str]) -> None:
    """Delete rows that are in the log.

    Raises:
        django.db.Error: the database refused.
    """
    marks = ", ".join(["%s"] * len(keys))
    _execute(database, "DELETE FROM {table} WHERE {key} IN (" + marks + ")", list(keys))


def park(database: str, key: str, problem: str) -> None:
    """Leave a row for a person, who is told the problem.

    Raises:
        django.db.Error: the database refused.
    """
    _execute(database, "UPDATE {table} SET {problem} = %s WHERE {key} = %s", [problem[:MAX_PROBLEM], key])


def _execute(database: str, statement: str, parameters: list[str]) -> None:
    from .models import OutboxRow

    connection = connections[database]
    names = {name: connection.ops.quote_name(name) for name in ("key", "problem")}
    table = connection.ops.quote_name(OutboxRow._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(statement.format(table=table, **names), parameters)
