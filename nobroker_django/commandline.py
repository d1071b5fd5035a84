"""What the management commands have in common: exit codes, safe text, JSON, broken pipes.

Invariant: one line of text per item whatever the data hold (control characters and what the terminal cannot show are
escaped), valid JSON with ``--json``, and an error that is a sentence and an exit code, not a traceback.

Exit codes: 0 done, 1 refused, 2 usage, 3 damage found, 4 unhealthy, 130 interrupted; ``nobroker_work`` 5: jobs
given back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from . import conf
from .engine.errors import CorruptLogError, NobrokerError
from .engine.job import Job

EXIT_REFUSED, EXIT_USAGE, EXIT_DAMAGE, EXIT_UNHEALTHY, EXIT_GIVEN_BACK, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 130
SCHEMA = 1
PREVIEW = 500


class NobrokerCommand(BaseCommand):
    """Base of the commands: subclasses write ``run()`` and raise; the exit codes are set here."""

    requires_system_checks: list[str] | tuple[str, ...] | Literal["__all__"] = []

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_options(parser)

    def add_options(self, parser: CommandParser) -> None:
        """The command's own options."""

    def run(self, options: dict[str, Any]) -> None:
        """The command itself."""
        raise NotImplementedError

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.run(options)
        except CorruptLogError as error:
            raise CommandError(escape(str(error)), returncode=EXIT_DAMAGE) from error
        except (NobrokerError, ImproperlyConfigured) as error:
            raise CommandError(escape(str(error)), returncode=EXIT_REFUSED) from error
        except KeyboardInterrupt:
            raise CommandError("interrupted", returncode=EXIT_INTERRUPTED) from None

    @property
    def stream(self) -> TextIO | None:
        """Standard output itself, below Django's wrapper; None when the process was started without one."""
        return getattr(self.stdout, "_out", None)

    def print_line(self, text: str) -> None:
        """One line on standard output, escaped; a reader that has gone away (``| head``) is no error."""
        write_line(self.stream, escape(text))

    def print_json(self, document: dict[str, Any]) -> None:
        """A document as JSON on one line; non-ASCII and control characters are escaped by JSON itself."""
        self.print_line(json.dumps({"schema": SCHEMA, **document}))


def add_queue_option(parser: CommandParser, text: str) -> None:
    """``--queue/-q``, which may be repeated."""
    parser.add_argument("-q", "--queue", action="append", dest="queues", metavar="NAME", help=text)


def chosen_queues(given: Iterable[str] | None) -> list[str]:
    """The queues that were named, each once and in that order; all of ``NOBROKER["QUEUES"]`` if none was.

    Raises:
        CommandError: a name is not in ``NOBROKER["QUEUES"]`` (exit code 2).
    """
    known = conf.get_settings().queues
    names = list(dict.fromkeys(given or known))
    for name in names:
        if name not in known:
            raise CommandError(
                f"there is no queue {escape(name)!r} in NOBROKER['QUEUES']. Known queues: {', '.join(known)}",
                returncode=EXIT_USAGE,
            )
    return names


def positive_integer(text: str) -> int:
    """An argparse type: an integer above 0."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def seconds(text: str) -> float:
    """An argparse type: a finite number of seconds, 0 or more."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def escape(text: str) -> str:
    """``text`` on one line: control characters, line ends, direction marks and surrogates as backslash escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def shorten(text: str, limit: int = PREVIEW) -> str:
    """``text``, cut after ``limit`` characters with a mark."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def iso(moment: float | None) -> str | None:
    """Unix seconds as ISO 8601 in UTC; None stays None."""
    if moment is None:
        return None
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def job_document(job: Job, queue: str) -> dict[str, Any]:
    """A job for ``--json``: its fields, the queue, and every time in both forms."""
    document = {"queue": queue, **job.to_dict()}
    for name in ("available_at", "enqueued_at", "lease_deadline", "finished_at"):
        document[f"{name}_iso"] = iso(document[name])
    for error in document["errors"]:
        error["at_iso"] = iso(error["at"])
    return document


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Rows as lines with aligned columns; ``right`` names the columns (from 0) that are flush right."""
    cells = [[escape(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    flush_right = set(right)
    return [
        "  ".join(
            cell.rjust(widths[column]) if column in flush_right else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]


def write_line(stream: TextIO | None, text: str) -> bool:
    """Write one line; returns False when nobody can read it any more.

    A stream that cannot be written is put aside (its descriptor is pointed at the null device), so that neither
    the next line nor the interpreter's flush at exit turns a lost reader into a failed command.
    """
    if stream is None:
        return False
    try:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except ValueError:  # closed
        return False
    except OSError:
        _discard(stream)
        return False
    return True


def _discard(stream: TextIO) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass
