"""The options of the commands that exist twice: as ``manage.py nobroker_NAME`` and as ``-m nobroker_django NAME``."""

from __future__ import annotations

from argparse import ArgumentParser

from . import values
from .looking import STATES

ALL_QUEUES = "only this queue (may be repeated); all queues if left out"


def add_json(parser: ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_no_input(parser: ArgumentParser) -> None:
    """``--yes``, as Django says it too."""
    parser.add_argument(
        "--yes", "--noinput", "--no-input", action="store_false", dest="interactive", help="do not ask"
    )


def add_limit(parser: ArgumentParser, default: int | None = 100) -> None:
    """``--limit``."""
    text = "show at most N" if default is None else f"show at most N of each queue (default {default})"
    parser.add_argument("--limit", type=values.positive_integer, default=default, metavar="N", help=text)


def add_list(parser: ArgumentParser) -> None:
    """What ``list`` takes."""
    parser.add_argument("--state", choices=STATES, help="only jobs in this state")
    parser.add_argument("--task", metavar="NAME", help="only calls of this task")
    parser.add_argument(
        "--since", type=values.since, metavar="WHEN", help="only jobs enqueued since: 15m, 6h, 2d, or an ISO 8601 time"
    )
    add_limit(parser)
    add_json(parser)


def add_dlq(parser: ArgumentParser) -> None:
    """What ``dlq`` takes."""
    parser.add_argument(
        "--requeue",
        nargs="*",
        metavar="ID",
        help="requeue these, or those of --all, --task or --error-class",
    )
    parser.add_argument("--all", action="store_true", dest="everything", help="with --requeue: all dead letters; asks")
    parser.add_argument("--task", metavar="NAME", help="only dead letters of this task")
    parser.add_argument(
        "--error-class",
        metavar="NAME",
        help="only those whose last error is of this class, with its module or without",
    )
    parser.add_argument("--discard", nargs="+", metavar="ID", help="forget these; asks")
    parser.add_argument("--prune", action="store_true", help="forget the dead letters that are --older-than; asks")
    parser.add_argument(
        "--older-than", type=values.age, metavar="AGE", help="with --prune: dead for at least so long, such as 30d"
    )
    add_no_input(parser)
    add_limit(parser)
    add_json(parser)


def add_inspect(parser: ArgumentParser) -> None:
    """What ``inspect`` takes."""
    parser.add_argument(
        "--generation", type=int, metavar="N", help="this log instead of the live one (needs one --queue)"
    )
    parser.add_argument("--job", metavar="ID", help="only records of this job")
    add_limit(parser, None)
    parser.add_argument("--json", action="store_true", help="print JSON lines, one a record")


def add_recover(parser: ArgumentParser) -> None:
    """What ``recover`` takes."""
    parser.add_argument(
        "--salvage",
        action="store_true",
        help="make a new generation of what is left of a damaged log, and keep that log; asks; wants the queue unused",
    )
    add_no_input(parser)
    add_json(parser)


def add_verify(parser: ArgumentParser) -> None:
    """What ``verify`` takes."""
    parser.add_argument("names", nargs="*", metavar="QUEUE", help="these queues, as with --queue")
    add_json(parser)


def add_purge(parser: ArgumentParser) -> None:
    """What ``purge`` takes."""
    add_no_input(parser)
    add_json(parser)


def add_adding(parser: ArgumentParser) -> None:
    """What both kinds of ``enqueue`` take beside the job itself."""
    parser.add_argument("--delay", type=values.seconds, metavar="SECONDS", help="not before so many seconds from now")
    parser.add_argument("--priority", type=int, metavar="N", help="higher runs first")
    parser.add_argument("--job-id", metavar="ID", help="makes it idempotent: a known id adds nothing")
    add_json(parser)
