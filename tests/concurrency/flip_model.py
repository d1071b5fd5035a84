"""A model of the compaction's protocol, small enough to try every order of its steps.

The real protocol is in ``engine/compaction.py``, ``passage.py`` and ``flip.py`` (``session``, ``durability`` and
``recovery`` for the others); the steps here have its names and its order, what does not matter for it is left out.
Three processes meet: the compactor, a writer that has the old log open, and an opener that has nothing open yet. Each
may be killed before any step, a sync of the old log may fail, and a power cut may come after every step. In some runs
a rival compacts too, because somebody replaced the lock file. Every state that can be reached is judged (``problem``).

``RULES`` are what the protocol relies on. ``explore`` with a rule left out shows why it is there: the shortest
sequence of steps after which an acknowledged job is lost, or the control words lie.

A log is the tuple of its records' names; a position is ``(generation, number of records)``. Generation 1 is the old
log, 2 the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

RULES = frozenset(
    {
        "the snapshot is confirmed",  # durable, and still there, before anything is made of it
        "rounds carry what is durable",  # what a failed sync may still cut is not carried without the lock
        "the rest is carried under the lock",
        "the new log is synced before the pointer",
        "the new name is durable before the pointer",
        "the new log is locked before the pointer",  # until the words speak of it
        "the directory is synced before the words",
        "the words are written under the old log's sync lock",
        "the old log goes last",
        "the new log is still the one that was written",  # when the lock is had
        "the live log is still the one that was copied",  # when the lock is had
        "who waited for a replaced log syncs the directory",
    }
)

Position = tuple[int, int]
NOBODY = ""
COMPACTOR, WRITER, OPENER = "compactor", "writer", "opener"
BATCHES = {WRITER: ("w1", "w2"), OPENER: ("o",)}


class State(NamedTuple):
    """Everything that the three processes, the kernel and the disk know."""

    # where each process is, and what it remembers
    compactor: str = "snapshot"
    writer: str = "lock"
    opener: str = "open"
    writer_log: int = 1
    opener_log: int = 0
    entered: frozenset[str] = frozenset({WRITER})  # who has synced the directory since it opened its log
    goals: tuple[Position, Position] = ((0, 0), (0, 0))  # what writer and opener have to see durable
    here: frozenset[str] = frozenset()  # who saw it durable in the log that it wrote to
    snapshot: tuple[str, ...] = ()
    reached: int = 0  # how many records of the old log are in the new one
    # locks: who holds them
    old_lock: str = NOBODY
    new_lock: str = NOBODY
    old_sync: str = NOBODY
    new_sync: str = NOBODY
    aims: tuple[Position, Position] = ((0, 0), (0, 0))  # of the syncs of old and new log that are under way
    # files as everybody sees them
    old: tuple[str, ...] = ("first", "doubtful 1", "doubtful 2")
    made: tuple[str, ...] = ()  # what the compactor has written
    made_is: str = "nowhere"  # or temporary (under a name of its own), named (generation 2), swept (by a rival)
    rivals: tuple[str, ...] | None = None  # what a rival has written as generation 2
    pointer: int = 1
    old_there: bool = True
    # the control words
    end: Position = (1, 3)
    synced: Position = (1, 1)
    highest: Position = (1, 1)  # that was ever called synced
    syncing: bool = False
    poisoned: bool = False
    # the disk
    old_disk: frozenset[str] = frozenset({"first"})
    old_lost: frozenset[str] = frozenset()  # of a failed sync: clean in the cache, not on the disk
    made_disk: frozenset[str] = frozenset()
    new_named: bool = False
    pointer_disk: frozenset[int] = frozenset({1})
    old_there_disk: frozenset[bool] = frozenset({True})
    # what was promised, and which faults are left
    acknowledged: frozenset[str] = frozenset({"first"})
    kills: int = 1
    failures: int = 1
    rival: str = "over"  # or begin, sweep


Step = tuple[str, State]


class Model:
    """The steps of all processes under a set of rules."""

    def __init__(self, rules: frozenset[str]) -> None:
        unknown = rules - RULES
        assert not unknown, f"no such rules: {unknown}"
        self.rules = rules

    def steps(self, s: State) -> Iterator[Step]:
        """Every step that can come next, with the state after it."""
        yield from self._compactor(s)
        for who in (WRITER, OPENER):
            yield from self._writing(s, who)
        yield from self._rival(s)
        if s.kills:
            for who in (COMPACTOR, WRITER, OPENER):
                if getattr(s, who) not in ("over", "dead"):
                    yield f"{who}: killed", _gone(s, who, "dead")._replace(kills=s.kills - 1)

    # -- the compactor, in the order of engine/compaction.py

    def _compactor(self, s: State) -> Iterator[Step]:
        match s.compactor:
            case "snapshot" if s.old_lock == NOBODY:
                yield "compactor: locks the log", s._replace(compactor="snapshot under the lock", old_lock=COMPACTOR)
            case "snapshot under the lock":
                if s.pointer != 1 or s.poisoned or len(s.old) != s.end[1]:
                    yield "compactor: gives up", _gone(s, COMPACTOR, "over")  # a later one would secure the tail first
                    return
                then = "confirm" if "the snapshot is confirmed" in self.rules else "copy"
                after = s._replace(snapshot=s.old, reached=len(s.old), old_lock=NOBODY, compactor=then)
                yield "compactor: takes the snapshot, unlocks", after
            case "confirm":
                if s.synced >= (1, len(s.snapshot)) or s.synced[0] > 1:
                    if s.old[: len(s.snapshot)] == s.snapshot:
                        yield "compactor: the snapshot is durable", s._replace(compactor="copy")
                    else:
                        yield "compactor: the snapshot was cut off, gives up", _gone(s, COMPACTOR, "over")
                elif s.old_sync == NOBODY and (s.poisoned or s.syncing or s.end[0] != 1):
                    yield "compactor: the words are in doubt, gives up", _gone(s, COMPACTOR, "over")
                elif s.old_sync == NOBODY:
                    yield "compactor: begins a sync", _begin_sync(s, 1, COMPACTOR)._replace(compactor="fdatasync")
            case "fdatasync":
                done = _end_sync(_fdatasync(s, 1), 1)
                yield "compactor: fdatasync, says what is synced", done._replace(compactor="confirm")
            case "copy":
                made = s._replace(made=s.snapshot, made_is="temporary", compactor="round")
                yield "compactor: writes the copies", made
            case "round":
                durable = s.synced[1] if s.synced[0] == 1 else s.reached
                stop = durable if "rounds carry what is durable" in self.rules else len(s.old)
                if stop > s.reached:
                    carried = s._replace(made=s.made + s.old[s.reached : stop], reached=stop)
                    yield "compactor: carries a round", carried
                if s.old_lock == NOBODY:
                    locked = s._replace(old_lock=COMPACTOR, compactor="name")
                    yield "compactor: locks the log to name the new one", locked
            case "name":
                if self._moved(s) or s.made_is != "temporary":
                    yield "compactor: it cannot be named, gives up", _gone(s, COMPACTOR, "over")
                else:  # whatever has that name is replaced
                    named = s._replace(compactor="sync names", made_is="named", rivals=None)
                    yield "compactor: names the new log, unlocks", _free(named, COMPACTOR)
            case "sync names":
                if "the new name is durable before the pointer" in self.rules:
                    s = _sync_directory(s)
                yield "compactor: syncs the directory", s._replace(compactor="lock")
            case "lock" if s.old_lock == NOBODY:
                yield "compactor: locks the log again", s._replace(compactor="check", old_lock=COMPACTOR)
            case "check":
                taken = s.made_is != "named" and "the new log is still the one that was written" in self.rules
                if self._moved(s) or taken or s.poisoned or len(s.old) != s.end[1]:
                    yield "compactor: not as it was, gives up", _gone(s, COMPACTOR, "over")
                    return
                rest = s.old[s.reached :] if "the rest is carried under the lock" in self.rules else ()
                carried_all = s._replace(made=s.made + rest, reached=len(s.old), compactor="sync")
                yield "compactor: carries the rest", carried_all
            case "sync":
                if "the new log is synced before the pointer" in self.rules:
                    s = s._replace(made_disk=frozenset(s.made))
                yield "compactor: syncs the new log", s._replace(compactor="lock new")
            case "lock new" if s.new_lock == NOBODY:
                if "the new log is locked before the pointer" in self.rules:
                    s = s._replace(new_lock=COMPACTOR)
                yield "compactor: locks the new log", s._replace(compactor="sync lock")
            case "sync lock":
                if "the words are written under the old log's sync lock" not in self.rules:
                    yield "compactor: (takes no sync lock)", s._replace(compactor="rename")
                elif s.old_sync == NOBODY:
                    yield "compactor: takes the old sync lock", s._replace(compactor="rename", old_sync=COMPACTOR)
            case "rename":
                s = s._replace(pointer=2, pointer_disk=s.pointer_disk | {2})
                if "the old log goes last" not in self.rules:
                    s = _unlinked(s)
                yield "compactor: renames the pointer", s._replace(compactor="directory")
            case "directory":
                if "the directory is synced before the words" in self.rules:
                    s = _sync_directory(s)
                yield "compactor: syncs the directory", s._replace(compactor="end")
            case "end":
                yield "compactor: publishes the end", s._replace(compactor="synced", end=(2, len(s.made)))
            case "synced":
                yield "compactor: says what is synced", _now_synced(s, (2, len(s.made)))._replace(compactor="unlock")
            case "unlock":
                yield "compactor: unlocks", _free(s, COMPACTOR)._replace(compactor="unlink")
            case "unlink":
                yield "compactor: unlinks the old log", _unlinked(s)._replace(compactor="over")

    # -- another compactor, where the lock file was replaced: it sweeps what it does not know, and begins its own

    def _rival(self, s: State) -> Iterator[Step]:
        if s.rival == "over" or s.pointer != 1 or s.old_lock != NOBODY:
            return
        if s.rival == "begin":
            if s.made_is in ("temporary", "named"):
                swept = s._replace(made_is="swept", rivals=(), rival="sweep")
                yield "rival: sweeps what it does not know, begins its own generation 2", swept
            yield "rival: begins", s._replace(rival="sweep")
        elif s.made_is != "named" and s.old_sync == NOBODY and not s.poisoned and len(s.old) == s.end[1]:
            end = (2, len(s.old))
            live = s._replace(rivals=s.old, new_named=True, pointer=2, pointer_disk=frozenset({2}), end=end)
            yield "rival: makes its own live", _now_synced(live._replace(rival="over"), end)

    def _moved(self, s: State) -> bool:
        return s.pointer != 1 and "the live log is still the one that was copied" in self.rules

    # -- who writes: session.locked, held.append, Promise.keep

    def _writing(self, s: State, who: str) -> Iterator[Step]:
        log = s.writer_log if who == WRITER else s.opener_log
        records = BATCHES[who]
        at = getattr(s, who)
        match at:
            case "open":
                opened = _at(s, f"{who}_log", s.pointer)._replace(entered=s.entered - {who})
                if s.pointer == 2 or s.old_there:
                    yield f"{who}: opens log {s.pointer}", _at(opened, who, "lock")
            case "lock" if _lock(s, log) == NOBODY:
                if s.pointer != log:
                    yield f"{who}: the pointer has moved, opens again", _at(s, who, "open")
                else:
                    yield f"{who}: locks log {log}", _at(_locked(s, log, who), who, "ready")
            case "ready":
                if who not in s.entered:
                    yield f"{who}: syncs the directory", _sync_directory(s)._replace(entered=s.entered | {who})
                elif s.end[0] != log or s.synced[0] != log or s.poisoned or len(_content(s, log)) != s.end[1]:
                    yield from self._secure(s, who, log)
                else:
                    after = _with_content(s, log, _content(s, log) + records)
                    yield f"{who}: appends", _at(after, who, "publish")
            case "publish":
                end = (log, len(_content(s, log)))
                after = _at(_locked(s._replace(end=end), log, NOBODY), who, "wait")
                yield f"{who}: publishes, unlocks", after._replace(goals=_goal(s, who, end))
            case "wait":
                yield from self._wait(s, who, log)
            case "fdatasync":
                yield f"{who}: fdatasync", _at(_fdatasync(s, log), who, "set synced")
                if s.failures and log == 1 and frozenset(s.old) - s.old_disk:
                    lost = s.old_lost | (frozenset(s.old) - s.old_disk)
                    failed = s._replace(failures=s.failures - 1, old_lost=lost)
                    yield f"{who}: fdatasync FAILS", _at(failed, who, "poison")
            case "poison":
                yield f"{who}: poisons, error", _gone(s._replace(poisoned=True), who, "over")
            case "set synced":
                yield f"{who}: says what is synced", _at(_end_sync(s, log), who, "wait")
            case "look":  # a sync was left unfinished: once more, with the log's lock
                if _lock(s, s.pointer) == NOBODY:
                    if s.pointer != log:
                        yield f"{who}: the log was replaced", _at(s, who, "replaced")
                    elif s.poisoned or s.syncing:
                        yield f"{who}: locks the log for it", _at(_locked(s, log, who), who, "secure")
                    else:
                        yield f"{who}: it was secured meanwhile", _at(s, who, "wait")
            case "secure":
                yield from self._secure(s, who, log)
            case "replaced":
                if "who waited for a replaced log syncs the directory" in self.rules:
                    s = _sync_directory(s)
                yield f"{who}: syncs the directory", _at(s, who, "compare")
            case "compare":
                number = s.goals[who == OPENER][1]
                content = _content(s, log)
                there = len(content) >= number and content[number - 1] == records[-1]
                if there:
                    s = s._replace(acknowledged=s.acknowledged | set(records))
                yield f"{who}: {'success' if there else 'outcome unknown'}", _gone(s, who, "over")

    def _wait(self, s: State, who: str, log: int) -> Iterator[Step]:
        goal = s.goals[who == OPENER]
        if s.synced >= goal:
            # Seen without the sync lock: whoever synced for it may have replaced the log since.
            yield f"{who}: sees it synced", _at(s, who, "replaced" if s.end[0] > log else "compare")
        elif _sync(s, log) == NOBODY:
            if s.poisoned or s.syncing or s.end[0] != log or s.synced[0] != log:
                yield f"{who}: finds the words in doubt", _at(s, who, "look")
            else:
                yield f"{who}: begins a sync", _at(_begin_sync(s, log, who), who, "fdatasync")

    def _secure(self, s: State, who: str, log: int) -> Iterator[Step]:
        """``recovery.secure``, in one step: its own steps are the business of other tests."""
        if _sync(s, log) != NOBODY:
            return
        ready = "wait" if getattr(s, who) == "secure" else "ready"

        def secured(content: tuple[str, ...]) -> State:
            name = f"OPEN{len(content)}"
            after = _with_content(s, log, (*content, name))
            after = after._replace(old_lost=frozenset()) if log == 1 else after
            after = _sync_directory(_fdatasync(after, log))
            end = (log, len(content) + 1)
            after = _now_synced(after._replace(end=end, poisoned=False), end)
            return _at(_locked(after, log, NOBODY) if ready == "wait" else after, who, ready)

        content = _content(s, log)
        yield f"{who}: secures the tail", secured(content)
        lost = [number for number, record in enumerate(content) if log == 1 and record in s.old_lost]
        if lost:
            yield f"{who}: secures the tail, cutting what the cache has lost", secured(content[: lost[0]])


def problem(s: State) -> str | None:
    """What is wrong in this state, or would be after a power cut now."""
    live = _content(s, s.pointer)
    if missing := s.acknowledged - set(live):
        return f"generation {s.pointer} is live and lacks what was acknowledged: {sorted(missing)}"
    if s.pointer == 1 and not s.old_there:
        return "the pointer names a log that is gone"
    trusted = s.pointer == s.end[0] == s.synced[0]  # otherwise whoever locks the log next secures its tail
    if s.synced < s.highest and (trusted or s.compactor != "dead"):
        return "the position that is called synced has fallen"
    generation, number = s.synced
    if len(_content(s, generation)) < number:
        return "the words call synced what is not there"
    if not set(_content(s, generation)[:number]) <= _on_disk(s, generation):
        return "the words call synced what is not on the disk"
    for pointer in s.pointer_disk:
        if pointer == 1 and False in s.old_there_disk:
            return "power cut: the pointer names generation 1, which is gone"
        if pointer == 2 and not s.new_named:
            return "power cut: the pointer names generation 2, which has no name"
        if missing := s.acknowledged - _on_disk(s, pointer):
            return f"power cut: generation {pointer} lacks what was acknowledged: {sorted(missing)}"
    return None


# -- small pieces of a state


def _at(s: State, field: str, value: Any) -> State:
    return s._replace(**{field: value})


def _goal(s: State, who: str, goal: Position) -> tuple[Position, Position]:
    return (goal, s.goals[1]) if who == WRITER else (s.goals[0], goal)


def _content(s: State, log: int) -> tuple[str, ...]:
    if log == 1:
        return s.old
    return s.made if s.made_is == "named" else s.rivals or ()


def _with_content(s: State, log: int, content: tuple[str, ...]) -> State:
    if log == 1:
        return s._replace(old=content)
    return s._replace(made=content) if s.made_is == "named" else s._replace(rivals=content)


def _on_disk(s: State, log: int) -> frozenset[str]:
    if log == 1:
        return s.old_disk
    return s.made_disk if s.made_is == "named" else frozenset(s.rivals or ())  # a rival syncs before it goes on


def _lock(s: State, log: int) -> str:
    return s.old_lock if log == 1 else s.new_lock


def _locked(s: State, log: int, who: str) -> State:
    return s._replace(old_lock=who) if log == 1 else s._replace(new_lock=who)


def _sync(s: State, log: int) -> str:
    return s.old_sync if log == 1 else s.new_sync


def _begin_sync(s: State, log: int, who: str) -> State:
    aims = (s.end, s.aims[1]) if log == 1 else (s.aims[0], s.end)
    s = s._replace(syncing=True, aims=aims)
    return s._replace(old_sync=who) if log == 1 else s._replace(new_sync=who)


def _end_sync(s: State, log: int) -> State:
    aim, none = s.aims[log - 1], (0, 0)
    s = _now_synced(s._replace(aims=(none, s.aims[1]) if log == 1 else (s.aims[0], none)), aim)
    return s._replace(old_sync=NOBODY) if log == 1 else s._replace(new_sync=NOBODY)


def _now_synced(s: State, position: Position) -> State:
    return s._replace(synced=position, syncing=False, highest=max(s.highest, position))


def _fdatasync(s: State, log: int) -> State:
    if log == 1:
        return s._replace(old_disk=s.old_disk & set(s.old) | (set(s.old) - s.old_lost))
    return s._replace(made_disk=frozenset(s.made)) if s.made_is == "named" else s


def _sync_directory(s: State) -> State:
    return s._replace(
        pointer_disk=frozenset({s.pointer}),
        new_named=s.new_named or s.made_is == "named",
        old_there_disk=frozenset({s.old_there}),
    )


def _unlinked(s: State) -> State:
    return s._replace(old_there=False, old_there_disk=s.old_there_disk | {False})


def _free(s: State, who: str) -> State:
    """Its locks are let go."""
    for lock in ("old_lock", "new_lock", "old_sync", "new_sync"):
        if getattr(s, lock) == who:
            s = _at(s, lock, NOBODY)
    return s


def _gone(s: State, who: str, how: str) -> State:
    return _at(_free(s, who), who, how)


# -- exploring


class Found(NamedTuple):
    """How many states were seen, and the shortest way to the first problem, if any."""

    states: int
    problem: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.problem is None:
            return f"{self.states} states, no problem"
        return f"{self.problem}:\n  " + "\n  ".join(self.trace)


def explore(start: State, rules: frozenset[str] = RULES) -> Found:
    """Follow every order of steps, breadth first, until a state is wrong or there are no more.

    A state from which somebody would get on only if somebody were killed is wrong too.
    """
    model = Model(rules)
    before: dict[State, tuple[State, str] | None] = {start: None}
    todo = deque([start])

    def way(s: State) -> tuple[str, ...]:
        steps = []
        while (step := before[s]) is not None:
            s, label = step
            steps.append(label)
        return tuple(reversed(steps))

    while todo:
        s = todo.popleft()
        wrong = problem(s)
        if wrong is not None:
            return Found(len(before), wrong, way(s))
        moved = False
        for label, after in model.steps(s):
            moved = moved or not label.endswith("killed")
            if after not in before:
                before[after] = (s, label)
                todo.append(after)
        if not moved and {s.compactor, s.writer, s.opener} - {"over", "dead"}:
            return Found(len(before), "somebody waits for ever", way(s))
    return Found(len(before))
