"""What a supervisor knows of each of its children, and how the kernel tells of one.

Invariant: a slot whose ``pid`` is not 0 has a child that nobody has collected yet. When one is started or ended is the
supervisor's affair.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from nobroker_django.engine.liveness import Liveness, Unregistered

from .notices import Notice, Reader


@dataclass(slots=True)
class Slot:
    """The place of one child. ``pid`` is 0 while there is none; times are monotonic seconds.

    ``liveness``: under which names it holds leases. ``limits``: its running jobs with a time limit, and when that is
    over, by token. ``false_starts``: how many ended before any process of the command had begun. ``verdict``: why it
    was ended by the supervisor, which leaves its other jobs unpunished; ``sentence``: the job that ran over its time,
    and in which process, when that could not be recorded before.
    """

    number: int
    pid: int = 0
    orders: int = -1
    started: float = 0.0
    deaths: int = 0
    false_starts: int = 0
    start_at: float | None = 0.0
    stopped: bool = False
    liveness: Mapping[str, Liveness | Unregistered] = field(default_factory=dict)
    notices: Reader | None = None
    limits: dict[str, tuple[float, Notice]] = field(default_factory=dict)
    verdict: str | None = None
    sentence: tuple[Notice, int] | None = None

    def holders(self) -> dict[str, str]:
        """Its names by queue."""
        return {name: liveness.holder for name, liveness in self.liveness.items()}

    def close(self) -> None:
        """In a process that is not its supervisor any more, or after its end: let everything of it go."""
        if self.orders >= 0:
            os.close(self.orders)
            self.orders = -1
        if self.notices is not None:
            os.close(self.notices.fd)
            self.notices = None
        for liveness in self.liveness.values():
            liveness.close()
        self.liveness = {}
        self.limits.clear()

    def order(self, order: bytes) -> None:
        """Tell the child, if there is one."""
        if self.pid:
            try:
                os.write(self.orders, order)
            except OSError:
                pass  # it is ending by itself


def collect(pid: int) -> tuple[int, int] | None:
    """Id and status of a child (of any, for -1) that has ended, was stopped or goes on, or None."""
    try:
        ended = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
    except ChildProcessError:
        return None
    return ended if ended[0] else None


def how_it_ended(code: int) -> str:
    """An exit code, negative for a signal, in words."""
    return f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
