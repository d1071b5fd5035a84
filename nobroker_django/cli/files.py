"""Records of a log, and the state of a queue's files, as JSON documents and as lines of text."""

from __future__ import annotations

from typing import Any

from nobroker_django.engine.errors import UnsupportedVersionError
from nobroker_django.engine.examination import Examination, Kept
from nobroker_django.engine.inspection import LogRecord
from nobroker_django.engine.wording import count_of

from .documents import ERROR_PREVIEW, payload_text, short_json
from .text import iso, shorten


def record_document(record: LogRecord, queue: str) -> dict[str, Any]:
    """A record for ``inspect --json``; ``record`` holds the fields as they stand in the log."""
    return {
        "queue": queue,
        "generation": record.generation,
        "offset": record.offset,
        "size_bytes": record.size_bytes,
        "type": record.type,
        "type_number": record.number,
        "job": record.job_id,
        "at": record.at,
        "at_iso": iso(record.at),
        "record": record.fields,
    }


def record_line(record: LogRecord) -> str:
    """A record on one line: offset, size, type, time, job, and what it says."""
    line = (
        f"{record.offset:>10}  {record.size_bytes:>7}  {record.type:<8}  {iso(record.at) or '-':<24}  "
        f"{record.job_id or '-':<32}  {_details(record)}"
    )
    return line.rstrip()


RECORD_HEADINGS = f"{'OFFSET':>10}  {'SIZE':>7}  {'TYPE':<8}  {'TIME':<24}  {'JOB':<32}  WHAT IT SAYS"


def _details(record: LogRecord) -> str:
    fields = record.fields
    words = []
    if "attempts" in fields:
        words.append(f"attempt {fields['attempts']}")
    if "payload" in fields:
        words.append(payload_text(fields["payload"]))
    for name, text in (("deadline", "until"), ("available_at", "not before"), ("keep_until", "kept until")):
        if isinstance(fields.get(name), int | float):
            words.append(f"{text} {iso(fields[name])}")
    error = ": ".join(fields[name] for name in ("error_class", "error") if isinstance(fields.get(name), str))
    if error:
        words.append(shorten(error, ERROR_PREVIEW))
    if fields.get("result") is not None:
        words.append(f"result {short_json(fields['result'])}")
    if isinstance(fields.get("n"), int) and fields["n"] > 1:
        words.append(f"first of {fields['n']} records of one write")
    if "unreadable" in fields:
        words.append(f"no JSON object: {short_json(fields['unreadable'])}")
    if record.type.isdigit():
        words.append("unknown to this release")
    return ", ".join(words)


# -- the state of a queue's files


def examination_document(found: Examination) -> dict[str, Any]:
    """What ``recover`` found, for ``--json``; offsets and sizes in bytes."""
    problem = found.problem
    return {
        "queue": found.queue,
        "state": state_of_files(found),
        "directory": str(found.directory),
        "generation": found.generation,
        "version": found.version,
        "log": None if found.log_path is None else str(found.log_path),
        "generations": found.generations,
        "size_bytes": found.size_bytes,
        "records": found.records,
        "published_end": found.published_end,
        "synced": found.synced,
        "syncing": found.syncing,
        "poisoned": found.poisoned,
        "last_secured": found.last_secured,
        "last_secured_iso": iso(found.last_secured),
        "torn_tail": None
        if found.torn_offset is None
        else {"offset": found.torn_offset, "size_bytes": found.torn_bytes, "reason": found.torn_reason},
        "damage": None
        if problem is None
        else {
            "path": problem.path,
            "offset": problem.offset,
            "reason": problem.reason,
            "message": str(problem),
        },
        "kept": [
            {
                "path": str(kept.path),
                "generation": kept.generation,
                "offset": kept.offset,
                "size_bytes": kept.size_bytes,
                "records": kept.records,
                "reason": kept.reason,
                "at": kept.at,
                "at_iso": iso(kept.at),
            }
            for kept in found.kept
        ],
        "salvaged": [str(path) for path in found.salvaged],
    }


def is_damaged(found: Examination) -> bool:
    """Whether acknowledged data are damaged, or nobody can say which log is the live one."""
    return found.problem is not None and not isinstance(found.problem, UnsupportedVersionError)


def state_of_files(found: Examination) -> str:
    """In one word: damaged, unsupported, torn, doubtful or whole."""
    if found.problem is not None:
        return "damaged" if is_damaged(found) else "unsupported"
    if found.torn_offset is not None:
        return "torn"
    return "doubtful" if found.poisoned else "whole"


def examination_lines(found: Examination) -> list[str]:
    """What ``recover`` found, for people."""
    name = found.queue
    lines = []
    if found.log_path is not None:
        lines.append(
            f"{name}: generation {found.generation}, {found.log_path}, {count_of(found.size_bytes, 'byte')}, "
            f"{count_of(found.records, 'intact record')}"
        )
    if found.problem is not None:
        lines.append(f"{name}: {state_of_files(found).upper()}: {found.problem}")
    elif found.torn_offset is not None:
        lines.append(
            f"{name}: torn tail of {count_of(found.torn_bytes, 'byte')} at byte {found.torn_offset} "
            f"({found.torn_reason}). No acknowledged job is in it; the next writer cuts it off and keeps it."
        )
    elif found.poisoned:
        lines.append(f"{name}: a sync failed or was interrupted; the next writer secures the end of the log first")
    else:
        lines.append(f"{name}: whole")
    if found.published_end is not None:
        lines.append(
            f"{name}: control words: published end {found.published_end}, on the disk for certain up to "
            f"{found.synced}{', a sync is under way' if found.syncing else ''}{', poisoned' if found.poisoned else ''}"
        )
    elif found.log_path is not None:
        lines.append(
            f"{name}: control words: none that belong to this log (a copy, or left so by a crash)"
            if found.version != 1
            else f"{name}: format version 1, as written by nobroker 0.1; the next writer makes a new generation of it"
        )
    others = [generation for generation in found.generations if generation != found.generation]
    if others and found.generation is not None:
        lines.append(f"{name}: other logs there: generation {', '.join(map(str, others))}")
    lines += [f"{name}: {_kept_line(kept)}" for kept in found.kept]
    lines += [f"{name}: kept by a salvage: {path}" for path in found.salvaged]
    if not found.kept:
        lines.append(f"{name}: no repair has cut anything off")
    return lines


def _kept_line(kept: Kept) -> str:
    when = f" at {iso(kept.at)}" if kept.at is not None else ""
    whole = f"{count_of(kept.records, 'intact record')}, then: " if kept.records else ""
    return (
        f"a repair{when} cut {count_of(kept.size_bytes, 'byte')} at byte {kept.offset} of generation "
        f"{kept.generation} and kept them in {kept.path} ({whole}{kept.reason})"
    )
