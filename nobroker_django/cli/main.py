"""``python -m nobroker_django``: a queue, at a terminal, with nothing but its directory.

Invariant: no Django is imported and no settings are read. What is written into an existing queue gets the modes that
its files have.
"""

from __future__ import annotations

import argparse
import logging
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nobroker_django import __version__
from nobroker_django.engine import inspection
from nobroker_django.engine.errors import NobrokerError
from nobroker_django.engine.queue import Queue

from . import arguments, changing, direct, looking, salvaging, values, verifying
from .context import Context, Options
from .exits import EXIT_INTERRUPTED, EXIT_USAGE, Refusal, UsageError, exit_code
from .output import Output
from .text import escape

Command = Callable[[Context, Options], None]
DEFAULT_DIRECTORY = "./.nobroker"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    try:
        options = vars(parser.parse_args(argv))
    except SystemExit as error:  # argparse has said what it had to say
        return error.code if isinstance(error.code, int) else EXIT_USAGE
    out = Output(sys.stdout, sys.stderr)
    _log_to(sys.stderr)
    try:
        options["command"](_context(options, out), options)
    except Refusal as refusal:
        out.remark(f"{parser.prog}: {refusal}")
        return refusal.code
    except NobrokerError as error:
        out.remark(f"{parser.prog}: {error}")
        return exit_code(error)
    except KeyboardInterrupt:
        out.remark(f"{parser.prog}: interrupted")
        return EXIT_INTERRUPTED
    return 0


def build_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    parser = argparse.ArgumentParser(
        prog="python -m nobroker_django",
        description="Look at and work on the job queues of a directory, without a Django project.",
        epilog="Exit codes: 0 done, 1 refused, 2 usage, 3 damage found, 4 unhealthy (verify), 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"nobroker_django {__version__}")
    _add_place(parser, default=True)
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)

    def add(name: str, command: Command, text: str, *, one_queue: bool = False) -> argparse.ArgumentParser:
        child = commands.add_parser(name, help=text, description=text)
        _add_place(child, default=False)
        child.set_defaults(command=command, one_queue=one_queue)
        return child

    arguments.add_json(add("stats", looking.stats, "count the jobs of each queue, by state"))
    arguments.add_list(add("list", looking.list_jobs, "list jobs"))
    _add_enqueue(add("enqueue", direct.enqueue, "add a job; prints its id", one_queue=True))
    _add_lease(add("lease", direct.lease, "take jobs; prints each with its token", one_queue=True))
    _add_ack(add("ack", direct.ack, "a job is done", one_queue=True))
    _add_nack(add("nack", direct.nack, "an attempt failed", one_queue=True))
    _add_work(add("work", direct.work, "run a function on each job", one_queue=True))
    arguments.add_dlq(add("dlq", changing.dlq, "list, requeue or prune dead letters"))
    arguments.add_inspect(add("inspect", looking.inspect, "show the log, record by record"))
    arguments.add_recover(add("recover", salvaging.recover, "report damage and what repairs cut; or --salvage"))
    arguments.add_verify(add("verify", verifying.verify, "check every record, every transition and the projection"))
    arguments.add_json(add("compact", changing.compact, "write the log anew without finished history"))
    arguments.add_purge(add("purge", changing.purge, "forget every job; asks", one_queue=True))
    return parser


def _add_place(parser: argparse.ArgumentParser, *, default: bool) -> None:
    """``--dir`` and ``--queue``, before or behind the command."""
    missing = argparse.SUPPRESS
    parser.add_argument(
        "-d", "--dir", default=DEFAULT_DIRECTORY if default else missing, metavar="PATH",
        help=f"directory of the queues (default {DEFAULT_DIRECTORY})",
    )  # fmt: skip
    parser.add_argument(
        "-q", "--queue", action="append", dest="queues", default=None if default else missing, metavar="NAME",
        help="this queue; by default all that are there, or 'default' where one is needed",
    )  # fmt: skip


def _add_enqueue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("payload", type=values.payload, help="a JSON value; anything else is taken as text")
    parser.add_argument("--max-attempts", type=int, metavar="N", help="deliveries before it is a dead letter")
    arguments.add_adding(parser)


def _add_lease(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--count", type=values.positive_integer, default=1, metavar="N", help="at most N jobs (default 1)"
    )
    parser.add_argument(
        "--timeout", type=values.seconds, default=0.0, metavar="SECONDS", help="wait so long for the first one"
    )
    parser.add_argument("--visibility-timeout", type=values.seconds, metavar="SECONDS", help="length of the lease")
    arguments.add_json(parser)


def _add_ack(parser: argparse.ArgumentParser) -> None:
    _add_held(parser)
    parser.add_argument("--result", type=values.json_value, metavar="JSON", help="what the job gave")
    arguments.add_json(parser)


def _add_nack(parser: argparse.ArgumentParser) -> None:
    _add_held(parser)
    parser.add_argument("--error", metavar="TEXT", help="what went wrong")
    parser.add_argument("--delay", type=values.seconds, metavar="SECONDS", help="pause, instead of the backoff's")
    arguments.add_json(parser)


def _add_held(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the job")
    parser.add_argument(
        "--token", metavar="TOKEN", help="the fencing token of lease; without it nobody asks whose lease it is"
    )


def _add_work(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="module:function", help="called with each Job; raising means failed")
    parser.add_argument(
        "-c", "--threads", type=values.positive_integer, default=1, metavar="N", help="jobs at a time (default 1)"
    )
    parser.add_argument("--max-jobs", type=values.positive_integer, metavar="N", help="end after N jobs")
    parser.add_argument("--idle-timeout", type=values.seconds, metavar="SECONDS", help="end when idle for so long")
    arguments.add_json(parser)


def _context(options: dict[str, Any], out: Output) -> Context:
    """The context for the options.

    Raises:
        UsageError: several queues for a command that works on one.
    """
    directory = Path(options["dir"]).absolute()
    given = tuple(dict.fromkeys([*options.get("names", ()), *(options["queues"] or ())]))
    if options["one_queue"]:
        if len(given) > 1:
            raise UsageError(f"{options['name']} works on one queue, not on {', '.join(given)}")
        queues = given or ("default",)
    else:
        queues = given or tuple(inspection.queue_names(directory))
        if not queues:
            raise Refusal(f"there is no queue in {directory}")
    return Context(
        out=out,
        directory=directory,
        queues=queues,
        writing=lambda name: _open(directory, name),
        given=bool(given) or options["one_queue"],
        as_json=options["json"],
        interactive=options.get("interactive", True),
    )


@contextmanager
def _open(directory: Path, name: str) -> Iterator[Queue]:
    file_mode, dir_mode = _mode(directory / f"{name}.current", 0o600), _mode(directory, 0o700)
    with Queue(directory, name, file_mode=file_mode, dir_mode=dir_mode) as queue:
        yield queue


def _mode(path: Path, least: int) -> int:
    """The mode that is there already, so that nobody who shares the queue is locked out by a new file."""
    try:
        return stat.S_IMODE(path.stat().st_mode) | least
    except OSError:
        return least  # nothing there yet, or something that the engine will speak about


class _OneLine(logging.Formatter):
    """Log records of the engine, each line of them escaped: a job's error text must not write on the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(escape(line) for line in super().format(record).split("\n"))


def _log_to(stream: Any) -> None:
    logger = logging.getLogger("nobroker_django")
    if not logger.handlers:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_OneLine("%(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
