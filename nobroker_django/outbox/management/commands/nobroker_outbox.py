"""``manage.py nobroker_outbox``: the jobs that are committed and not yet in their queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import Error as DatabaseError

from nobroker_django.cli import arguments
from nobroker_django.cli.exits import Refusal, UsageError
from nobroker_django.commandline import NobrokerCommand, chosen_queues


class Command(NobrokerCommand):
    help = "List what is in the outbox; with --sweep, write it to the queues. Exit code 4: rows need somebody."

    def add_options(self, parser: CommandParser) -> None:
        super().add_options(parser)
        parser.add_argument("--database", action="append", metavar="ALIAS", help="only this database; may be repeated")
        parser.add_argument("--sweep", action="store_true", help="write what waits, as workers do")
        parser.add_argument("--write-old", nargs="+", metavar="KEY", help="write these rows, though old; asks")
        parser.add_argument("--discard", nargs="+", metavar="KEY", help="delete these rows unwritten; asks")
        arguments.add_limit(parser)
        arguments.add_no_input(parser)
        arguments.add_json(parser)

    def run(self, options: dict[str, Any]) -> None:
        from nobroker_django.outbox import operating

        verbs = [options["sweep"], bool(options["write_old"]), bool(options["discard"])]
        if sum(verbs) > 1:
            raise UsageError("either --sweep, --write-old or --discard")
        run = operating.Run(
            out=self.out,
            databases=operating.chosen_databases(options["database"]),
            queues=chosen_queues(options["queues"]) if options["queues"] else (),
            as_json=options["json"],
            interactive=options["interactive"],
        )
        try:
            if options["sweep"]:
                operating.write_all(run)
            elif options["write_old"]:
                operating.write_old(run, options["write_old"])
            elif options["discard"]:
                operating.discard(run, options["discard"])
            else:
                operating.look(run, options["limit"])
        except DatabaseError as error:
            raise Refusal(f"a database refused: {error}") from error
