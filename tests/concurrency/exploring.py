"""Breadth-first search through the states of a model: every order of its steps, and the shortest way to what is wrong.

A model has ``steps(state)``, all steps that can come next (what is done, whether it is a fault, the state after it),
``problem(state)``, what is wrong in it, and ``is_over(state)``, whether everybody has done what was to be done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple, Generic[S]):
    """One step: what happens, the state after it, and whether it is a fault, which need not happen."""

    what: str
    after: S
    fault: bool = False


class Model(Protocol[S]):
    """What can be explored."""

    def steps(self, s: S) -> Iterator[Step[S]]:
        """Everything that can happen next."""

    def problem(self, s: S) -> str | None:
        """What is wrong in this state."""

    def is_over(self, s: S) -> bool:
        """Whether nothing has to happen any more."""


@dataclass
class Found:
    """How many states there are, and the first that is wrong, with the way to it."""

    states: int
    problem: str | None = None
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.problem or 'no problem'} ({self.states} states)", *self.trace])


def explore(model: Model[S], start: S, most: int = 2_000_000) -> Found:
    """Try every order of steps, until something is wrong or there is nothing left to try.

    A state from which nobody can go on, though somebody has something to do, is wrong as well.

    Raises:
        AssertionError: there are more than ``most`` states.
    """
    came: dict[S, tuple[S, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        problem = model.problem(state)
        going_on = False
        if problem is None:
            for step in model.steps(state):
                going_on = going_on or not step.fault
                if step.after not in came:
                    came[step.after] = (state, step.what)
                    waiting.append(step.after)
            if not going_on and not model.is_over(state):
                problem = "nobody can go on"
        if problem is not None:
            return Found(len(came), problem, _trace(came, state))
        assert len(came) <= most, f"more than {most} states"
    return Found(len(came))


def _trace(came: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    trace: list[str] = []
    while (step := came[state]) is not None:
        state, what = step
        trace.append(what)
    return trace[::-1]
