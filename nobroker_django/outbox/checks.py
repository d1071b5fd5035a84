"""``manage.py check --database``: the table of the outbox, and rows of it that no sweep will take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured

from nobroker_django import conf, registry


def check_rows(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: object
) -> list[CheckMessage]:
    """Ask the databases that Django was told to check.

    A missing table is no error: ``migrate``, which makes it, checks first.
    """
    from .sweeping import has_outbox, standing

    try:
        conf.get_settings()
    except ImproperlyConfigured:
        return []  # another check says it
    messages: list[CheckMessage] = []
    for database in databases or ():
        if not has_outbox(database):
            messages += _missing(database)
            continue
        problem = standing(database).problem()
        if problem is not None:
            messages.append(
                checks.Warning(
                    f"the outbox of database {database!r} has rows that no worker will take: {problem}.",
                    hint="manage.py nobroker_outbox lists them.",
                    id="nobroker.W020",
                )
            )
    return messages


def _missing(database: str) -> Iterator[CheckMessage]:
    settings = conf.get_settings()
    tasks = (registry.find(name) for name in registry.names())
    wanted = {settings.database, *(task.options.database for task in tasks if task is not None)}
    if settings.outbox and database in wanted:
        yield checks.Warning(
            f"NOBROKER['OUTBOX'] is True, but database {database!r} has no table of the outbox: enqueueing in a "
            "transaction of it fails.",
            hint=f"Run manage.py migrate --database={database}. If a database router keeps the table out of this "
            "database, let it in: the row of a job belongs to the transaction that enqueues it.",
            id="nobroker.W021",
        )
