"""A model of appending, sharing syncs and securing the tail, small enough to try every order of its steps.

The steps have the names and the order of ``engine/session.py`` (``_try_enter``, ``_ready``), ``held.py`` (``append``,
``_take_back``), ``durability.py`` (``Promise``), ``syncing.py`` and ``recovery.py`` (``secure``). Some processes each
run a few verbs, and each may be killed before any step; a write may be refused in its middle, a sync may fail, the
kernel may read a page again after a failed sync, the lock file may be emptied or replaced by an older copy. After
every step a power cut may come: ``problem`` looks at all that the disk may hold then.

The log is a row of cells, one for each write; behind the last one the file has room, which is empty cells: its size
tells nothing. A write that a killed process began is half a cell. ``RULES`` are what the protocol relies on; with one
left out, ``explore`` finds the sequence of steps that made the rule.

Left out: writes of several records, a second log (that is ``flip_model``), who opens first (``session_model``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from .exploring import Step

RULES = frozenset(
    {
        "an unpublished write is noticed",  # Log.ends_at
        "a write is published after it was written",
        "nobody writes while the queue is poisoned",
        "a failed sync poisons",
        "a sync that was left unfinished is noticed",
        "one sync at a time",
        "the goal of a sync is read before it",
        "securing takes the sync lock",
        "poison comes first when securing, and goes last",
        "what was verified is written again",
        "what was cut is written again",
        "the cut is on the disk before anything follows",
        "OPEN is on the disk before the words speak of it",
        "who waits compares at the end",
        "who only looked waits as well",
        "taking a write back is synced",
        "taking a write back leaves older doubts",
    }
)

CELLS = 12
NOBODY = -1
PLAIN, LEASE, LOOK = "plain", "lease", "look"


class Cell(NamedTuple):
    """One write: whose, what it says was durable before it (a number of cells), and whether all of it is there."""

    name: str
    certified: int
    whole: bool = True


Content = Cell | None  # None: room
ZEROS = "zeros"  # a cell on the disk that holds nothing, although something was written there


class Process(NamedTuple):
    """Where a process is, and what it remembers."""

    verb: int = 0
    at: str = "lock"
    end: int = 0  # what has to be durable: everything before this cell
    frame: Content = None  # the last cell before it, as it was seen
    goal: int = 0
    kept: tuple[Cell, ...] = ()  # what was verified
    doubts: bool = False  # whether a sync that was left unfinished is a reason to secure (after_failed_sync)


class State(NamedTuple):
    """Everything that the processes, the kernel and the disk know."""

    procs: tuple[Process, ...]
    cache: tuple[Content, ...]
    disk: tuple[frozenset[Content], ...]  # what each cell may hold after a power cut
    dirty: frozenset[int] = frozenset()
    # the control words
    end: int = 1
    synced: int = 1
    syncing: bool = False
    poisoned: bool = False
    known: bool = True  # whether there are words of this log
    # locks
    log_lock: int = NOBODY
    sync_lock: int = NOBODY
    # faults that are left
    kills: int = 0
    failures: int = 0
    evictions: int = 0
    refusals: int = 0
    emptied: int = 0  # of the lock file
    restored: int = 0  # an older copy of it, of this moment
    older: tuple[int, int] | None = None
    # what was promised
    acknowledged: frozenset[tuple[str, int]] = frozenset()
    tokens: frozenset[tuple[int, int]] = frozenset()
    wrong: str | None = None


def start(verbs: int, **faults: int) -> State:
    """A log with its first record, which is durable, and so many processes."""
    first = Cell("O0", 0)
    empty: frozenset[Content] = frozenset({None})
    cache: tuple[Content, ...] = (first, *[None] * (CELLS - 1))
    return State((Process(),) * verbs, cache, (frozenset({first}), *[empty] * (CELLS - 1)), **faults)  # type: ignore[arg-type]


class SyncModel:
    """The steps of all processes, under a set of rules.

    ``verbs`` are those of each process: a name and a kind.
    """

    def __init__(self, verbs: tuple[tuple[tuple[str, str], ...], ...], rules: frozenset[str] = RULES) -> None:
        assert not rules - RULES, f"no such rules: {rules - RULES}"
        self.verbs = verbs
        self.rules = rules
        self._judged: dict[object, str | None] = {}

    def is_over(self, s: State) -> bool:
        """Whether every process has run its verbs."""
        return all(one.verb >= len(self.verbs[p]) for p, one in enumerate(s.procs))

    def steps(self, s: State) -> Iterator[Step[State]]:
        """Everything that can happen next."""
        for p, one in enumerate(s.procs):
            if one.verb >= len(self.verbs[p]):
                continue
            name, kind = self.verbs[p][one.verb]
            for step in self._step(s, p, one, name, kind):
                yield Step(f"{name}: {step.what}", step.after, step.fault)
            if s.kills and one.at != "lock":
                yield Step(f"{name}: SIGKILL", self._over(s._replace(kills=s.kills - 1), p), fault=True)
        yield from self._faults(s)

    def _faults(self, s: State) -> Iterator[Step[State]]:
        if s.emptied:
            after = s._replace(emptied=0, known=False, end=0, synced=0, syncing=False, poisoned=False)
            yield Step("the lock file is emptied", after, fault=True)
        if s.restored and s.older is None:
            yield Step("the lock file is copied aside", s._replace(older=(s.end, s.synced)), fault=True)
        elif s.restored and s.older is not None and s.log_lock == s.sync_lock == NOBODY:
            end, synced = s.older
            after = s._replace(restored=0, older=None, end=end, synced=synced, syncing=False, poisoned=False)
            yield Step("the older copy is put back", after, fault=True)
        if s.evictions:
            for number, possible in enumerate(s.disk):
                if number in s.dirty or len(possible) == 1:
                    continue
                for content in possible - {s.cache[number]}:
                    cell = Cell(ZEROS, 0, whole=False) if content is None else content
                    after = s._replace(evictions=s.evictions - 1, cache=_put(s.cache, number, cell))
                    yield Step(f"cell {number} is read again from the disk: {cell.name}", after, fault=True)

    def _step(self, s: State, p: int, one: Process, name: str, kind: str) -> Iterator[Step[State]]:
        match one.at:
            # -- Session._try_enter, _ready
            case "lock":
                if s.log_lock == NOBODY:
                    yield Step("locks the log", _at(s._replace(log_lock=p), p, "ready"))
            case "ready":
                doubtful = (s.poisoned and "nobody writes while the queue is poisoned" in self.rules) or (
                    one.doubts and s.syncing
                )
                if s.known and not doubtful and self._ends_at(s, s.end):
                    yield from self._enter(s, p, kind)
                elif "securing takes the sync lock" in self.rules:
                    yield Step("finds the tail in doubt", _at(s, p, "take the sync lock"))
                else:
                    yield Step("finds the tail in doubt", _at(s, p, "poison"))
            case "take the sync lock":
                if s.sync_lock == NOBODY:
                    fits = s.known and self._ends_at(s, s.end)
                    if fits and not s.poisoned and not s.syncing:
                        yield Step("takes the sync lock: the sync has ended well", _at(s, p, "ready"))
                    else:
                        yield Step("takes the sync lock", _at(s._replace(sync_lock=p), p, "poison"))
            # -- recovery.secure
            case "poison":
                if "poison comes first when securing, and goes last" in self.rules:
                    s = s._replace(poisoned=True)
                yield Step("poisons, to secure", _at(s, p, "examine"))
            case "examine":
                yield from self._examine(s, p)
            case "write again":
                again = range(self._certified(s, one.kept), len(one.kept))
                if "what was verified is written again" in self.rules:
                    for number in again:
                        s = _write(s, number, one.kept[number])
                if "what was cut is written again" in self.rules:
                    for number in range(len(one.kept), CELLS):
                        if len(s.disk[number]) > 1:  # elsewhere it changes nothing
                            s = _write(s, number, None)
                yield Step(f"writes cells {again.start} to {again.stop} again", _at(s, p, "sync the tail"))
            case "sync the tail":
                if "the cut is on the disk before anything follows" in self.rules:
                    yield from self._datasync(s, p, "begin OPEN", "fail")
                else:
                    yield Step("(does not sync)", _at(s, p, "begin OPEN"))
            case "begin OPEN":
                number = len(one.kept)
                half = Cell(f"O{number}", number, whole=False)
                yield Step("writes half of OPEN", _at(_write(s, number, half), p, "end OPEN"))
            case "end OPEN":
                number = len(one.kept)
                yield Step("writes OPEN", _at(_write(s, number, Cell(f"O{number}", number)), p, "sync OPEN"))
            case "sync OPEN":
                if "OPEN is on the disk before the words speak of it" in self.rules:
                    yield from self._datasync(s, p, "say the end", "fail")
                else:
                    yield Step("(does not sync OPEN)", _at(s, p, "say the end"))
            case "say the end":
                yield Step("publishes OPEN", _at(s._replace(end=len(one.kept) + 1), p, "say what is synced"))
            case "say what is synced":
                said = s._replace(synced=len(one.kept) + 1, syncing=False)
                yield Step("says what is synced", _at(said, p, "say whose words they are"))
            case "say whose words they are":
                yield Step("says whose words they are", _at(s._replace(known=True), p, "lift the poison"))
            case "lift the poison":
                s = _free(s._replace(poisoned=False), p, log=False)
                yield Step("lifts the poison", _at(s, p, "ready"))
            case "fail":
                yield Step("fails; the queue stays poisoned", self._over(s, p))
            # -- Held.append
            case "write":
                if "a write is published after it was written" not in self.rules:
                    s = s._replace(end=s.end + 1)
                half = Cell(name, s.synced, whole=False)
                yield Step("writes half", _at(_write(s, one.end - 1, half), p, "write the rest"))
            case "write the rest":
                after = _at(_write(s, one.end - 1, Cell(name, s.synced)), p, "publish")
                yield Step("writes the rest", after)
                if s.refusals:
                    after = _at(s._replace(refusals=s.refusals - 1), p, "take back")
                    yield Step("the rest is REFUSED", after, fault=True)
            case "publish":
                s = s._replace(end=one.end)
                if kind == LEASE:
                    yield Step("publishes, unlocks", self._over(self._token(s, one.end - 1), p))
                else:
                    yield Step("publishes, unlocks", _at(_free(s, p), p, "wait", frame=s.cache[one.end - 1]))
            # -- Held._take_back
            case "take back":
                if s.sync_lock == NOBODY:
                    older = int(s.poisoned or s.syncing)
                    if "taking a write back leaves older doubts" not in self.rules:
                        older, s = 0, s._replace(syncing=False)
                    taken = s._replace(sync_lock=p, poisoned=True)
                    yield Step("takes the sync lock, poisons", _at(taken, p, "cut it off", goal=older))
            case "cut it off":
                yield Step("cuts it off", _at(_write(s, one.end - 1, None), p, "sync the cut"))
            case "sync the cut":
                if "taking a write back is synced" in self.rules:
                    yield from self._datasync(s, p, "leave it", "fail")
                else:
                    yield Step("(does not sync)", _at(s, p, "leave it"))
            case "leave it":
                yield Step("lifts its poison, error", self._over(s._replace(poisoned=bool(one.goal)), p))
            # -- Promise._wait
            case "wait":
                yield from self._wait(s, p, one)
            case "begin":
                begun = s._replace(syncing=True)
                yield Step("begins a sync", _at(begun, p, "datasync"))
            case "datasync":
                yield from self._datasync(s, p, "say", "poison it")
            case "say":
                goal = one.goal if "the goal of a sync is read before it" in self.rules else s.end
                said = _free(s._replace(synced=max(s.synced, goal), syncing=False), p)
                yield Step(f"says that {goal} cells are synced", _at(said, p, "compare"))
            case "poison it":
                if "a failed sync poisons" in self.rules:
                    s = s._replace(poisoned=True)
                else:
                    s = s._replace(syncing=False)
                yield Step("says that the sync failed: outcome unknown", self._over(s, p))
            case "compare":
                there = s.cache[one.end - 1] == one.frame
                if there or "who waits compares at the end" not in self.rules:
                    assert one.frame is not None
                    promised = s.acknowledged | {(one.frame.name, one.end - 1)}
                    yield Step("returns", self._over(s._replace(acknowledged=promised), p))
                else:
                    yield Step("finds another record: outcome unknown", self._over(s, p))

    def _enter(self, s: State, p: int, kind: str) -> Iterator[Step[State]]:
        """The lock is held, behind a tail that is certain."""
        one = s.procs[p]
        if one.doubts:
            yield Step("nothing is in doubt any more, unlocks", _at(_free(s, p), p, "wait", doubts=False))
        elif kind == LOOK:
            seen = _at(_free(s, p), p, "wait", end=s.end, frame=s.cache[s.end - 1])
            if "who only looked waits as well" not in self.rules:
                seen = _at(seen, p, "compare")
            yield Step("looks, unlocks", seen)
        else:
            yield Step("enters", _at(s, p, "write", end=s.end + 1))

    def _ends_at(self, s: State, end: int) -> bool:
        """A record ends there, and room follows."""
        if "an unpublished write is noticed" not in self.rules:
            return True
        last = s.cache[end - 1] if end else None
        return last is not None and last.whole and s.cache[end] is None

    def _examine(self, s: State, p: int) -> Iterator[Step[State]]:
        good = next(number for number, cell in enumerate(s.cache) if cell is None or not cell.whole)
        kept = tuple(cell for cell in s.cache[:good] if cell is not None)
        if good < self._certified(s, tuple(cell for cell in s.cache if cell is not None and cell.whole)):
            s = s._replace(wrong="acknowledged data look damaged, and nobody may cut them")
        for number in range(good, CELLS):
            if s.cache[number] is not None:
                s = _write(s, number, None)
        yield Step(f"cuts at cell {good}", _at(s, p, "write again", kept=kept))

    def _certified(self, s: State, cells: tuple[Cell, ...]) -> int:
        return max([s.synced if s.known else 1, *(cell.certified for cell in cells)])

    def _wait(self, s: State, p: int, one: Process) -> Iterator[Step[State]]:
        free = s.sync_lock == NOBODY or "one sync at a time" not in self.rules
        if not free:
            if s.synced >= one.end:
                yield Step("sees it synced", _at(s, p, "compare"))
            return
        if s.synced >= one.end:
            yield Step("takes the sync lock: it is synced already", _at(s, p, "compare"))
        elif s.poisoned or not s.known or (s.syncing and "a sync that was left unfinished is noticed" in self.rules):
            yield Step("takes the sync lock, finds a doubt, lets it go", _at(s, p, "lock", doubts=True))
        else:
            taken = s if "one sync at a time" not in self.rules else s._replace(sync_lock=p)
            yield Step(f"takes the sync lock, aims at {s.end} cells", _at(taken, p, "begin", goal=s.end))

    def _datasync(self, s: State, p: int, then: str, otherwise: str) -> Iterator[Step[State]]:
        disk = tuple(
            frozenset({content}) if number in s.dirty else possible
            for number, (content, possible) in enumerate(zip(s.cache, s.disk, strict=True))
        )
        yield Step("fdatasync", _at(s._replace(disk=disk, dirty=frozenset()), p, then))
        if s.failures and s.dirty:
            # Pages of a failed sync are clean from then on, also those whose end was cut.
            failed = s._replace(failures=s.failures - 1, dirty=frozenset())
            yield Step("fdatasync FAILS", _at(failed, p, otherwise), fault=True)

    def _token(self, s: State, number: int) -> State:
        opened = max(at for at, cell in enumerate(s.cache[:number]) if cell and cell.whole and cell.name[0] == "O")
        token = (opened, number - opened)
        wrong = s.wrong
        if any(earlier >= token for earlier in s.tokens):
            wrong = f"the token {token} is not above {max(s.tokens)}"
        return s._replace(tokens=s.tokens | {token}, wrong=wrong)

    def _over(self, s: State, p: int) -> State:
        """The verb is over, well or not; so are its locks."""
        procs = _put(s.procs, p, Process(verb=s.procs[p].verb + 1))
        return _free(s._replace(procs=procs), p)

    # -- what is wrong

    def problem(self, s: State) -> str | None:
        """What is wrong in this state, or would be after a power cut now."""
        if s.wrong:
            return s.wrong
        for name, number in s.acknowledged:
            cell = s.cache[number]
            if cell is None or cell.name != name or not cell.whole:
                return f"{name} was acknowledged, and is not in the log"
        key = s.disk, s.synced, s.acknowledged, s.tokens
        if key not in self._judged:
            self._judged[key] = self._after_power_cut(s)
        return self._judged[key]

    def _after_power_cut(self, s: State) -> str | None:
        """The words are gone then, or as they are now; each cell holds one of the contents that it may hold."""
        for image in itertools.product(*(_images(possible) for possible in s.disk)):
            valid = [isinstance(cell, Cell) and cell.whole for cell in image]
            good = valid.index(False) if False in valid else CELLS
            says = [cell.certified for cell in image if isinstance(cell, Cell) and cell.whole]
            if good < max([*says, s.synced]):
                return f"power cut: damage at cell {good} in what was known to be durable"
            if good < CELLS and image[good] == "mixed":
                return f"power cut: cell {good} holds pieces of two records, which is no trace of a crash"
            there = {(cell.name, number) for number, cell in enumerate(image[:good]) if isinstance(cell, Cell)}
            if lost := s.acknowledged - there:
                return f"power cut: {min(lost)[0]} was acknowledged, and is lost"
            if any(token >= (good, 0) for token in s.tokens):
                return f"power cut: the next tokens begin at {(good, 0)}, and {max(s.tokens)} was given out"
        return None


def _images(possible: frozenset[Content]) -> list[Content | str]:
    """What a cell may hold after a power cut; of two records there may be pieces of each."""
    names = {cell.name for cell in possible if cell is not None}
    return [*possible, *(["mixed"] if len(names) > 1 else [])]


# -- small pieces of a state


def _put(row: tuple, number: int, value: object) -> tuple:
    return (*row[:number], value, *row[number + 1 :])


def _at(s: State, p: int, at: str, **changes: object) -> State:
    return s._replace(procs=_put(s.procs, p, s.procs[p]._replace(at=at, **changes)))  # type: ignore[arg-type]


def _write(s: State, number: int, content: Content) -> State:
    """The cache holds it; the disk may, from now on."""
    disk = _put(s.disk, number, s.disk[number] | {content})
    return s._replace(cache=_put(s.cache, number, content), disk=disk, dirty=s.dirty | {number})


def _free(s: State, p: int, *, log: bool = True) -> State:
    if log and s.log_lock == p:
        s = s._replace(log_lock=NOBODY)
    return s._replace(sync_lock=NOBODY) if s.sync_lock == p else s
