"""What several writers at once were promised: the log is one order, and what is durable is a beginning of it.

Every verb that has returned has its place in that order: the position in the log behind what it wrote, or behind what
it looked at. One that is under way, or said that its outcome is unknown, may have happened. ``History.ledger`` makes
of it what a recovered queue may show, for the checks that one writer's ``Ledger`` goes through as well.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from nobroker_django.engine.deciding import Decision
from nobroker_django.engine.durability import Promise
from nobroker_django.engine.framing import FRAME_BYTES
from nobroker_django.engine.held import Held
from nobroker_django.engine.records import Ack, Dead, Nack, Reclaim, Record, RecordType, Release
from nobroker_django.engine.snapshots import STATE_OF
from nobroker_django.engine.transitions import Row

from .ledger import Ledger, State

Effect = Callable[[str, State], State]  # what a verb makes of a job in this state; the same state: nothing

_here = threading.local()


@contextmanager
def positions_noted(written: Counter[str]) -> Iterator[None]:
    """Where each thread's last write ended, or what it promised about, is known to ``last_position``.

    So is what each of its writes did to jobs whose leases it ended, to ``History.end``. ``written`` counts the records
    by their type; those that tell of a worker's death once more, with a cross.
    """
    append, of, write = Held.append, Promise.of.__func__, Decision.write  # type: ignore[attr-defined]

    def noted_append(held: Held, data: bytes, last: int) -> int:
        start = append(held, data, last)
        _here.position = held.log.position(held.end)
        return start

    def noted_of(kind: type[Promise], held: Held, *arguments: Any) -> Promise:
        _here.position = held.log.position(held.end)
        promise: Promise = of(kind, held, *arguments)
        return promise

    def noted_write(decision: Decision, records: Sequence[Record]) -> list[int]:
        starts = write(decision, records)
        for record in records:
            name = RecordType(record.TYPE).name
            written[name] += 1
            if isinstance(record, Release | Reclaim | Dead | Nack | Ack) and not decision.behind:
                row = decision.unit.find(record.id)
                assert row is not None
                _here.steps.append((_key_of(decision, row), _here.position, (STATE_OF[row.state].value, row.attempts)))
                written[f"{name}+"] += getattr(record, "died", False)
        return starts

    with (
        mock.patch.object(Held, "append", noted_append),
        mock.patch.object(Promise, "of", classmethod(noted_of)),
        mock.patch.object(Decision, "write", noted_write),
    ):
        yield


def _key_of(decision: Decision, row: Row) -> str:
    """The ``k`` in a job's payload, read past the ``Files`` that count every call."""
    with open(decision.log.path, "rb") as file:
        file.seek(row.payload_offset)
        length = int.from_bytes(file.read(FRAME_BYTES)[:4], "little")
        key: str = json.loads(file.read(length))["payload"]["k"]
    return key


def forget_position() -> None:
    """A verb begins."""
    _here.position = 0
    _here.steps = []


def last_position() -> int:
    """The position of this thread's verb in the order of the log; 0 when it neither wrote nor promised."""
    position: int = getattr(_here, "position", 0)
    return position


def _after(effects: tuple[Effect, ...], key: str, state: State) -> list[State]:
    """What a verb may make of the state: its effects, one after the other, each of which may come about."""
    states = [state]
    for effect in effects:
        states += [then for then in (effect(key, one) for one in states) if then not in states]
    return states[1:]


class History:
    """All verbs of all writers. Only one thread runs at a time (see ``turns``): nothing here needs a lock."""

    def __init__(self) -> None:
        self._changes: dict[str, list[tuple[int, State]]] = {}
        self._sweeps: list[tuple[int, Effect]] = []
        self._under_way: dict[int, tuple[Effect, ...]] = {}
        self._created: dict[str, int] = {}
        self._begun_again: set[str] = set()  # its place may be that of a later one, if it was purged meanwhile
        self._groups: list[tuple[str, ...]] = []
        self._durable = self._count = 0
        self.tokens: list[str] = []
        self.purges = 0  # begun

    def found(self, states: Mapping[str, State]) -> None:
        """Jobs that are there already, durably, in this order."""
        for number, (key, state) in enumerate(states.items()):
            self._changes[key] = [(number + 1, state)]
            self._created[key] = self._durable = number + 1

    def begin(self, *effects: Effect, keys: tuple[str, ...] = ()) -> int:
        """A verb starts that may do this, in this order; ``keys`` are jobs that it would add, all or none.

        Returns:
            Its number.
        """
        forget_position()
        for key in keys:
            if key in self._changes:
                self._begun_again.add(key)
            self._changes.setdefault(key, [])
        if len(keys) > 1:
            self._groups.append(keys)
        self._count += 1
        self._under_way[self._count] = effects
        return self._count

    def end(
        self,
        number: int,
        changes: dict[str, State] | None = None,
        *,
        sweep: Effect | None = None,
        created: tuple[str, ...] = (),
        durable: bool = True,
        at: int = 0,
    ) -> None:
        """It returned, having left these jobs in these states, or having changed every job so (``sweep``).

        Args:
            at: its place in the order, if that is not where this thread wrote last.
        """
        del self._under_way[number]
        at = at or last_position()
        if not at:
            return
        self._note_steps()
        for key in created:
            self._created[key] = at
        for key, state in (changes or {}).items():
            self._changes.setdefault(key, []).append((at, state))
        if sweep is not None:
            self._sweeps.append((at, sweep))
        if durable:
            self._durable = max(self._durable, at)

    def undone(self, number: int) -> None:
        """It raised, and said that nothing was stored. What it had taken back of dead workers before, it has."""
        del self._under_way[number]
        self._note_steps()

    def _note_steps(self) -> None:
        """A power cut may keep one write of a verb without the next, and the next may be refused."""
        for key, where, state in _here.steps:
            self._changes.setdefault(key, []).append((where, state))

    def _allowed(self, key: str) -> list[State]:
        """The states that a recovered queue may show: durable, later, or by what is under way."""
        steps: list[tuple[int, State | Effect]] = [*self._changes[key], *self._sweeps]
        states: list[State] = [None]
        found: list[State] = [None]
        for at, step in sorted(steps, key=lambda step: step[0]):
            # what a verb did to all jobs, it did to what those under way may have made of this one before
            states = [step(key, state) for state in self._or_under_way(key, states)] if callable(step) else [step]
            if at <= self._durable:
                found.clear()
            found += states
        return self._or_under_way(key, found)

    def _or_under_way(self, key: str, states: list[State]) -> list[State]:
        """These states, and what the verbs that are under way may make of them: in any order, each of them once."""
        found = dict.fromkeys((state, frozenset[int]()) for state in states)
        left = list(found)
        while left:
            state, happened = left.pop()
            for number, effects in self._under_way.items():
                if number in happened:
                    continue
                for then in _after(effects, key, state):
                    step = then, happened | {number}
                    if step not in found:
                        found[step] = None
                        left.append(step)
        return list(dict.fromkeys(state for state, _ in found))

    def ledger(self) -> Ledger:
        """What may be shown now."""
        allowed = {key: self._allowed(key) for key in self._changes}
        return Ledger(
            certain={key: states[0] for key, states in allowed.items()},
            maybe={key: states[1:] for key, states in allowed.items()},
            order=[
                key for key in sorted(self._created, key=self._created.__getitem__) if key not in self._begun_again
            ],
            tokens=list(self.tokens),
            # once one of them has been touched, a compaction may have taken it
            groups=[group for group in self._groups if not any(len(self._changes[key]) > 1 for key in group)],
        )
