"""``manage.py nobroker_verify``: is every queue what its log says?"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.cli import arguments, verifying
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = (
        "Check every record, every write, every transition, and the projection against a replay. Changes nothing. "
        "Exit code 3: damage; 4: something else is not as it should be."
    )

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_verify(parser)

    def run(self, options: dict[str, Any]) -> None:
        options["queues"] = [*options["names"], *(options["queues"] or ())]
        verifying.verify(self.context(options), options)
