"""``recover --salvage``: what is left of a damaged log becomes a new generation, after a question that says what.

Invariant: a queue that is not damaged is left alone, and so is everything where the answer is not yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nobroker_django.engine.rescue import SalvageReport
from nobroker_django.engine.salvage import assess_salvage, salvage_queue
from nobroker_django.engine.wording import count_of

from . import looking
from .context import Context, Options
from .exits import UsageError

_SHOWN = 20  # of each kind; the report has all


def recover(context: Context, options: Options) -> None:
    """Report on the queues' files, or salvage what is damaged.

    Raises:
        UsageError: the options do not go together. Refusal: see ``looking.recover`` and ``salvage``.
    """
    if options["salvage"]:
        salvage(context, options)
    elif not options["interactive"]:
        raise UsageError("--yes answers the question of --salvage")
    else:
        looking.recover(context, options)


def salvage(context: Context, options: Options) -> None:
    """Salvage each damaged queue.

    Raises:
        Refusal: the answer was no. NobrokerError: the queue is in use, or cannot be salvaged; nothing was changed.
    """
    results: list[dict[str, Any]] = []
    for name in (*context.queues, *context.forgotten()):
        if not context.exists(name):
            continue
        plan = assess_salvage(context.directory, name)
        if plan is None:
            results.append({"queue": name, "salvaged": False})
            if not context.as_json:
                context.out.line(f"{name}: not damaged; there is nothing to salvage")
            continue
        if not context.as_json:
            for line in lines(plan):
                context.out.line(line)
        context.confirm(
            f"Make a new generation of {name} out of this, and keep the damaged log beside it?", "nothing was changed"
        )
        done = salvage_queue(context.directory, name) or plan
        results.append(document(done))
        if not context.as_json:
            context.out.line(
                f"{name}: salvaged: generation {done.new_generation} is live. The damaged log is kept in "
                f"{done.kept_path}; {done.report_path} lists all that may be lost or changed"
            )
    if context.as_json:
        context.out.json({"queues": results})
    elif not results:
        context.out.line(f"no queue in {context.directory} has been used yet")


def document(report: SalvageReport) -> dict[str, Any]:
    """What a salvage did, for ``--json``; offsets and sizes in bytes."""
    return {
        "queue": report.queue,
        "salvaged": report.new_generation is not None,
        "damaged_log": str(report.log_path),
        "damaged_generation": report.generation,
        "generation": report.new_generation,
        "kept": str(report.kept_path),
        "report": str(report.report_path),
        "records": report.records,
        "torn_bytes": report.torn_bytes,
        "jobs": report.jobs,
        "damage": [
            {"start": one.start, "stop": one.stop, "reason": one.reason, "names": one.names} for one in report.damage
        ],
        "lost": [{"job": one.job_id, "offset": one.offset, "record": one.kind} for one in report.lost],
        "changed": [{"job": one.job_id, "offset": one.offset, "what": one.what} for one in report.changed],
        "undecided": report.undecided,
    }


def lines(report: SalvageReport) -> list[str]:
    """What a salvage keeps and loses, for people."""
    name = report.queue
    jobs = ", ".join(f"{number} {state}" for state, number in report.jobs.items() if number) or "no jobs"
    shown = [f"{name}: {report.log_path}: {count_of(report.records, 'intact record')}, which make {jobs}"]
    shown += _some(
        name,
        [
            f"DAMAGE from byte {one.start} to {one.stop}: {one.reason}"
            + (f"; jobs named there: {', '.join(one.names)}" if one.names else "")
            for one in report.damage
        ],
    )
    shown += _some(
        name,
        [
            f"LOST: job {one.job_id}: its own record is gone; the last that speaks of it is {one.kind} "
            f"at byte {one.offset}"
            for one in report.lost
        ],
    )
    shown += _some(
        name, [f"CHANGED: job {one.job_id}, before byte {one.offset}: {one.what}" for one in report.changed]
    )
    if report.undecided:
        shown.append(
            f"{name}: UNDECIDED: {count_of(report.undecided, 'unfinished job')} without a record behind the last "
            "damage. What the damaged bytes said of them, if anything, is not known; they stay as they were before"
        )
    if report.torn_bytes:
        shown.append(f"{name}: a torn tail of {count_of(report.torn_bytes, 'byte')} is left out")
    return shown


def _some(name: str, texts: Sequence[str]) -> list[str]:
    shown = [f"{name}: {text}" for text in texts[:_SHOWN]]
    if len(texts) > _SHOWN:
        shown.append(f"{name}: and {len(texts) - _SHOWN} more of this kind")
    return shown
