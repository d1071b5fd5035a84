"""``manage.py nobroker_dlq``: the dead letters, and their way back into the queue or out of it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, changing
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = "List the dead letters (jobs out of attempts), give them new attempts (--requeue), or forget old ones."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_dlq(parser)

    def run(self, options: dict[str, Any]) -> None:
        changing.dlq(self.context(options), options)
