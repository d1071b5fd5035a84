"""The command ``verify``: everything about a queue's files that can be checked, and what was found.

Invariant: as for the commands that look, nothing is changed, locked or created.
"""

from __future__ import annotations

import sys
from typing import Any

from nobroker_django.engine.findings import Finding, Kind, Verification
from nobroker_django.engine.verification import verify_queue
from nobroker_django.engine.wording import count_of

from .context import Context, Options
from .exits import EXIT_DAMAGE, EXIT_REFUSED, EXIT_UNHEALTHY, Refusal
from .progress import ProgressBar

_SHOWN = 100  # findings of one queue, on a terminal; ``--json`` gives those that were kept


def verify(context: Context, options: Options) -> None:
    """Check each queue.

    Raises:
        Refusal: damage (exit code 3), or something that is not as it should be but concerns no acknowledged job (4).
    """
    results = []
    for name in (*context.queues, *context.forgotten()):
        if not context.exists(name):
            continue
        with ProgressBar(context.out.remarks or sys.stderr, f"{name}: verifying") as bar:
            found = verify_queue(context.directory, name, progress=bar)
        results.append(found)
        if not context.as_json:
            for line in lines(found):
                context.out.line(line)
    if context.as_json:
        context.out.json({"queues": [document(found) for found in results]})
    elif not results:
        context.out.line(f"no queue in {context.directory} has been used yet")
    if any(found.damaged for found in results):
        raise Refusal("damage found; nothing was changed", EXIT_DAMAGE)
    if any(found.unsupported for found in results):
        raise Refusal("a queue cannot be read by this release; nothing was changed", EXIT_REFUSED)
    if not all(found.whole for found in results):
        raise Refusal("not everything is as it should be; nothing was changed", EXIT_UNHEALTHY)


def state(found: Verification) -> str:
    """In one word: damaged, unsupported, unhealthy or whole."""
    if found.damaged:
        return "damaged"
    if found.unsupported:
        return "unsupported"
    return "whole" if found.whole else "unhealthy"


def document(found: Verification) -> dict[str, Any]:
    """What was found, for ``--json``; offsets and sizes in bytes."""
    return {
        "queue": found.queue,
        "state": state(found),
        "directory": str(found.directory),
        "generation": found.generation,
        "version": found.version,
        "log": None if found.log_path is None else str(found.log_path),
        "end": found.end,
        "records": found.records,
        "writes": found.writes,
        "jobs": found.jobs,
        "projection": found.projection,
        "behind_bytes": found.behind_bytes,
        "findings": [
            {
                "kind": finding.kind.value,
                "reason": finding.reason,
                "path": finding.path,
                "offset": finding.offset,
                "job": finding.job_id,
            }
            for finding in found.findings
        ],
        "unlisted_findings": found.unlisted,
        "notes": found.notes,
    }


def lines(found: Verification) -> list[str]:
    """What was found, for people."""
    name, shown = found.queue, []
    if found.log_path is not None:
        shown.append(
            f"{name}: generation {found.generation}, {found.log_path}, checked up to byte {found.end}: "
            f"{count_of(found.records, 'record')} in {count_of(found.writes, 'write')}"
        )
        jobs = ", ".join(f"{number} {of}" for of, number in sorted(found.jobs.items()) if number) or "no jobs"
        shown.append(f"{name}: by the log: {jobs}; {_projection(found)}")
    shown += [f"{name}: {_line(finding)}" for finding in found.findings[:_SHOWN]]
    left = len(found.findings) - _SHOWN + found.unlisted
    if left > 0:
        shown.append(f"{name}: and {count_of(left, 'finding')} more")
    if any(finding.kind is Kind.PROJECTION for finding in found.findings):
        shown.append(
            f"{name}: the projection is a cache: stop everything that uses the queue and remove "
            f"{found.directory / f'{name}.run'}, and it is made anew from the log"
        )
    shown += [f"{name}: {note}" for note in found.notes]
    shown.append(f"{name}: {state(found).upper() if found.findings else state(found)}")
    return shown


def _projection(found: Verification) -> str:
    behind = f", as far as it goes ({count_of(found.behind_bytes, 'byte')} behind)" if found.behind_bytes else ""
    return {
        "equal": f"the projection says the same{behind}",
        "differs": "the projection says something else",
        "skipped": "the projection was not compared with a damaged log",
    }.get(found.projection, "no projection to compare with")


def _line(finding: Finding) -> str:
    where = "" if finding.offset is None else f" at byte {finding.offset}"
    job = "" if finding.job_id is None else f", job {finding.job_id}"
    return f"{finding.kind.value.upper()}{where}{job}: {finding.reason}"
