"""Commands of ``python -m nobroker_django`` alone: add, take and finish jobs by hand, and run a function on them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from nobroker_django.engine.job import Job
from nobroker_django.engine.wording import count_of
from nobroker_django.engine.worker import Worker

from . import documents
from .context import Context, Options
from .exits import Refusal, UsageError


def enqueue(context: Context, options: Options) -> None:
    """Add a job, creating the queue where there is none; prints its id."""
    name = context.queues[0]
    with context.writing(name) as queue:
        job = queue.enqueue(
            options["payload"],
            priority=options["priority"] or 0,
            delay=options["delay"] or 0.0,
            max_attempts=options["max_attempts"],
            job_id=options["job_id"],
        )
    _show(context, name, [job], lambda job: job.id)
    if not job.created:
        context.out.remark(f"job {job.id} was there already; nothing was added")


def lease(context: Context, options: Options) -> None:
    """Take jobs; prints each with its fencing token, which ``ack`` and ``nack`` take."""
    name = context.queues[0]
    context.exists(name)
    with context.writing(name) as queue:
        jobs = queue.lease(
            options["count"], visibility_timeout=options["visibility_timeout"], timeout=options["timeout"]
        )
    _show(context, name, jobs, documents.lease_line)
    if not jobs and not context.as_json:
        context.out.line("no job is ready")


def ack(context: Context, options: Options) -> None:
    """A job is done. Without a token nobody asks whose lease it is: that is the operator's right, and risk."""
    name = context.queues[0]
    context.exists(name)
    with context.writing(name) as queue:
        queue.ack(_held(options), result=options["result"])
        job = queue.get(options["id"])
    _show(context, name, [job], lambda job: f"{job.id}  done")


def nack(context: Context, options: Options) -> None:
    """An attempt failed."""
    name = context.queues[0]
    context.exists(name)
    with context.writing(name) as queue:
        job = queue.nack(_held(options), error=options["error"], delay=options["delay"])
    _show(context, name, [job], lambda job: documents.job_line(name, job))


def work(context: Context, options: Options) -> None:
    """Run a function on each job, until a signal, ``--max-jobs`` or ``--idle-timeout`` ends it."""
    name = context.queues[0]
    handler = load_function(options["function"])
    with context.writing(name) as queue:
        stats = Worker(
            queue,
            handler,
            concurrency=options["threads"],
            max_jobs=options["max_jobs"],
            idle_timeout=options["idle_timeout"],
        ).run()
    counts = stats.to_dict()
    if context.as_json:
        context.out.json({"queue": name, **counts})
    else:
        rest = ", ".join(f"{counts[key]} {key.replace('_', ' ')}" for key in counts if key != "leased")
        context.out.line(f"{name}: {count_of(stats.leased, 'delivery', 'deliveries')}: {rest}")


def load_function(text: str) -> Callable[[Job], Any]:
    """The function that ``module:function`` names.

    Raises:
        UsageError: the text has another shape. Refusal: there is no such module or function.
    """
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path):
        raise UsageError(f"{text!r} is not module:function, such as mysite.jobs:handle")
    try:
        found: Any = import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise Refusal(f"cannot load {text}: {error}") from error
    if not callable(found):
        raise Refusal(f"{text} is not callable: {found!r:.80}")
    function: Callable[[Job], Any] = found
    return function


def _held(options: Options) -> Job | str:
    """What the engine takes for the job of the command line: its id, with the token if one was given."""
    if options["token"] is None:
        return str(options["id"])
    return Job(options["id"], None, lease_token=options["token"])


def _show(context: Context, name: str, jobs: list[Job], line: Callable[[Job], str]) -> None:
    if context.as_json:
        context.out.json({"queue": name, "jobs": [documents.job_document(job, name) for job in jobs]})
        return
    for job in jobs:
        context.out.line(line(job))
