"""``manage.py nobroker_compact``: drop finished history from the logs."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, changing
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = "Write each queue's log anew without the jobs that were finished longer ago than RETENTION."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_json(parser)

    def run(self, options: dict[str, Any]) -> None:
        changing.compact(self.context(options), options)
