"""Exit codes, and how a command says no.

0 done, 1 refused, 2 usage, 3 damage found, 4 unhealthy, 5 (``nobroker_work``) jobs given back, 130 interrupted.
"""

from __future__ import annotations

from nobroker_django.engine.errors import CorruptLogError, NobrokerError, UnsupportedVersionError

EXIT_REFUSED, EXIT_USAGE, EXIT_DAMAGE, EXIT_UNHEALTHY, EXIT_GIVEN_BACK, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 130


class Refusal(Exception):
    """A command ends without having done what was asked; ``str()`` says why (escaped when it is shown)."""

    def __init__(self, message: str, code: int = EXIT_REFUSED) -> None:
        super().__init__(message)
        self.code = code


class UsageError(Refusal):
    """The options do not make sense together."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_USAGE)


def exit_code(error: NobrokerError) -> int:
    """The exit code for an error of the engine."""
    if isinstance(error, CorruptLogError) and not isinstance(error, UnsupportedVersionError):
        return EXIT_DAMAGE
    return EXIT_REFUSED
