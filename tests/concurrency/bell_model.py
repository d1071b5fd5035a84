"""A model of listening and ringing, small enough to try every order of its steps.

The steps have the names and the order of ``engine/leasing.py`` (``lease``, ``_lease_now``, ``_wait_for_change``),
``session.py`` (``listen``), ``bell.py`` and ``durability.py`` (``Promise._notice``). Producers each publish one write
of one or more jobs; listeners each take some jobs, one at a time, and then leave. Each may be killed before any step;
the FIFO may be removed, and the word may run out. Nobody may wait for ever while there is a job: ``explore`` finds a
state from which nobody can go on. ``RULES`` are what that relies on.

The safety poll would mend everything, a second late. So it is left out where no fault can happen; where one has
happened, it is what is relied on. With ``supervised``, the listeners do not do it themselves: they tell their
supervisor that they wait, and it looks for all of them (``worker/watch.py``, ``desk.py``, ``waiting.py``).

Left out: time (the word runs out at any moment, as a fault), several queues at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .exploring import Step

RULES = frozenset(
    {
        "the FIFO is there before the word",
        "who listens looks again after the word",
        "what was seen is from before the lease",
        "who appends reads the words after publishing",
        "who leaves jobs behind rings",
        "a byte waits for who comes to it",
        "who drains looks for work",
        "who waits looks once in a while",
    }
)
RULES_OF_THE_SUPERVISED = frozenset(
    {
        "who waits tells the supervisor before it looks again",
        "the supervisor looks before it asks whom to tell",
        "who is told looks for work",
        "who has lost its supervisor leaves",
    }
)

MOST_BYTES = 3


class Process(NamedTuple):
    """Where a process is, and what it remembers."""

    at: str
    left: int  # jobs to publish at once, or to take one by one
    seen: int = 0
    heard: bool = False  # what it read of the word
    fifo: int = 0  # which FIFO it has open; 0: none
    supervised: bool = False
    waits: bool = False  # what it has told the supervisor
    told: bool = False  # by the supervisor, to look
    asked: tuple[int, ...] = ()  # of the supervisor: who waited when it last asked


class State(NamedTuple):
    """Everything that the processes know, and what they share."""

    procs: tuple[Process, ...]
    end: int = 0  # published writes, of any kind
    jobs: int = 0
    listening: bool = False
    fifo: int = 0  # the one that has the name; 0: none
    bytes: int = 0  # in it
    kills: int = 0
    removals: int = 0
    expiries: int = 0
    faulty: bool = False


def start(producers: tuple[int, ...], listeners: tuple[int, ...], *, supervised: bool = False, **faults: int) -> State:
    """Producers of so many jobs each, listeners who take so many each."""
    procs = [Process("publish", jobs) for jobs in producers]
    procs += [Process("look", jobs, supervised=supervised) for jobs in listeners]
    if supervised:
        procs.append(Process("supervise", 0))  # the last one
    return State(tuple(procs), **faults)  # type: ignore[arg-type]


class BellModel:
    """The steps of all processes, under a set of rules."""

    def __init__(self, rules: frozenset[str] = RULES | RULES_OF_THE_SUPERVISED) -> None:
        assert not rules - RULES - RULES_OF_THE_SUPERVISED, f"no such rules: {rules}"
        self.rules = rules

    def is_over(self, s: State) -> bool:
        """Whether nothing has to happen any more: nobody is under way, and nobody waits while there is a job."""
        return all(one.at in ("over", "wait", "supervise") for one in s.procs) and (
            not s.jobs or not any(one.at == "wait" for one in s.procs)
        )

    def problem(self, s: State) -> str | None:
        """Nothing is wrong in itself; wrong is what ``explore`` finds, that nobody can go on."""
        return None

    def steps(self, s: State) -> Iterator[Step[State]]:
        """Everything that can happen next."""
        for p, one in enumerate(s.procs):
            if one.at == "over":
                continue
            yield from (Step(f"{p}: {step.what}", step.after) for step in self._step(s, p, one))
            if s.kills:
                killed = _at(s._replace(kills=s.kills - 1, faulty=True), p, "over")
                yield Step(f"{p}: SIGKILL", killed, fault=True)
        if s.removals and s.fifo:
            after = s._replace(removals=s.removals - 1, faulty=True, fifo=0, bytes=0)
            yield Step("the FIFO is removed", after, fault=True)
        if s.expiries and s.listening:
            after = s._replace(expiries=s.expiries - 1, faulty=True, listening=False)
            yield Step("the word runs out", after, fault=True)

    def _step(self, s: State, p: int, one: Process) -> Iterator[Step[State]]:
        match one.at:
            # -- Held.append, Promise._notice
            case "publish":
                if "who appends reads the words after publishing" not in self.rules:
                    yield Step("reads the words", _at(s, p, "publish late", heard=s.listening))
                    return
                s = s._replace(end=s.end + 1, jobs=s.jobs + one.left)
                yield Step("publishes", _at(s, p, "read the words"))
            case "publish late":
                s = s._replace(end=s.end + 1, jobs=s.jobs + one.left)
                yield Step("publishes", _at(s, p, "ring" if one.heard else "over"))
            case "read the words":
                yield Step("reads the words", _at(s, p, "ring" if s.listening else "over"))
            case "ring":
                yield Step("rings", _at(self._ring(s), p, "over"))
            # -- lease
            case "look":
                yield Step("looks at the end", _at(s, p, "lease", seen=s.end))
            case "lease":
                yield from self._lease(s, p, one)
            case "read the words, having left jobs":
                then = "ring, having left jobs" if s.listening else self._next(one)
                yield Step("reads the words", _at(s, p, then))
            case "ring, having left jobs":
                yield Step("rings", _at(self._ring(s), p, self._next(one)))
            # -- Desk.listen, Session.listen
            case "listen":
                early = one.supervised and "who waits tells the supervisor before it looks again" in self.rules
                yield Step("says that it waits" if early else "listens", _at(s, p, "open", waits=early))
            case "look late":
                yield Step("looks at the end", _at(s, p, "listen", seen=s.end))
            case "open":
                if "the FIFO is there before the word" in self.rules:
                    yield Step("opens the FIFO", _at(self._open(s, p), p, "say"))
                else:
                    yield Step("says that it listens", _at(s._replace(listening=True), p, "open late"))
            case "say":
                yield Step("says that it listens", _at(s._replace(listening=True), p, "look again"))
            case "look again":
                again = one.seen != s.end and "who listens looks again after the word" in self.rules
                yield Step("looks again", _at(s, p, "look" if again else "begin to wait"))
            case "open late":
                yield Step("looks again", _at(s, p, "look" if one.seen != s.end else "open at last"))
            case "open at last":
                yield Step("opens the FIFO", _at(self._open(s, p), p, "wait"))
            # -- Listening.wait
            case "begin to wait":
                yield Step("begins to wait", _at(s, p, "wait", waits=one.supervised))
            case "wait":
                if s.bytes and one.fifo == s.fifo:
                    yield Step("is woken", _at(s, p, "drain"))
                missed = one.seen != s.end or one.fifo != s.fifo
                if one.supervised:
                    if one.told:
                        looks = "who is told looks for work" in self.rules
                        yield Step("is told to look", _at(s, p, "listen" if looks else "wait", told=False))
                    if s.procs[-1].at == "over" and "who has lost its supervisor leaves" in self.rules:
                        yield Step("leaves", _at(s, p, "over"))
                elif s.faulty and missed and "who waits looks once in a while" in self.rules:
                    yield Step("looks once in a while", _at(s, p, "listen"))
            case "drain":
                got = s.bytes > 0 and one.fifo == s.fifo
                then = "look" if got and "who drains looks for work" in self.rules else "wait"
                yield Step("drains" if got else "finds it empty", _at(s._replace(bytes=0) if got else s, p, then))
            # -- Watch.look, for all that are supervised
            case "supervise":
                waiting = _who_waits(s)
                missed = one.seen != s.end or one.fifo != s.fifo or (bool(waiting) and not s.listening)
                if s.faulty and missed and "who waits looks once in a while" in self.rules:
                    then = "supervise: open" if waiting else "supervise: look"
                    yield Step("asks who waits", _at(s, p, then, asked=waiting))
            case "supervise: open":
                opened = self._open(s, p)
                moved = opened.procs[p].fifo != one.fifo
                yield Step("opens the FIFO", _at(opened, p, "supervise: say", heard=one.heard or moved))
            case "supervise: say":
                yield Step("says that somebody listens", _at(s._replace(listening=True), p, "supervise: look"))
            case "supervise: look":
                changed = one.heard or one.seen != s.end
                yield Step(
                    "looks at the end",
                    _at(s, p, "supervise: tell" if changed else "supervise", seen=s.end, heard=False),
                )
            case "supervise: tell":
                late = "the supervisor looks before it asks whom to tell" in self.rules
                for each in _who_waits(s) if late else one.asked:
                    s = s._replace(procs=_put(s.procs, each, s.procs[each]._replace(waits=False, told=True)))
                yield Step("tells who waits", _at(s, p, "supervise", asked=()))

    def _lease(self, s: State, p: int, one: Process) -> Iterator[Step[State]]:
        if not s.jobs:
            early = "what was seen is from before the lease" in self.rules
            yield Step("finds no job", _at(s, p, "listen" if early else "look late"))
            return
        s = s._replace(jobs=s.jobs - 1, end=s.end + 1)
        one = one._replace(left=one.left - 1)
        rings = s.jobs > 0 and "who leaves jobs behind rings" in self.rules
        then = "read the words, having left jobs" if rings else self._next(one)
        yield Step("takes a job", _at(s, p, then, left=one.left, waits=False))

    def _next(self, one: Process) -> str:
        return "look" if one.left else "over"

    def _open(self, s: State, p: int) -> State:
        if not s.fifo:
            s = s._replace(fifo=1 + max(other.fifo for other in s.procs), bytes=0)
        return s._replace(procs=_put(s.procs, p, s.procs[p]._replace(fifo=s.fifo)))

    def _ring(self, s: State) -> State:
        """One byte more in the FIFO that has the name, if anybody has it open."""
        there = [one for one in s.procs if s.fifo and one.fifo == s.fifo]
        if "a byte waits for who comes to it" not in self.rules:
            there = [one for one in there if one.at == "wait"]
        return s._replace(bytes=min(s.bytes + 1, MOST_BYTES)) if there else s


def _who_waits(s: State) -> tuple[int, ...]:
    """Of whom the supervisor knows that they wait."""
    return tuple(number for number, one in enumerate(s.procs) if one.waits)


def _put(row: tuple[Process, ...], number: int, value: Process) -> tuple[Process, ...]:
    return (*row[:number], value, *row[number + 1 :])


def _at(s: State, p: int, at: str, **changes: object) -> State:
    """It goes on there. Who is over has closed the FIFO, and with the last one the bytes in it are gone."""
    one = s.procs[p]._replace(at=at, **changes)  # type: ignore[arg-type]
    if at == "over":
        one = one._replace(fifo=0, waits=False, told=False)
    s = s._replace(procs=_put(s.procs, p, one))
    is_open = any(other.fifo == s.fifo for other in s.procs)
    return s if is_open or not s.bytes else s._replace(bytes=0)
