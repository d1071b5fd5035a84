"""Commands that change a queue as an operator does: requeue, discard and prune dead letters, purge, compact.

Invariant: what cannot be taken back asks first, and says what it is about to do. Nothing here creates a queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from nobroker_django.engine.errors import JobNotFoundError, NotLeasedError
from nobroker_django.engine.job import JobState
from nobroker_django.engine.queue import Queue
from nobroker_django.engine.wording import count_of

from . import documents, looking
from .context import Context, Options
from .each import Each
from .exits import Refusal, UsageError
from .looking import Filter

_PAGE = 1000


def dlq(context: Context, options: Options) -> None:
    """List the dead letters, or requeue, discard or prune them.

    Raises:
        UsageError: the options do not go together.
    """
    requeue, discard, prune = options["requeue"] is not None, options["discard"] is not None, options["prune"]
    if options["older_than"] is not None and not prune:
        raise UsageError("--older-than says which dead letters to --prune")
    if requeue + discard + prune > 1:
        raise UsageError("one of --requeue, --discard and --prune")
    if discard:
        _discard(context, options)
    elif prune:
        _prune(context, options)
    elif requeue or options["everything"]:
        _requeue(context, options)
    else:
        looking.dead_letters(context, options)


def _requeue(context: Context, options: Options) -> None:
    ids = list(dict.fromkeys(options["requeue"] or ()))
    chosen = Filter("dead", options["task"], options["error_class"])
    ways = [bool(ids), options["everything"], _by_what_they_are(options)]
    if options["requeue"] is None or sum(ways) != 1:
        raise UsageError(
            "name the jobs (--requeue ID ...) or say --requeue with one of --all, --task NAME, --error-class NAME"
        )
    missing: list[str] = []
    if ids:
        count, missing = requeue_some(context, ids)
    elif options["everything"]:
        context.confirm(f"Requeue every dead letter of {', '.join(context.queues)}?", "nothing was requeued")
        count = sum(queue.requeue_dead() for _, queue in _existing(context))
    else:
        count = sum(_requeue_matching(queue, chosen) for _, queue in _existing(context))
    _say(context, "requeued", count, missing)


def _by_what_they_are(options: Options) -> bool:
    """Whether --task or --error-class was given, though it be empty."""
    return options["task"] is not None or options["error_class"] is not None


def requeue_some(context: Context, job_ids: list[str]) -> tuple[int, list[str]]:
    """Give these dead letters new attempts; returns how many, and the ids that no queue has among its dead letters."""
    count = 0
    missing = dict.fromkeys(job_ids)
    for _, queue in _existing(context):
        for job_id in _dead_of(queue, job_ids):
            try:
                count += queue.requeue_dead(job_id)
                missing.pop(job_id, None)
            except (JobNotFoundError, NotLeasedError):
                continue
    return count, list(missing)


def _dead_of(queue: Queue, job_ids: list[str]) -> Iterator[str]:
    """Those that are dead letters of this queue."""
    for job_id in job_ids:
        try:
            if queue.get(job_id).state is JobState.DEAD:
                yield job_id
        except JobNotFoundError:
            pass


def _discard(context: Context, options: Options) -> None:
    if options["everything"] or _by_what_they_are(options):
        raise UsageError("--discard goes by ids; --prune --older-than AGE takes --task and --error-class")
    ids = list(dict.fromkeys(options["discard"]))
    found = {name: list(_dead_of(queue, ids)) for name, queue in _existing(context)}
    missing = [job_id for job_id in ids if not any(job_id in some for some in found.values())]
    _confirm_forgetting(context, found, "nothing was discarded")
    discarded = _forget(context, found)
    _say(context, "discarded", discarded, missing)


def _say(context: Context, what: str, count: int, missing: list[str]) -> None:
    """What became of the dead letters, and which ids are of none.

    Raises:
        Refusal: some are.
    """
    if context.as_json:
        context.out.json({what: count, "not_found": missing})
    else:
        context.out.line(f"{count} {what}")
    if missing:
        raise Refusal(f"no dead letter has the id {', '.join(missing)}")


def _confirm_forgetting(context: Context, found: Mapping[str, list[str]], otherwise: str) -> None:
    total = sum(map(len, found.values()))
    if total:
        queues = ", ".join(name for name in found if found[name])
        context.confirm(f"Forget {count_of(total, 'dead letter')} of {queues}, for ever?", otherwise)


def _forget(context: Context, found: Mapping[str, list[str]]) -> int:
    """Forget dead letters, given by queue; how many."""
    count = 0
    for name, ids in found.items():
        if not ids:
            continue
        with context.writing(name) as queue:
            for at in range(0, len(ids), _PAGE):
                some = ids[at : at + _PAGE]
                count += len(some) - len(queue.discard_dead(some))
    return count


def _requeue_matching(queue: Queue, chosen: Filter) -> int:
    """Requeue page by page: whoever interrupts it finds each job in one place."""
    jobs = looking.jobs_of(queue, chosen)
    count = 0
    while ids := [job.id for job in islice(jobs, _PAGE)]:
        count += queue.requeue_dead(ids)
    return count


def _prune(context: Context, options: Options) -> None:
    age: float | None = options["older_than"]
    if age is None:
        raise UsageError("--prune needs --older-than AGE, such as 30d")
    if options["everything"]:
        raise UsageError("--all is for --requeue; --prune goes by --older-than")
    chosen = Filter("dead", options["task"], options["error_class"], died_before=time.time() - age)
    found = {name: [job.id for job in looking.jobs_of(queue, chosen)] for name, queue in _existing(context)}
    _confirm_forgetting(context, found, "nothing was pruned")
    pruned = _forget(context, found)
    if context.as_json:
        context.out.json({"pruned": pruned})
    else:
        context.out.line(f"{pruned} pruned")


def purge(context: Context, options: Options) -> None:
    """Forget every job of the chosen queues, whatever its state.

    Raises:
        UsageError: there are several queues and none was named.
    """
    if not context.given and len(context.queues) > 1:
        raise UsageError(f"name the queues to purge with --queue: {', '.join(context.queues)}")
    results: list[dict[str, Any]] = []
    for name, queue in _existing(context):
        counts = queue.stats()
        states = ", ".join(
            f"{number} {state}"
            for state in ("ready", "delayed", "leased", "done", "dead")
            if (number := getattr(counts, state))
        )
        if counts.total:
            jobs = "the only job" if counts.total == 1 else f"all {counts.total} jobs"
            context.confirm(f"Forget {jobs} of {name} ({states}), for ever?", "nothing was purged")
        purged = queue.purge() if counts.total else 0
        results.append({"queue": name, "purged": purged})
        if not context.as_json:
            context.out.line(f"{name}: {count_of(purged, 'job')} purged")
    if context.as_json:
        context.out.json({"queues": results})
    elif not results:
        context.out.line("nothing to purge")


def compact(context: Context, options: Options) -> None:
    """Write each log anew without finished history. A queue that fails does not keep the others from it.

    Raises:
        Refusal: a queue has failed.
    """
    results: list[dict[str, Any]] = []

    def one(name: str) -> None:
        if not context.exists(name):
            return
        with context.writing(name) as queue:
            result = queue.compact()
        results.append(documents.compaction_document(name, result))
        if not context.as_json:
            context.out.line(f"{name}: {result.describe()}")

    each = Each()
    each.run(context.queues, one)
    if context.as_json:
        context.out.json({"queues": results, "failed": each.documents()})
    each.conclude()
    if not results and not context.as_json:
        context.out.line("nothing to compact")


def _existing(context: Context) -> Iterator[tuple[str, Queue]]:
    """The chosen queues that have files, each open while it is looked at."""
    for name in context.queues:
        if context.exists(name):
            with context.writing(name) as queue:
                yield name, queue
