"""Values of jobs as HTML: escaped whatever they hold, cut to a size that a page can bear, times with their offset.

Data of jobs come from outside. Nothing here marks a text as safe that did not go through ``format_html``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from nobroker_django.cli.text import duration
from nobroker_django.engine.job import JobError
from nobroker_django.engine.wording import count_of

LONGEST_BLOCK = 20_000
LONGEST_CELL = 80
NOTHING = "-"


def printable(text: str) -> str:
    """``text`` with everything escaped that a browser would hide or that would turn the line around.

    Line ends and tabs stay; lone surrogates, which no response can carry, are escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def cell(text: str | None) -> str:
    """One line for a list, cut."""
    if not text:
        return NOTHING
    line = printable(" ".join(text[: 4 * LONGEST_CELL].split()))
    return line if len(line) <= LONGEST_CELL else line[: LONGEST_CELL - 1] + "…"


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """A JSON value as text for a person. Nothing is escaped for HTML yet."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent)
    except (ValueError, RecursionError) as error:
        # Only version 1 could store such values: integers with thousands of digits, hundreds of levels.
        return f"(cannot be shown: {error})"


def block(text: str | None) -> str | SafeString:
    """A longer text with its line ends, cut, with a note of what is missing."""
    if text is None:
        return NOTHING
    shown = printable(text[:LONGEST_BLOCK])
    if len(text) <= LONGEST_BLOCK:
        return format_html('<pre class="nobroker-block">{}</pre>', shown)
    return format_html(
        '<pre class="nobroker-block">{}…</pre><p class="help">Cut after {} of {} characters.</p>',
        shown,
        f"{LONGEST_BLOCK:,}",
        f"{len(text):,}",
    )


def moment(seconds: float | None, *, exact: bool = False) -> str | SafeString:
    """Unix seconds as date and time in the project's zone.

    Args:
        exact: with milliseconds and offset; otherwise these are in the tooltip.
    """
    if seconds is None:
        return NOTHING
    try:
        utc = datetime.fromtimestamp(seconds, UTC)
        zone = timezone.get_current_timezone() if settings.USE_TZ else timezone.get_default_timezone()
        local = utc.astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return f"{seconds!r} (Unix seconds)"
    precise = local.isoformat(sep=" ", timespec="milliseconds")
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        local.isoformat(),
        precise,
        precise if exact else f"{local:%Y-%m-%d %H:%M:%S}",
    )


def run(began: float, extensions: int, now: float) -> SafeString:
    """For how long a job has been running at a moment (Unix seconds), and how often its lease was extended."""
    extended = f", extended {count_of(extensions, 'time')}" if extensions else ""
    return format_html("running for {}{}", duration(max(0.0, now - began)), extended)


def since(began: float, now: float) -> SafeString:
    """A moment, and how long ago that is."""
    return format_html("{} ({} ago)", moment(began, exact=True), duration(max(0.0, now - began)))


def bytes_of(count: int) -> str:
    """A number of bytes for a sentence."""
    return f"{count:,} byte" if count == 1 else f"{count:,} bytes"


def state(name: str) -> SafeString:
    """A state; its colour is the style sheet's business."""
    return format_html('<span class="nobroker-state nobroker-{}">{}</span>', name, name)


def warning(text: str) -> SafeString:
    """A sentence in the place of a value that cannot be read."""
    return format_html('<span class="nobroker-warning">{}</span>', text)


def errors(history: Sequence[JobError]) -> str | SafeString:
    """Failed attempts, the last one first; its traceback is open, those of the others can be opened."""
    if not history:
        return NOTHING
    return format_html_join(
        "",
        '<details class="nobroker-error"{}><summary>Attempt {}, {}{}: <strong>{}</strong>{}</summary>{}</details>',
        (
            (
                SafeString(" open") if number == 0 else "",
                error.attempt,
                moment(error.at, exact=True),
                f", {cell(error.worker)}" if error.worker else "",
                cell(error.error_class) if error.error_class else "",
                f" {cell(error.message)}" if error.message else "",
                block(_text_of(error)),
            )
            for number, error in enumerate(reversed(history))
        ),
    )


def _text_of(error: JobError) -> str:
    """The traceback; if there is none, the whole message."""
    return error.traceback or error.message or "(no message)"
