"""``manage.py nobroker_list``: the jobs, one a line."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, looking
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = "List jobs in the order in which they were enqueued."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_list(parser)

    def run(self, options: dict[str, Any]) -> None:
        looking.list_jobs(self.context(options), options)
