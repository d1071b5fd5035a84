"""What the command ``nobroker_outbox`` does: list rows, sweep, and carry out what a person has decided about a row.

Invariant: nothing that may run a job twice, or lose one, happens without being asked for by key, and confirmed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import Error as DatabaseError

from nobroker_django import conf
from nobroker_django.cli.exits import EXIT_REFUSED, EXIT_UNHEALTHY, Refusal, UsageError
from nobroker_django.cli.output import Output
from nobroker_django.cli.text import iso, shorten
from nobroker_django.engine.wording import count_of

from .holding import release
from .models import OutboxRow
from .sweeping import databases, standing, sweep, sweep_old

_PROBLEM_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command: which databases and queues (none named: all), where it writes, whether it asks."""

    out: Output
    databases: Sequence[str]
    queues: Sequence[str]
    as_json: bool
    interactive: bool


def chosen_databases(given: Sequence[str] | None) -> list[str]:
    """The databases that were named, or all that have an outbox.

    Raises:
        UsageError: one of them has none. Refusal: one cannot be asked.
    """
    try:
        known = databases()
    except DatabaseError as error:
        raise Refusal(str(error)) from error
    for alias in given or ():
        if alias not in known:
            raise UsageError(f"database {alias!r} has no outbox; those that have one: {', '.join(known) or 'none'}")
    return list(dict.fromkeys(given or known))


def look(run: Run, limit: int) -> None:
    """List the rows, oldest first.

    Raises:
        Refusal: some of them need somebody (code 4).
    """
    documents = [document for alias in run.databases for document in _documents(alias, run.queues, limit)]
    if run.as_json:
        run.out.json({"rows": documents})
    else:
        for document in documents:
            if not run.out.line(_line(document)):
                break
    _conclude(run)


def write_all(run: Run) -> None:
    """Sweep.

    Raises:
        Refusal: a queue has refused (code 1), or rows need somebody (code 4).
    """
    written, failed = [], {}
    for alias in run.databases:
        swept = sweep(alias, queues=run.queues or None)
        written.append({"database": alias, "rows": swept.rows, "jobs": swept.jobs, "parked": swept.parked})
        failed.update(swept.failed)
        if not run.as_json:
            run.out.line(f"{alias}: {count_of(swept.rows, 'row')} with {count_of(swept.jobs, 'job')} written")
    if run.as_json:
        run.out.json({"databases": written, "failed": [{"queue": name, "error": failed[name]} for name in failed]})
    if failed:
        raise Refusal("; ".join(f"{name}: {text}" for name, text in failed.items()), EXIT_REFUSED)
    _conclude(run)


def write_old(run: Run, keys: Sequence[str]) -> None:
    """Write these rows, though their jobs may have run.

    Raises:
        Refusal: one of them is not there, was not confirmed, or its queue has refused.
    """
    rows = _rows_of(run, keys)
    _confirm(run, f"Write {count_of(len(keys), 'row')}, whose jobs may have run before?", "nothing was written")
    written = 0
    for alias, some in rows.items():
        swept = sweep_old(alias, some)
        written += swept.rows
        if swept.failed:
            raise Refusal("; ".join(f"{name}: {text}" for name, text in swept.failed.items()))
    _say(run, written, "written")


def discard(run: Run, keys: Sequence[str]) -> None:
    """Delete these rows; their jobs are not run.

    Raises:
        Refusal: one of them is not there, or it was not confirmed.
    """
    rows = _rows_of(run, keys)
    _confirm(run, f"Delete {count_of(len(keys), 'row')} and never run their jobs?", "nothing was deleted")
    for alias, some in rows.items():
        release(alias, some)
    _say(run, len(keys), "discarded")


def problems() -> list[str]:
    """A sentence for each database with rows that no worker will take.

    Raises:
        django.db.Error: one of them cannot be asked.
    """
    return [
        f"the outbox of database {alias!r} has {problem}. nobroker_outbox lists them"
        for alias in databases()
        if (problem := standing(alias).problem())
    ]


def _conclude(run: Run) -> None:
    found = [f"{alias}: {problem}" for alias in run.databases if (problem := standing(alias).problem())]
    if found:
        raise Refusal(". ".join(found), EXIT_UNHEALTHY)


def _documents(database: str, queues: Sequence[str], limit: int) -> Iterator[dict[str, Any]]:
    rows, now = OutboxRow._base_manager.using(database), time.time()
    wanted = rows.filter(queue__in=queues) if queues else rows.all()
    for row in wanted.defer("content").order_by("key")[:limit]:
        if row.problem:
            state = "parked"
        elif row.queue not in conf.get_settings().queues:
            state = "orphaned"
        else:
            state = "waiting" if row.known_until > now else "old"
        yield {
            "database": database,
            "key": row.key,
            "queue": row.queue,
            "state": state,
            "jobs": row.jobs,
            "job_id": row.job_id,
            "task": row.task,
            "size_bytes": row.size_bytes,
            "called_at": row.called_at,
            "called_at_iso": iso(row.called_at),
            "known_until": row.known_until,
            "known_until_iso": iso(row.known_until),
            "problem": row.problem or None,
        }


def _line(document: Mapping[str, Any]) -> str:
    words = [
        document["called_at_iso"], document["database"], document["queue"], document["key"], document["state"],
        count_of(document["jobs"], "job"), document["task"], document["job_id"],
    ]  # fmt: skip
    if document["problem"]:
        words.append(shorten(document["problem"], _PROBLEM_CHARACTERS))
    return "  ".join(words)


def _rows_of(run: Run, keys: Sequence[str]) -> dict[str, list[str]]:
    """The keys by database.

    Raises:
        Refusal: a row is not there.
    """
    found = {
        alias: list(OutboxRow._base_manager.using(alias).filter(key__in=keys).values_list("key", flat=True))
        for alias in run.databases
    }
    missing = set(keys) - {key for some in found.values() for key in some}
    if missing:
        raise Refusal(f"there is no row {', '.join(sorted(missing))}; nothing was changed")
    return {alias: some for alias, some in found.items() if some}


def _confirm(run: Run, question: str, otherwise: str) -> None:
    if run.interactive and not run.out.confirmed(question):
        raise Refusal(otherwise)


def _say(run: Run, count: int, what: str) -> None:
    if run.as_json:
        run.out.json({what: count})
    else:
        run.out.line(f"{count_of(count, 'row')} {what}")
