"""Commands that look: stats, list, dlq, inspect, recover.

Invariant: nothing here changes a byte, takes a lock or creates a file. A reader that goes away (``| head``) ends the
work, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from nobroker_django.engine import inspection
from nobroker_django.engine.examination import examine_queue
from nobroker_django.engine.job import Job, QueueStats
from nobroker_django.engine.queue import Queue
from nobroker_django.engine.selection import ANY_MODULE
from nobroker_django.engine.wording import count_of

from . import documents, files
from .context import Context, Options
from .each import Each
from .exits import EXIT_DAMAGE, EXIT_REFUSED, Refusal
from .text import table

PAGE = 500
STATES = ("ready", "delayed", "leased", "done", "dead")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are meant; ``None`` leaves that open. ``since`` (enqueued) and ``died_before`` are Unix times.

    ``error_class`` without a dot is a class of that name in any module.
    """

    state: str | None = None
    task: str | None = None
    error_class: str | None = None
    since: float | None = None
    died_before: float | None = None

    def page(self, queue: Queue, after: int) -> list[Job]:
        """The next jobs behind the ``seq`` ``after``, among them all that are meant: see ``passes``."""
        waits = self.state in ("ready", "delayed")
        error_class = self.error_class
        if error_class is not None and "." not in error_class:
            error_class = ANY_MODULE + error_class
        return queue.list_jobs(
            "ready" if waits else self.state,
            limit=PAGE,
            after=after,
            task=self.task,
            error_class=error_class,
            since=self.since,
            delayed=self.state == "delayed" if waits else None,
        )

    def passes(self, job: Job) -> bool:
        """Whether a job of ``page`` is meant."""
        return self.died_before is None or (documents.died_at(job) or 0.0) < self.died_before


def jobs_of(queue: Queue, wanted: Filter) -> Iterator[Job]:
    """The jobs that are meant, in insertion order; a page of them is held at a time."""
    after = -1
    while page := wanted.page(queue, after):
        yield from filter(wanted.passes, page)
        after = page[-1].seq


def stats(context: Context, options: Options) -> None:
    """How many jobs each queue has, by state. A queue that cannot be read does not keep the others from it.

    Raises:
        Refusal: a queue has failed.
    """
    reports: list[documents.StatsReport] = []
    forgotten = context.forgotten()

    def one(name: str) -> None:
        with context.reading(name) as queue:
            counts = QueueStats() if queue is None else queue.stats()
            reports.append(documents.StatsReport(name, counts, name not in forgotten))

    each = Each()
    each.run((*context.queues, *forgotten), one)
    if context.as_json:
        context.out.json({"queues": [report.document() for report in reports], "failed": each.documents()})
    elif reports:
        heading = documents.StatsReport.HEADINGS
        for line in table([heading, *(report.row() for report in reports)], right=range(1, len(heading))):
            context.out.line(line)
        for report in reports:
            if not report.known:
                context.out.line(f"Queue {report.name} is not in NOBROKER['QUEUES']: no worker serves its jobs.")
            _say_how_far_behind(context, report.name, report.stats)
    each.conclude()


def list_jobs(context: Context, options: Options) -> None:
    """The jobs, one a line."""
    _list(context, Filter(options["state"], options["task"], None, options["since"]), options["limit"], "jobs")


def dead_letters(context: Context, options: Options) -> None:
    """The dead letters, one a line."""
    _list(context, Filter("dead", options["task"], options["error_class"]), options["limit"], "dead letters")


def _list(context: Context, wanted: Filter, limit: int, what: str) -> None:
    found, shown, more = [], 0, []
    now = time.time()
    for name in context.queues:
        with context.reading(name) as queue:
            count = 0
            for job in () if queue is None else jobs_of(queue, wanted):
                if count == limit:
                    more.append(name)
                    break
                count += 1
                if context.as_json:
                    found.append(documents.job_document(job, name))
                elif what == "jobs":
                    context.out.line(documents.job_line(name, job, now))
                else:
                    context.out.line(documents.dead_letter_line(name, job))
                if context.out.lost:
                    return
            shown += count
            if queue is not None:
                _say_how_far_behind(context, name, queue.stats())
    if context.as_json:
        context.out.json({"queue": context.label, "jobs": found})
        return
    for name in more:
        context.out.line(f"{name}: the first {limit} are shown; --limit shows more")
    if not shown:
        context.out.line(f"no {what}")


def _say_how_far_behind(context: Context, name: str, counts: QueueStats) -> None:
    if counts.behind_bytes:
        context.out.remark(
            f"{name}: this is the state before the last {count_of(counts.behind_bytes, 'byte')} of the log"
        )


def inspect(context: Context, options: Options) -> None:
    """The log, record by record.

    Raises:
        UsageError: a generation of several queues. CorruptLogError: damage; what is before it was shown.
    """
    generation, job_id, limit = options["generation"], options["job"], options["limit"]
    if generation is not None:
        context.only_queue("--generation is that of one queue")
    shown = 0
    for name in context.queues:
        if not context.exists(name):
            continue
        with inspection.open_view(context.directory, name, generation) as view:
            if not context.as_json:
                context.out.line(f"{name}: generation {view.log.generation}, {view.log.path}, up to byte {view.end}")
                context.out.line(files.RECORD_HEADINGS)
            for record in view.records():
                if job_id is not None and record.job_id != job_id:
                    continue
                if limit is not None and shown >= limit:
                    return
                shown += 1
                if context.as_json:
                    context.out.json(files.record_document(record, name))
                else:
                    context.out.line(files.record_line(record))
                if context.out.lost:
                    return
            if view.size > view.end:
                context.out.remark(
                    f"{name}: {count_of(view.size - view.end, 'more byte')}: a write under way, or a torn tail (see "
                    "recover)"
                )


def recover(context: Context, options: Options) -> None:
    """The state of each queue's files: damage, a torn tail, and what repairs have cut off and kept.

    Raises:
        Refusal: a queue is damaged (exit code 3).
    """
    names = [name for name in (*context.queues, *context.forgotten()) if context.exists(name)]
    found = [examine_queue(context.directory, name) for name in names]
    if context.as_json:
        context.out.json({"queues": [files.examination_document(one) for one in found]})
    else:
        for one in found:
            for line in files.examination_lines(one):
                context.out.line(line)
        if not found:
            context.out.line(f"no queue in {context.directory} has been used yet")
    if any(files.is_damaged(one) for one in found):
        raise Refusal("damage found; nothing was changed", EXIT_DAMAGE)
    if any(one.problem is not None for one in found):
        raise Refusal("a queue cannot be read by this release; nothing was changed", EXIT_REFUSED)
