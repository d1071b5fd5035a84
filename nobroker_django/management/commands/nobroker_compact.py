"""``manage.py nobroker_compact``: drop finished history from the logs."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.commandline import NobrokerCommand, add_queue_option, chosen_queues
from nobroker_django.queues import get_queue


class Command(NobrokerCommand):
    help = "Write each queue's log anew without the jobs that were finished longer ago than RETENTION."

    def add_options(self, parser: CommandParser) -> None:
        add_queue_option(parser, "only this queue (may be repeated); all queues if left out")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: dict[str, Any]) -> None:
        documents = []
        for name in chosen_queues(options["queues"]):
            result = get_queue(name).compact()
            if not options["json"]:
                self.print_line(f"{name}: {result.describe()}")
            documents.append(
                {
                    "queue": name,
                    "bytes_before": result.bytes_before,
                    "bytes_after": result.bytes_after,
                    "bytes_reclaimed": result.bytes_reclaimed,
                    "jobs_kept": result.jobs_kept,
                    "jobs_dropped": result.jobs_dropped,
                }
            )
        if options["json"]:
            self.print_json({"queues": documents})
