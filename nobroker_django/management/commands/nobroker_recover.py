"""``manage.py nobroker_recover``: the state of the queues' files; salvaging a damaged one."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, salvaging
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = (
        "Report damage (exit code 3), a torn tail, and what repairs cut off and where it is kept. Changes nothing, "
        "unless --salvage is given: then a damaged log is replaced by a new generation of what is left of it."
    )

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_recover(parser)

    def run(self, options: dict[str, Any]) -> None:
        salvaging.recover(self.context(options), options)
