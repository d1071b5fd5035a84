"""``manage.py nobroker_stats``: how many jobs each queue has, by state."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import Error as DatabaseError

from nobroker_django import conf
from nobroker_django.cli import arguments, looking
from nobroker_django.commandline import NobrokerCommand


class Command(NobrokerCommand):
    help = "Show how many jobs each queue has, by state, and how long the oldest ready job has waited."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        arguments.add_json(parser)

    def run(self, options: dict[str, Any]) -> None:
        looking.stats(self.context(options), options)
        if conf.get_settings().outbox:
            self._tell_of_the_outbox()

    def _tell_of_the_outbox(self) -> None:
        from nobroker_django.outbox import operating

        try:
            problems = operating.problems()
        except DatabaseError as error:
            problems = [f"the outbox could not be looked at: {error}"]
        for problem in problems:
            self.out.remark(problem)
