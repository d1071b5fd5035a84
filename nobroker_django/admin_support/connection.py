"""The projections as databases of Django's ORM, read-only, outside ``settings.DATABASES``.

One alias a queue, ``nobroker:NAME``. Django's ``connections`` are per thread, so an alias is registered in the thread
that runs a query, when it runs it (``read_alias``): a manager may be called in another one, as in an async view.

Invariant: a connection is used by the process and for the files for which it was opened. After a fork, a compaction or
a rebuild the next query opens anew; within ``reading`` all queries see one moment. Writing is impossible three times:
``mode=ro``, ``query_only``, and the table of the models is a view. Nothing stays open after a request: a reader that
stays would keep the last worker from leaving the projection complete.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_finished, setting_changed
from django.db import connections, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from nobroker_django import conf
from nobroker_django.engine.schema import COLUMNS, SCHEMA, STATES

from . import source
from .source import Source

PREFIX = "nobroker:"
TABLE = "nobroker_django_job"
_VIEW = f"CREATE TEMP VIEW {TABLE} AS SELECT {', '.join(COLUMNS)} FROM main.jobs"
_GIVEN_UP = (
    "The index of this queue cannot be read (it is damaged, or was replaced again and again). The jobs are safe in "
    "the log; a worker makes a new index, and so does nobroker_compact."
)
_ATTEMPTS = 3
_used: set[str] = set()
_inherited: list[object] = []  # what a forked child must neither use nor finalise


class ProjectionConnection(DatabaseWrapper):
    """Django's connection to what there is to read of one queue; see ``source`` for what that can be."""

    def __init__(self, alias: str) -> None:
        self.queue = alias.removeprefix(PREFIX)
        self.source: Source | None = None
        self.given_up = False
        self.spoilt = False
        # Whole and of its own: a copy of the user's settings would bring the keys of another kind of database.
        settings_dict: dict[str, Any] = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": alias,
            "OPTIONS": {},
            "TIME_ZONE": None,
            "ATOMIC_REQUESTS": False,
            "AUTOCOMMIT": True,
            "CONN_MAX_AGE": 0,
            "CONN_HEALTH_CHECKS": False,
            "USER": "",
            "PASSWORD": "",
            "HOST": "",
            "PORT": "",
            "TEST": {"CHARSET": None, "COLLATION": None, "MIGRATE": False, "MIRROR": None, "NAME": None},
        }
        super().__init__(settings_dict, alias)

    @property
    def queue_name(self) -> str:
        """The name of the queue; the first of the settings when the alias names none."""
        if not self.queue and self.source is not None and self.source.layout is not None:
            return self.source.layout.name
        return self.queue

    @property
    def queries_logged(self) -> bool:
        """Never: Django empties the log of queries for the connections of ``settings.DATABASES`` alone."""
        return False

    def get_new_connection(self, conn_params: dict[str, Any]) -> sqlite3.Connection:
        """Open the projection, a private copy of it, or an empty one beside a notice."""
        for _ in range(0 if self.given_up else _ATTEMPTS):
            self._drop_source()
            found = self.source = _look(self.queue)
            try:
                return self._open(conn_params, found.uri or ":memory:")
            except sqlite3.Error:
                pass  # damaged, or replaced since the look
        self._drop_source()
        self.source = source.nothing(_GIVEN_UP)
        return self._open(conn_params, ":memory:")

    def _open(self, conn_params: dict[str, Any], database: str) -> sqlite3.Connection:
        connection: sqlite3.Connection = super().get_new_connection({**conn_params, "database": database})
        try:
            connection.isolation_level = None
            connection.execute("PRAGMA temp_store = MEMORY")
            if database == ":memory:":
                self._fill(connection)
            connection.execute(_VIEW)
            connection.execute("PRAGMA query_only = ON")
            connection.execute(f"SELECT * FROM {TABLE} LIMIT 1").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _fill(self, connection: sqlite3.Connection) -> None:
        if self.source is not None and self.source.copy is not None:
            self.source.copy.connection.backup(connection)
            self.source.close_copy()
        else:
            connection.executescript(SCHEMA)

    def overtaken(self) -> bool:
        """See ``Source.overtaken``."""
        return self.source is not None and self.source.overtaken()

    def follow(self) -> None:
        """Close when this is another process, or the files are others now; not in the middle of ``reading``."""
        if self.source is None:
            return
        if self.source.mark.pid != os.getpid():
            _inherited.append((self.connection, self.source))
            self.connection = self.source = None
            self.in_atomic_block = False
        elif not self.in_atomic_block and self.source.moved():
            self.close()

    def close(self) -> None:
        """Close the connection and the log, unless they are another process's."""
        if self.source is not None and self.source.mark.pid != os.getpid():
            self.follow()
        super().close()
        self._drop_source()

    def measure(self) -> None:
        """Begin the moment that all queries of this transaction see, and say how far it is behind the log."""
        with self.cursor() as cursor:
            cursor.execute("SELECT applied FROM main.meta")
            row = cursor.fetchone()
        if row is not None and self.source is not None:
            self.source.measure(row[0])

    def counts(self) -> dict[str, int]:
        """How many rows there are of each state, by the names of ``schema.STATES``."""
        with self.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(STATES)} FROM main.meta")
            return dict(zip(STATES, cursor.fetchone() or [0] * len(STATES), strict=True))

    def _drop_source(self) -> None:
        if self.source is not None:
            self.source.close()
            self.source = None


def alias_of(queue: str) -> str:
    """The alias of a queue's projection."""
    return PREFIX + queue


def is_ours(alias: str | None) -> bool:
    """Whether an alias is one of a projection."""
    return alias is not None and alias.startswith(PREFIX)


def read_alias(alias: str) -> str:
    """Make the alias known in the running thread, with a connection to the files of now."""
    connection_of(alias).follow()
    return alias


def connection_of(alias: str) -> ProjectionConnection:
    """The connection of that alias in the running thread; not necessarily open."""
    try:
        found = connections[alias]
    except ConnectionDoesNotExist:
        found = connections[alias] = ProjectionConnection(alias)
        _used.add(alias)
    assert isinstance(found, ProjectionConnection)
    return found


@contextmanager
def reading(queue: str, *, give_up: bool = False) -> Iterator[ProjectionConnection]:
    """Everything that is asked of the queue's projection within is answered as of one moment; closed at the end.

    ``spoilt`` of the connection then tells whether what was read is worth nothing: there was an error, or a file was
    read as one that nobody writes to and somebody did.

    Args:
        give_up: the projection could not be read: an empty list with a notice instead.
    """
    connection = connection_of(alias_of(queue))
    connection.close()
    connection.given_up, connection.spoilt = give_up, False
    try:
        with transaction.atomic(using=connection.alias):
            try:
                connection.measure()
                yield connection
            finally:
                connection.spoilt = connection.errors_occurred or connection.overtaken()
    finally:
        connection.given_up = False
        connection.close()


def close_connections(**kwargs: Any) -> None:
    """Close what the running thread has open of the projections."""
    for alias in tuple(_used):
        try:
            connections[alias].close()
        except ConnectionDoesNotExist:
            pass  # another thread's


def queue_names() -> tuple[str, ...]:
    """The queues of the settings; none when those are wrong."""
    try:
        return tuple(conf.get_settings().queues)
    except ImproperlyConfigured:
        return ()


def _look(queue: str) -> Source:
    try:
        settings = conf.get_settings()
        directory = settings.dir
    except ImproperlyConfigured as error:
        return source.nothing(str(error))
    name = queue or next(iter(settings.queues))
    if name not in settings.queues:
        return source.nothing(f"There is no queue “{name}” in the settings.")
    return source.look(directory, name)


def _settings_changed(*, setting: str, **kwargs: Any) -> None:
    """What is open belongs to the directory of before."""
    if setting == "NOBROKER":
        close_connections()


request_finished.connect(close_connections, dispatch_uid="nobroker_django.admin_support")
setting_changed.connect(_settings_changed, dispatch_uid="nobroker_django.admin_support")
