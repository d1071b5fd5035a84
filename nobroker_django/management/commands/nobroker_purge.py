"""``manage.py nobroker_purge``: forget every job of a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, changing
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = "Forget every job of a queue, whatever its state. Asks."
    queue_help = "purge this queue (may be repeated); has to be named where there are several"

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_purge(parser)

    def run(self, options: dict[str, Any]) -> None:
        changing.purge(self.context(options), options)
