"""One command over several queues: one that fails does not keep the others from their turn.

Invariant: the exit code tells that something failed, and the message which queues and what to do. With a single queue
all of it is as if there were no others to think of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from nobroker_django.engine.errors import NobrokerError
from nobroker_django.engine.wording import count_of

from .exits import EXIT_DAMAGE, EXIT_REFUSED, Refusal, exit_code


class Each:
    """Which queues have failed, and why."""

    def __init__(self) -> None:
        self._asked = 0
        self._failed: dict[str, tuple[str, int]] = {}

    def run(self, names: Iterable[str], act: Callable[[str], None]) -> None:
        """Let ``act`` have every queue, and note what it raises.

        Raises:
            Refusal, NobrokerError: there is only one queue, and this is what ``act`` raised.
        """
        names = list(names)
        self._asked += len(names)
        for name in names:
            try:
                act(name)
            except (NobrokerError, Refusal) as error:
                if len(names) == 1:
                    raise
                code = error.code if isinstance(error, Refusal) else exit_code(error)
                self._failed[name] = str(error), code

    def documents(self) -> list[dict[str, Any]]:
        """The failures for ``--json``."""
        return [
            {"queue": name, "error": text, "damaged": code == EXIT_DAMAGE}
            for name, (text, code) in self._failed.items()
        ]

    def conclude(self) -> None:
        """The end of the command, after its output.

        Raises:
            Refusal: a queue has failed. The exit code is that of damage if any of them is damaged.
        """
        if not self._failed:
            return
        reasons = " ".join(f"{name}: {text.rstrip('.')}." for name, (text, _) in self._failed.items())
        damaged = any(code == EXIT_DAMAGE for _, code in self._failed.values())
        raise Refusal(
            f"{len(self._failed)} of {count_of(self._asked, 'queue')} failed, the rest is done. {reasons}",
            EXIT_DAMAGE if damaged else EXIT_REFUSED,
        )
