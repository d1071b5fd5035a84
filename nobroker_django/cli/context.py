"""What a command works on: which queues, how they are opened, where it writes.

Invariant: reading creates nothing and writes nothing, and a queue that nobody has used yet reads as an empty one if
the settings name it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nobroker_django.engine import inspection
from nobroker_django.engine.queue import Queue

from .exits import Refusal, UsageError
from .output import Output


@dataclass(frozen=True, slots=True)
class Context:
    """One run of a command.

    Attributes:
        queues: the chosen queues, in order.
        known: the queues of the settings; ``None`` where there are no settings: what is in the directory is known.
        writing: opens a queue for writing, for the length of a ``with``.
        given: whether the caller named the queues.
    """

    out: Output
    directory: Path
    queues: tuple[str, ...]
    writing: Callable[[str], AbstractContextManager[Queue]]
    known: tuple[str, ...] | None = None
    given: bool = False
    as_json: bool = False
    interactive: bool = True

    @property
    def label(self) -> str | None:
        """What ``--json`` says for ``queue``: the name, if there is only one."""
        return self.queues[0] if len(self.queues) == 1 else None

    def exists(self, name: str) -> bool:
        """Whether the queue has files.

        Raises:
            Refusal: it has none, and no settings name it.
        """
        if inspection.queue_exists(self.directory, name):
            return True
        if self.known is None:
            there = ", ".join(inspection.queue_names(self.directory)) or "none"
            raise Refusal(f"there is no queue {name!r} in {self.directory}; queues there: {there}")
        return False

    @contextmanager
    def reading(self, name: str) -> Iterator[Queue | None]:
        """Open a queue for looking; ``None`` for one of the settings that has never been used.

        Raises:
            Refusal: there is no such queue. NobrokerError: it cannot be read, or is damaged.
        """
        if not self.exists(name):
            yield None
            return
        inspection.check_end(self.directory, name)
        with Queue(self.directory, name, read_only=True) as queue:
            yield queue

    def forgotten(self) -> list[str]:
        """Queues that are in the directory, but not in the settings (none if queues were named)."""
        if self.known is None or self.given:
            return []
        return [name for name in inspection.queue_names(self.directory) if name not in self.known]

    def confirm(self, question: str, otherwise: str) -> None:
        """Ask, unless told not to.

        Raises:
            Refusal: the answer was not yes; ``otherwise`` says what was not done.
        """
        if self.interactive and not self.out.confirmed(question):
            raise Refusal(otherwise)

    def only_queue(self, purpose: str) -> str:
        """The one chosen queue.

        Raises:
            UsageError: there are several; ``purpose`` says what needs one.
        """
        if len(self.queues) != 1:
            raise UsageError(f"{purpose}: name the queue with --queue ({', '.join(self.queues) or 'there is none'})")
        return self.queues[0]


Options = Mapping[str, Any]
