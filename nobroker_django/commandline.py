"""What the management commands have in common: their base class, and the queues of the settings as a ``Context``.

Invariant: the command's work is in ``cli``, which knows no Django; here an error becomes a sentence and an exit code,
never a traceback.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, TextIO

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from . import conf
from .cli.arguments import ALL_QUEUES
from .cli.context import Context
from .cli.exits import EXIT_INTERRUPTED, EXIT_REFUSED, Refusal, UsageError, exit_code
from .cli.output import Output
from .cli.text import escape
from .engine.errors import NobrokerError
from .queues import get_queue


class NobrokerCommand(BaseCommand):
    """Base of the commands: subclasses write ``run()`` and raise; the exit codes are set here."""

    requires_system_checks: list[str] | tuple[str, ...] | Literal["__all__"] = []
    queue_help: ClassVar[str] = ALL_QUEUES

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_options(parser)

    def add_options(self, parser: CommandParser) -> None:
        """The command's own options; without them, ``--queue``."""
        add_queue_option(parser, self.queue_help)

    def run(self, options: dict[str, Any]) -> None:
        """The command itself."""
        raise NotImplementedError

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.run(options)
        except Refusal as refusal:
            raise CommandError(escape(str(refusal)), returncode=refusal.code) from refusal
        except NobrokerError as error:
            raise CommandError(escape(str(error)), returncode=exit_code(error)) from error
        except ImproperlyConfigured as error:
            raise CommandError(escape(str(error)), returncode=EXIT_REFUSED) from error
        except KeyboardInterrupt:
            raise CommandError("interrupted", returncode=EXIT_INTERRUPTED) from None

    @property
    def stream(self) -> TextIO | None:
        """Standard output itself, below Django's wrapper; None when the process was started without one."""
        return getattr(self.stdout, "_out", None)

    @property
    def out(self) -> Output:
        """Where lines, JSON and remarks go."""
        return Output(self.stream, getattr(self.stderr, "_out", None))

    def context(self, options: dict[str, Any]) -> Context:
        """The chosen queues of the settings.

        Raises:
            UsageError: a name is not in ``NOBROKER["QUEUES"]``.
        """
        settings = conf.get_settings()
        return Context(
            out=self.out,
            directory=settings.dir,
            queues=tuple(chosen_queues(options["queues"])),
            writing=lambda name: nullcontext(get_queue(name)),
            known=tuple(settings.queues),
            given=bool(options["queues"]),
            as_json=options["json"],
            interactive=options.get("interactive", True),
        )


def add_queue_option(parser: ArgumentParser, text: str) -> None:
    """``--queue/-q``, which may be repeated."""
    parser.add_argument("-q", "--queue", action="append", dest="queues", metavar="NAME", help=text)


def chosen_queues(given: Iterable[str] | None) -> list[str]:
    """The queues that were named, each once and in that order; all of ``NOBROKER["QUEUES"]`` if none was.

    Raises:
        UsageError: a name is not in ``NOBROKER["QUEUES"]``.
    """
    known = conf.get_settings().queues
    names = list(dict.fromkeys(given or known))
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no queue {escape(name)!r} in NOBROKER['QUEUES']. Known queues: {', '.join(known)}"
            )
    return names
