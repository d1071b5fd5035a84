"""``manage.py nobroker_dlq``: the dead letters, and their way back into the queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from nobroker_django.commandline import (
    EXIT_REFUSED,
    EXIT_USAGE,
    NobrokerCommand,
    add_queue_option,
    chosen_queues,
    escape,
    job_document,
    positive_integer,
)
from nobroker_django.reporting import dead_letter_line, dead_letters, requeue_all, requeue_some


class Command(NobrokerCommand):
    help = "List the dead letters (jobs out of attempts), or give them new attempts with --requeue."

    def add_options(self, parser: CommandParser) -> None:
        add_queue_option(parser, "only this queue (may be repeated); all queues if left out")
        parser.add_argument(
            "--requeue", nargs="*", metavar="ID", help="requeue these dead letters; with --all every one"
        )
        parser.add_argument("--all", action="store_true", dest="everything", help="with --requeue: all dead letters")
        parser.add_argument(
            "--yes", "--noinput", "--no-input", action="store_false", dest="interactive", help="do not ask"
        )
        parser.add_argument(
            "--limit", type=positive_integer, default=100, metavar="N", help="list at most N a queue (default 100)"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: dict[str, Any]) -> None:
        queues = chosen_queues(options["queues"])
        if options["requeue"] is not None or options["everything"]:
            self._requeue(queues, options)
        else:
            self._list(queues, options)

    def _list(self, queues: list[str], options: dict[str, Any]) -> None:
        limit = options["limit"]
        letters = {name: dead_letters(name, limit + 1) for name in queues}
        found = [(name, job) for name, jobs in letters.items() for job in jobs[:limit]]
        if options["json"]:
            self.print_json(
                {
                    "queue": queues[0] if len(queues) == 1 else None,
                    "jobs": [job_document(job, name) for name, job in found],
                }
            )
            return
        for name, job in found:
            self.print_line(dead_letter_line(name, job))
        for name, jobs in letters.items():
            if len(jobs) > limit:
                self.print_line(f"{name}: the first {limit} are shown; --limit shows more")
        if not found:
            self.print_line("no dead letters")

    def _requeue(self, queues: list[str], options: dict[str, Any]) -> None:
        ids = list(dict.fromkeys(options["requeue"] or ()))
        if options["requeue"] is None or bool(ids) is options["everything"]:
            raise CommandError("name the jobs (--requeue ID ...) or say --requeue --all", returncode=EXIT_USAGE)
        missing: list[str] = []
        if options["everything"]:
            if options["interactive"] and not self._confirmed(queues):
                raise CommandError("nothing was requeued", returncode=EXIT_REFUSED)
            count = requeue_all(queues)
        else:
            count, missing = requeue_some(queues, ids)
        if options["json"]:
            self.print_json({"requeued": count, "not_found": missing})
        else:
            self.print_line(f"{count} requeued")
        if missing:
            raise CommandError(
                f"no dead letter has the id {', '.join(escape(job_id) for job_id in missing)}", returncode=EXIT_REFUSED
            )

    def _confirmed(self, queues: list[str]) -> bool:
        try:
            answer = input(f"Requeue every dead letter of {', '.join(queues)}? [y/N] ")
        except EOFError:
            return False
        return answer.strip().lower() in ("y", "yes")
