"""``manage.py nobroker_work``: run the jobs of the queues."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import BooleanOptionalAction
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from nobroker_django import checks, conf
from nobroker_django.cli.exits import EXIT_GIVEN_BACK, UsageError
from nobroker_django.cli.values import positive_integer, seconds, size
from nobroker_django.commandline import NobrokerCommand, add_queue_option, chosen_queues
from nobroker_django.worker.options import EXIT_DAMAGE, WorkerOptions
from nobroker_django.worker.reloading import Reloader, die_with_parent, is_inner
from nobroker_django.worker.supervisor import Supervisor

REASONS = {
    EXIT_DAMAGE: "a queue is damaged; nothing was changed, see the lines above",
    EXIT_GIVEN_BACK: "stopped before all running jobs had finished; they were given back and will run again",
}


class Command(NobrokerCommand):
    help = (
        "Run jobs until SIGTERM or SIGINT: running jobs then finish, up to --grace seconds. "
        "A second signal gives them back and ends at once (exit code 5)."
    )
    requires_system_checks = "__all__"

    def add_options(self, parser: CommandParser) -> None:
        add_queue_option(
            parser,
            "work on this queue (may be repeated: an earlier one goes before a later one); "
            "if left out, on all queues, which take turns",
        )
        parser.add_argument("--processes", type=positive_integer, default=1, metavar="N", help="processes (default 1)")
        parser.add_argument(
            "--threads", type=positive_integer, default=4, metavar="N", help="jobs at a time in a process (default 4)"
        )
        parser.add_argument(
            "--async-concurrency", type=positive_integer, default=50, metavar="N",
            help="coroutine tasks at a time in a process, beside the threads (default 50)",
        )  # fmt: skip
        parser.add_argument(
            "--grace", type=seconds, default=30.0, metavar="SECONDS", help="time to finish after a signal (default 30)"
        )
        parser.add_argument("--drain", action="store_true", help="run what is ready now, then end")
        parser.add_argument(
            "--max-jobs", type=positive_integer, metavar="N", help="end after N jobs, all processes together"
        )
        parser.add_argument(
            "--max-jobs-per-process", type=positive_integer, metavar="N",
            help="a process that has run N jobs makes room for a new one",
        )  # fmt: skip
        parser.add_argument(
            "--max-memory", type=size, metavar="BYTES",
            help="a process that uses more memory than this (200M, 1.5G) makes room for a new one",
        )  # fmt: skip
        parser.add_argument(
            "--idle-timeout", type=seconds, metavar="SECONDS", help="end a process that had no job for so long"
        )

        parser.add_argument(
            "--reload",
            action=BooleanOptionalAction,
            help="start anew when the code changes; without either, with DEBUG and without --drain",
        )

    def check(self, *args: Any, **kwargs: Any) -> None:
        with checks.without_tasks():
            super().check(*args, **kwargs)

    def run(self, options: dict[str, Any]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise CommandError("nobroker_work handles signals and must run in the main thread")
        reserve_standard_descriptors()
        if is_inner():
            die_with_parent(signal.SIGTERM)
        elif self._reloads(options):
            sys.exit(Reloader(self.stream, options["verbosity"]).run())
        conf.get_settings().dir  # noqa: B018 - without one there is nothing to start
        code = Supervisor(
            WorkerOptions(
                queues=tuple(chosen_queues(options["queues"])),
                in_order=bool(options["queues"]),
                processes=options["processes"],
                coroutines=options["async_concurrency"],
                threads=options["threads"],
                grace=options["grace"],
                drain=options["drain"],
                max_jobs=options["max_jobs"],
                max_jobs_per_process=options["max_jobs_per_process"],
                max_memory=options["max_memory"],
                idle_timeout=options["idle_timeout"],
                verbosity=options["verbosity"],
            ),
            self.stream,
        ).run()
        if code:
            raise CommandError(REASONS.get(code, "the worker cannot start; see the lines above"), returncode=code)

    def _reloads(self, options: dict[str, Any]) -> bool:
        """Whether to watch the code; by default only what was started from a command line, which can be run again."""
        if options["reload"] is None:
            by_hand = getattr(self, "_called_from_command_line", False)
            return bool(settings.DEBUG and by_hand and not options["drain"])
        if options["reload"] and options["drain"]:
            raise UsageError("--reload and --drain contradict each other: a drained worker has ended")
        return bool(options["reload"])


def reserve_standard_descriptors() -> None:
    """Open the null device for each of descriptors 0 to 2 that is closed.

    Otherwise a file of a queue would get that number, and whatever a library prints would be written into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, so this one
