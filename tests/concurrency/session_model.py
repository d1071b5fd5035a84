"""A model of who opens a queue first and closes it last, small enough to try every order of its steps.

The steps have the names and the order of ``engine/session.py`` (``_join``, ``_open_first``, ``_leave``, ``close``) and
``cache.py`` (``keep_if_clean``, ``leave``). Two processes open the queue, write, and close it, some times each; a
process of version 1, or one that creates or converts, wants ``NAME.lock`` for itself in between. Each may be killed
before any step, and a power cut may come after every step: then the words are gone or old, the part of the tail that
was not durable may have a hole, a projection that was not synced may be garbage, and the clean mark is as the disk
has it.

Left out: how a tail is secured and synced (``sync_model``), what a compaction changes (``flip_model``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .exploring import Step

RULES = frozenset(
    {
        "the first opener secures the tail",
        "a projection that was not left clean is removed",
        "the mark is cleared on the disk before the file is touched",
        "the projection is synced before it is marked clean",
        "only the last closer marks it clean",
        "the session lock is touched under the log's lock alone",
        "the lock file is held shared, against version 1",
        "a closer lets the session go before the log",
    }
)

NOBODY = -1
OTHER = 2  # version 1, or whoever creates or converts


class State(NamedTuple):
    """Everything that the three processes, the kernel and the disk know."""

    at: tuple[str, str, str] = ("open", "open", "try")
    lives: tuple[int, int, int] = (2, 2, 2)
    # locks
    log_lock: int = NOBODY
    shared: frozenset[int] = frozenset()  # who has the session byte shared
    exclusive: int = NOBODY
    file_shared: frozenset[int] = frozenset()  # who has NAME.lock by flock
    file_exclusive: int = NOBODY
    # the log
    written: int = 0
    durable: int = 0
    hole: bool = False
    # the projection
    exists: bool = False
    garbage: bool = False
    unsynced: bool = False
    clean: bool = False  # the mark, as everybody sees it
    clean_disk: bool = False
    # faults that are left
    kills: int = 0
    cuts: int = 0
    wrong: str | None = None


class SessionModel:
    """The steps of all processes, under a set of rules; ``orderly``: nobody is killed, and the power stays on."""

    def __init__(self, rules: frozenset[str] = RULES, *, orderly: bool = False) -> None:
        assert not rules - RULES, f"no such rules: {rules - RULES}"
        self.rules = rules
        self.orderly = orderly

    def is_over(self, s: State) -> bool:
        """Whether everybody has used up all lives."""
        return not any(s.lives)

    def problem(self, s: State) -> str | None:
        """What is wrong in this state; without faults, somebody has to be the last closer."""
        if self.orderly and self.is_over(s) and s.exists and not s.clean:
            return "all have closed in order, and nobody has left the projection clean"
        return s.wrong

    def steps(self, s: State) -> Iterator[Step[State]]:
        """Everything that can happen next."""
        for p, name in ((0, "one"), (1, "two")):
            if s.lives[p]:
                for step in self._opener(s, p):
                    yield Step(f"{name}: {step.what}", step.after)
        if s.lives[OTHER]:
            for step in self._other(s):
                yield Step(f"other: {step.what}", step.after)
        for p, name in enumerate(("one", "two", "other")):
            if s.kills and s.at[p] not in ("open", "try"):
                yield Step(f"{name}: SIGKILL", _gone(s._replace(kills=s.kills - 1), p), fault=True)
        if s.cuts:
            yield from self._power_cut(s)

    def _opener(self, s: State, p: int) -> Iterator[Step[State]]:
        match s.at[p]:
            # -- Session._join, under the log's lock
            case "open":
                if "the session lock is touched under the log's lock alone" not in self.rules:
                    yield Step("(takes no lock)", _at(s, p, "flock"))
                elif s.log_lock == NOBODY:
                    yield Step("locks the log", _at(s._replace(log_lock=p), p, "flock"))
            case "flock":
                if "the lock file is held shared, against version 1" not in self.rules:
                    yield Step("(holds no lock file)", _at(s, p, "try exclusive"))
                elif s.file_exclusive != NOBODY:
                    yield Step("the lock file is taken, starts over", _at(_unlock(s, p), p, "open"))
                else:
                    yield Step("holds the lock file shared", _at(_hold(s, p), p, "try exclusive"))
            case "try exclusive":
                if s.exclusive == NOBODY and not s.shared - {p}:
                    yield Step("is the first opener", _at(s._replace(exclusive=p), p, "secure"))
                else:
                    yield Step("is not the first", _at(s, p, "shared"))
            case "shared":
                if s.exclusive == NOBODY:
                    yield Step("joins", _at(s._replace(shared=s.shared | {p}), p, "enter"))
                else:
                    yield Step("starts over", _at(_unlock(_drop(s, p), p), p, "open"))
            # -- Session._open_first, Cache.keep_if_clean
            case "secure":
                if "the first opener secures the tail" in self.rules:
                    s = s._replace(hole=False, durable=s.written)
                yield Step("secures the tail", _at(s, p, "keep or remove"))
            case "keep or remove":
                if not s.clean and "a projection that was not left clean is removed" in self.rules:
                    s = s._replace(exists=False, garbage=False, unsynced=False)
                yield Step("keeps a clean projection, or removes it", _at(s, p, "clear the mark"))
            case "clear the mark":
                yield Step("clears the mark", _at(s._replace(clean=False), p, "sync the mark"))
            case "sync the mark":
                if "the mark is cleared on the disk before the file is touched" in self.rules:
                    s = s._replace(clean_disk=s.clean)
                yield Step("syncs the mark", _at(s, p, "go down"))
            case "go down":
                down = s._replace(exclusive=NOBODY, shared=s.shared | {p})
                yield Step("goes down to shared", _at(down, p, "enter"))
            # -- a verb, and its promise
            case "enter":
                yield Step("unlocks the log", _at(_unlock(s, p), p, "verb"))
            case "verb":
                if s.log_lock == NOBODY:
                    yield Step("locks the log", _at(s._replace(log_lock=p), p, "write"))
            case "write":
                yield Step("appends, folds", _at(self._written(s), p, "written"))
            case "written":
                yield Step("unlocks the log", _at(_unlock(s, p), p, "sync"))
            case "sync":
                yield Step("syncs", _at(s._replace(durable=s.written), p, "close"))
            # -- Session.close, _leave, Cache.leave
            case "close":
                if "the session lock is touched under the log's lock alone" not in self.rules:
                    yield Step("(takes no lock to close)", _at(s, p, "is it the last"))
                elif s.log_lock == NOBODY:
                    yield Step("locks the log to close", _at(s._replace(log_lock=p), p, "is it the last"))
            case "is it the last":
                last = s.exclusive == NOBODY and not s.shared - {p}
                if last:
                    up = s._replace(exclusive=p, shared=s.shared - {p})
                    yield Step("is the last", _at(up, p, "sync the projection"))
                elif "only the last closer marks it clean" in self.rules:
                    yield Step("is not the last", _at(s, p, "let the session go"))
                else:
                    yield Step("is not the last, goes on all the same", _at(s, p, "sync the projection"))
            case "sync the projection":
                if "the projection is synced before it is marked clean" in self.rules:
                    s = s._replace(unsynced=False)
                yield Step("syncs the projection", _at(s, p, "mark"))
            case "mark":
                yield Step("marks it clean", _at(s._replace(clean=s.exists), p, "sync its mark"))
            case "sync its mark":
                yield Step("syncs the mark", _at(s._replace(clean_disk=s.clean), p, "let the session go"))
            case "let the session go":
                if "a closer lets the session go before the log" in self.rules:
                    s = s._replace(exclusive=NOBODY if s.exclusive == p else s.exclusive, shared=s.shared - {p})
                else:
                    s = _unlock(s, p)
                yield Step("lets the session go", _at(s, p, "unlock"))
            case "unlock":
                yield Step("unlocks the log, closes the files", _gone(s, p))

    def _written(self, s: State) -> State:
        wrong = s.wrong
        if s.hole:
            wrong = "something was appended behind a hole"
        elif s.garbage:
            wrong = "a verb has decided by a damaged projection"
        elif s.clean or s.clean_disk:
            wrong = "a projection is changed that is marked clean, or would be after a power cut"
        elif s.file_exclusive != NOBODY:
            wrong = "version 1 has the queue for itself, and one of ours writes"
        return s._replace(written=s.written + 1, exists=True, unsynced=True, wrong=wrong)

    def _other(self, s: State) -> Iterator[Step[State]]:
        match s.at[OTHER]:
            case "try":
                if s.file_exclusive == NOBODY and not s.file_shared:
                    yield Step("holds the lock file for itself", _at(s._replace(file_exclusive=OTHER), OTHER, "work"))
                else:
                    yield Step("does not get the lock file", _lived(s, OTHER))
            case "work":
                yield Step("lets it go", _lived(_at(s._replace(file_exclusive=NOBODY), OTHER, "try"), OTHER))

    def _power_cut(self, s: State) -> Iterator[Step[State]]:
        after = s
        for p in range(3):
            if s.at[p] not in ("open", "try"):
                after = _gone(after, p)
        after = after._replace(cuts=s.cuts - 1, written=s.durable)
        for hole in {s.hole, s.durable < s.written}:
            for clean in {s.clean, s.clean_disk}:
                for garbage in {s.garbage, s.garbage or s.unsynced}:
                    cut = after._replace(hole=hole, clean=clean, clean_disk=clean, garbage=garbage, unsynced=False)
                    yield Step(f"POWER CUT (hole: {hole}, mark: {clean}, garbage: {garbage})", cut, fault=True)


# -- small pieces of a state


def _put(row: tuple, number: int, value: object) -> tuple:
    return (*row[:number], value, *row[number + 1 :])


def _at(s: State, p: int, at: str) -> State:
    return s._replace(at=_put(s.at, p, at))


def _lived(s: State, p: int) -> State:
    return s._replace(lives=_put(s.lives, p, s.lives[p] - 1))


def _hold(s: State, p: int) -> State:
    return s._replace(file_shared=s.file_shared | {p})


def _drop(s: State, p: int) -> State:
    return s._replace(file_shared=s.file_shared - {p})


def _unlock(s: State, p: int) -> State:
    return s._replace(log_lock=NOBODY) if s.log_lock == p else s


def _gone(s: State, p: int) -> State:
    """The process ends: the kernel lets its locks go."""
    s = _unlock(_drop(s, p), p)
    s = s._replace(
        shared=s.shared - {p},
        exclusive=NOBODY if s.exclusive == p else s.exclusive,
        file_exclusive=NOBODY if s.file_exclusive == p else s.file_exclusive,
    )
    return _lived(_at(s, p, "try" if p == OTHER else "open"), p)
