"""``manage.py nobroker_stats``: how many jobs each queue has, by state."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.commandline import NobrokerCommand, add_queue_option, chosen_queues, table
from nobroker_django.reporting import QueueReport, forgotten_queues, report_queue


class Command(NobrokerCommand):
    help = "Show how many jobs each queue has, by state, and how long the oldest ready job has waited."

    def add_options(self, parser: CommandParser) -> None:
        add_queue_option(parser, "only this queue (may be repeated); all queues if left out")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: dict[str, Any]) -> None:
        reports = [report_queue(name) for name in chosen_queues(options["queues"])]
        if not options["queues"]:
            reports += forgotten_queues()
        if options["json"]:
            self.print_json({"queues": [report.document() for report in reports]})
            return
        for line in table([QueueReport.HEADINGS, *(report.row() for report in reports)], right=range(1, 8)):
            self.print_line(line)
        for report in reports:
            if not report.known:
                self.print_line(f"Queue {report.name} is not in NOBROKER['QUEUES']: no worker serves its jobs.")
