"""``manage.py nobroker_recover``: the state of the queues' files."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, looking
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = "Report damage (exit code 3), a torn tail, and what repairs cut off and where it is kept. Changes nothing."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_json(parser)

    def run(self, options: dict[str, Any]) -> None:
        looking.recover(self.context(options), options)
