"""Which jobs a list is of, in the words of the projection's columns: no payload is read to find them.

A selection knows nothing of pages and limits; ``Unit.selected`` adds those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .transitions import DEAD, DONE, DUE, LEASED, WAITING

ANY_STATE = (WAITING, DUE, LEASED, DONE, DEAD)
ANY_MODULE = "*."
"""Before the name of an error class: in whatever module, or in none. No class has such a name itself."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Jobs that fit all of what is given; ``None`` leaves it open.

    Args:
        states: those of rows.
        task: the name in a task's payload.
        error_class: the class of the last failed attempt, or with ``ANY_MODULE`` before it all of that name.
        since: enqueued then or later (Unix seconds).
        delayed: whether the time of a job that waits has still to come.
    """

    states: tuple[int, ...] = ANY_STATE
    task: str | None = None
    error_class: str | None = None
    since: float | None = None
    delayed: bool | None = None

    def condition(self, now: float, *, few: bool) -> tuple[str, list[Any]]:
        """The condition on rows of ``jobs`` at the moment ``now`` (Unix seconds), and its parameters.

        Args:
            few: there are few rows in these states: worth finding them by the indexes of the states, where such are.
        """
        states = tuple(map(int, self.states))
        if few and DONE not in states:
            ways = (f"SELECT seq FROM jobs WHERE state = {state}" for state in states)
            terms = [f"seq IN ({' UNION ALL '.join(ways)})"]
        else:
            terms = [f"state IN ({', '.join(map(str, states))})"]
        parameters: list[Any] = []
        if self.task is not None:
            terms.append("task = ?")
            parameters.append(self.task)
        if self.error_class is not None:
            name = self.error_class.removeprefix(ANY_MODULE)
            if name == self.error_class:
                terms.append("error_class = ?")
                parameters.append(name)
            else:
                terms.append("(error_class = ? OR substr(error_class, ?) = ?)")
                parameters += [name, -len(name) - 1, f".{name}"]
        if self.since is not None:
            terms.append("enqueued_at >= ?")
            parameters.append(self.since)
        if self.delayed is not None:
            terms.append(f"{'' if self.delayed else 'NOT '}(waits AND available_at > ?)")
            parameters.append(now)
        return " AND ".join(terms), parameters
