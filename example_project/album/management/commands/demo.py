"""`manage.py demo`: the main job on real photographs, with a killed worker, in under a minute."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, CommandError

from album.demo.checklist import Checklist
from album.demo.pictures import Pictures, choose
from album.demo.processes import DemoError, Processes
from album.demo.progress import Progress
from album.demo.story import Story
from nobroker_django import NobrokerError

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


class Command(BaseCommand):
    """Run the story and print what held."""

    help = (
        "Serve the site in a fresh directory, upload photographs, kill a worker in the middle of a job, and check "
        "that nothing was lost. Exit code 0 if everything held, 1 if not."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Whose photographs, and whether to keep the directory."""
        parser.add_argument("--photos", type=Path, metavar="DIR", help="use the photographs of this directory")
        parser.add_argument(
            "--keep", action="store_true", help="keep the directory with database, files, queue and logs"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Exit code 0: everything held; 1: something did not; 130: interrupted."""
        signal.signal(signal.SIGTERM, interrupt)
        try:
            pictures = choose(options["photos"])
        except DemoError as error:
            raise CommandError(str(error)) from error
        directory = Path(tempfile.mkdtemp(prefix="photo-album-"))
        code = EXIT_FAILED
        try:
            code = self.play(directory, pictures)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
            self.stdout.write("\nInterrupted; every process of the demo was ended.")
        finally:
            if options["keep"] or code == EXIT_FAILED:
                self.stdout.write(f"Kept: {directory} (logs in {directory / 'logs'})")
            else:
                shutil.rmtree(directory, ignore_errors=True)
        if code:
            sys.exit(code)

    def play(self, directory: Path, pictures: Pictures) -> int:
        """Run the story in a directory and print the table of its checks; returns the exit code."""
        started = time.monotonic()
        checklist = Checklist()
        progress = Progress(cast(TextIO, self.stdout._out))
        trouble = ""
        for note in pictures.notes:
            progress.say(f"Note: {note}")
        try:
            with Processes(directory) as processes:
                Story(processes, pictures, progress, checklist).run()
        except (DemoError, NobrokerError, OSError, subprocess.SubprocessError) as error:
            trouble = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - started
        progress.say(f"\nWhat was checked\n\n{checklist.table()}\n")
        if trouble:
            progress.say(f"FAILED: the demo could not go on: {trouble}")
        elif not checklist.all_held:
            failed = sum(1 for entry in checklist.entries if not entry.held)
            progress.say(f"FAILED: {failed} of {len(checklist.entries)} checks, after {seconds:.1f} s")
        else:
            progress.say(f"All {len(checklist.entries)} checks held, in {seconds:.1f} s.")
            return 0
        return EXIT_FAILED


def interrupt(number: int, frame: FrameType | None) -> None:
    """End on SIGTERM as on Ctrl-C: with everything cleared away."""
    raise KeyboardInterrupt
