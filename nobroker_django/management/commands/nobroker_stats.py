"""``manage.py nobroker_stats``: how many jobs each queue has, by state."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, looking
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = "Show how many jobs each queue has, by state, and how long the oldest ready job has waited."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_json(parser)

    def run(self, options: dict[str, Any]) -> None:
        looking.stats(self.context(options), options)
