"""``manage.py check --database``: rows of the outbox that no sweep will take."""

from __future__ import annotations

from collections.abc import Sequence

from django.core import checks
from django.core.checks import CheckMessage


def check_rows(
    app_configs: object = None, databases: Sequence[str] | None = None, **kwargs: object
) -> list[CheckMessage]:
    """Ask the databases that Django was told to check. One without the table is about to get it, or needs none."""
    from .sweeping import has_outbox, standing

    messages: list[CheckMessage] = []
    for database in databases or ():
        problem = standing(database).problem() if has_outbox(database) else None
        if problem is not None:
            messages.append(
                checks.Warning(
                    f"the outbox of database {database!r} has rows that no worker will take: {problem}.",
                    hint="manage.py nobroker_outbox lists them.",
                    id="nobroker.W020",
                )
            )
    return messages
