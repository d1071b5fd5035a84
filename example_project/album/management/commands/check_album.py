"""`manage.py check_album`: does the album hold what its jobs promised? Exit code 0 if it does, 1 if not."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from album.integrity import check_album


class Command(BaseCommand):
    """Run the checks of `album.integrity` and print their results."""

    help = "Check that every photograph has its thumbnails, its webhook call and its notice. Changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The one option."""
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print a line for each check and for each complaint."""
        results = check_album()
        if options["json"]:
            checks = [{"name": r.name, "looked_at": r.looked_at, "complaints": r.complaints} for r in results]
            self.stdout.write(json.dumps({"schema": 1, "checks": checks}))
        else:
            for result in results:
                self.stdout.write(f"{'ok    ' if result.ok else 'FAILED'}  {result.name} ({result.looked_at})")
                for complaint in result.complaints:
                    self.stdout.write(f"          {complaint}")
        if not all(result.ok for result in results):
            sys.exit(1)
