"""``manage.py nobroker_inspect``: the log, record by record."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, looking
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = "Show the log record by record, up to the published end. Takes no lock and writes nothing."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_inspect(parser)

    def run(self, options: dict[str, Any]) -> None:
        looking.inspect(self.context(options), options)
