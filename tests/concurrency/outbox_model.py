"""A model of the outbox and of writes that may come again, small enough to try every order of its steps.

The steps have the names and the order of ``transactions.write_through_outbox``, ``outbox/sweeping.py``,
``engine/once.py`` and ``engine/adding.py`` (``_known``). All writes are of one job id: each is a transaction with a
row, which may be rolled back; sweepers take what rows there are; others enqueue under the same id without an outbox; a
worker runs the job; a compaction forgets it. Time goes on by steps, too. Any process may be killed, and the power may
go, which takes along what was not synced.

Wrong is: a job that was made twice for one write, one of a transaction that is not committed, and a row that has gone
without its job. A row that stays is not wrong: it is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .exploring import Step

RULES = frozenset(
    {
        "the row is part of the transaction",
        "what is written is committed",
        "a row is deleted once its job is durable",
        "the job is kept until its write can come no more",
        "a write that comes later is refused",
        "that is decided under the lock",
        "the id is free for others after the retention",
        "what takes the place of a job remembers its write",
    }
)

RETENTION, SWEEP = 1, 2
"""How long a finished job is kept anyhow, and how much longer a row may be swept; in ticks."""
END = 4

NONE, OPEN, COMMITTED, GONE, ROLLED_BACK = "no row", "open", "committed", "gone", "rolled back"


class Process(NamedTuple):
    """Where a process is; ``write`` is the one that it has in hand."""

    kind: str
    at: str
    write: int = 0


class Job(NamedTuple):
    """What the log knows under the id. ``made_for`` is -1 for one without an outbox; 0 for a time: none."""

    made_for: int
    known_until: int
    done: bool = False
    free_at: int = 0
    durable: bool = False


class Write(NamedTuple):
    """One row, when it can come no more, how often its job was made, and whether it has what it wanted."""

    row: str = NONE
    until: int = 0
    made: int = 0
    has_job: bool = False


class State(NamedTuple):
    """Everything there is."""

    procs: tuple[Process, ...]
    writes: tuple[Write, ...]
    job: Job | None = None
    now: int = 0
    kills: int = 0
    cuts: int = 0
    rollbacks: int = 0


def start(writers: int = 1, sweeps: tuple[int, ...] = (1,), others: int = 0, **faults: int) -> State:
    """So many transactions, sweepers that take so many rows each, and enqueues without an outbox."""
    procs = [Process("writer", "begin", number) for number in range(writers)]
    procs += [Process("sweeper", "read", -left) for left in sweeps]
    procs += [Process("other", "enqueue")] * others
    return State(tuple(procs), (Write(),) * writers, **faults)  # type: ignore[arg-type]


class OutboxModel:
    """The steps of all processes, under a set of rules."""

    def __init__(self, rules: frozenset[str] = RULES) -> None:
        assert not rules - RULES, f"no such rules: {rules - RULES}"
        self.rules = rules

    def is_over(self, s: State) -> bool:
        """Whether everybody has done what was to be done."""
        return all(one.at == "over" for one in s.procs)

    def problem(self, s: State) -> str | None:
        """What is wrong in this state."""
        for write in s.writes:
            if write.made > 1:
                return "a job was made twice for one write"
            if write.made and write.row in (NONE, OPEN, ROLLED_BACK):
                return "a job of a transaction that is not committed"
            if write.row == GONE and not write.has_job:
                return "a row has gone without its job"
        return None

    def steps(self, s: State) -> Iterator[Step[State]]:
        """Everything that can happen next."""
        for p, one in enumerate(s.procs):
            if one.at == "over":
                continue
            step = self._writer if one.kind == "writer" else self._sweeper if one.kind == "sweeper" else self._other
            yield from (Step(f"{one.kind} {p}: {what}", after) for what, after in step(s, p, one))
            if s.kills:
                yield Step(f"{one.kind} {p}: SIGKILL", self._kill(s._replace(kills=s.kills - 1), p), fault=True)
        if s.cuts:
            yield Step("the power goes", self._cut(s), fault=True)
        if s.job is not None and not s.job.done:
            done = s.job._replace(done=True, free_at=s.now + RETENTION, durable=True)
            yield Step("the job is run", s._replace(job=done), fault=True)
        if s.job is not None and s.job.done and self._keep_until(s.job) <= s.now:
            yield Step("a compaction forgets the job", s._replace(job=None), fault=True)
        if s.now < END:
            yield Step("time goes on", s._replace(now=s.now + 1), fault=True)

    # -- a transaction, and what follows it

    def _writer(self, s: State, p: int, one: Process) -> Iterator[tuple[str, State]]:
        w = one.write
        match one.at:
            case "begin":
                begun = _write(s, w, row=OPEN, until=s.now + RETENTION + SWEEP)
                if "the row is part of the transaction" not in self.rules:
                    begun = _write(begun, w, row=NONE)
                then = "commit" if "what is written is committed" in self.rules else "append early"
                yield "calls", _at(begun, p, then)
            case "append early":
                yield "appends", _at(self._append(s, w), p, "commit")
            case "commit":
                row = COMMITTED if "the row is part of the transaction" in self.rules else "unguarded"
                yield "commits", _at(_write(s, w, row=row), p, "append")
                if s.rollbacks:
                    back = _write(s, w, row=ROLLED_BACK)._replace(rollbacks=s.rollbacks - 1)
                    yield "rolls back", _at(back, p, "over")
            case _:
                yield from self._to_the_log(s, p, one)

    # -- a sweep

    def _sweeper(self, s: State, p: int, one: Process) -> Iterator[tuple[str, State]]:
        w = one.write
        match one.at:
            case "read":
                left = -w
                if not left:
                    yield "ends", _at(s, p, "over")
                    return
                yield "finds nothing", _at(s, p, "over")
                for number, write in enumerate(s.writes):
                    if write.row == COMMITTED and not self._is_late(s, number):
                        yield f"reads row {number}", _at(s, p, "append", write=number)
            case _:
                yield from self._to_the_log(s, p, one)

    # -- the row's way to the log, the same for both

    def _to_the_log(self, s: State, p: int, one: Process) -> Iterator[tuple[str, State]]:
        w = one.write
        match one.at:
            case "append":
                yield from self._append_under_the_lock(s, p, w)
            case "sync":
                yield "syncs", _at(self._sync(s), p, "delete")
            case "delete":
                yield "deletes the row", _at(self._delete(s, w), p, self._after_delete())
            case "sync late":
                yield "syncs", _at(self._sync(s), p, "over")

    def _append_under_the_lock(self, s: State, p: int, w: int) -> Iterator[tuple[str, State]]:
        if "that is decided under the lock" in self.rules and self._is_late(s, w):
            yield "is refused", _at(s, p, "over")
            return
        early = "a row is deleted once its job is durable" not in self.rules
        yield "appends", _at(self._append(s, w), p, "delete" if early else "sync")

    def _after_delete(self) -> str:
        return "over" if "a row is deleted once its job is durable" in self.rules else "sync late"

    # -- others

    def _other(self, s: State, p: int, one: Process) -> Iterator[tuple[str, State]]:
        job = s.job
        if job is not None and (not job.done or job.free_at > s.now):
            yield "finds the job", _at(s, p, "over")
        else:
            yield "enqueues", _at(s._replace(job=Job(-1, self._inherited(job), durable=True)), p, "over")

    # -- the log

    def _is_late(self, s: State, w: int) -> bool:
        return "a write that comes later is refused" in self.rules and s.writes[w].until <= s.now

    def _append(self, s: State, w: int) -> State:
        """``_known``, and a new job if it is not."""
        job, write = s.job, s.writes[w]
        if job is not None:
            if not job.done or job.free_at > s.now or (job.known_until > s.now and write.until <= job.known_until):
                return _write(s, w, has_job=True)
            if job.known_until > s.now and "the id is free for others after the retention" not in self.rules:
                # Taken for known: this write has nothing of a job that ran before it was made.
                return s
        until = write.until if "the job is kept until its write can come no more" in self.rules else 0
        made = _write(s, w, made=write.made + 1, has_job=True)
        return made._replace(job=Job(w, max(until, self._inherited(job))))

    def _inherited(self, job: Job | None) -> int:
        if job is None or "what takes the place of a job remembers its write" not in self.rules:
            return 0
        return job.known_until

    def _keep_until(self, job: Job) -> int:
        return max(job.free_at, job.known_until)

    def _sync(self, s: State) -> State:
        return s._replace(job=s.job._replace(durable=True)) if s.job is not None else s

    def _delete(self, s: State, w: int) -> State:
        return _write(s, w, row=GONE)

    # -- faults

    def _kill(self, s: State, p: int) -> State:
        """A transaction that was open is rolled back."""
        one = s.procs[p]
        if one.kind == "writer" and one.at in ("commit", "append early"):
            s = _write(s, one.write, row=ROLLED_BACK)
        elif one.kind == "writer" and s.writes[one.write].row == "unguarded":
            s = _write(s, one.write, row=GONE)  # nobody else knows of it
        return _at(s, p, "over")

    def _cut(self, s: State) -> State:
        for p, one in enumerate(s.procs):
            if one.at != "over" and one.kind != "other":
                s = self._kill(s, p) if one.kind == "writer" else _at(s, p, "read", write=-1)
        if s.job is not None and not s.job.durable:
            for w, write in enumerate(s.writes):
                made = write.made - (s.job.made_for == w)
                s = _write(s, w, made=made, has_job=False)
            s = s._replace(job=None)
        return s._replace(cuts=s.cuts - 1)


def _at(s: State, p: int, at: str, **changes: int) -> State:
    one = s.procs[p]._replace(at=at, **changes)  # type: ignore[arg-type]
    return s._replace(procs=(*s.procs[:p], one, *s.procs[p + 1 :]))


def _write(s: State, w: int, **changes: object) -> State:
    one = s.writes[w]._replace(**changes)  # type: ignore[arg-type]
    return s._replace(writes=(*s.writes[:w], one, *s.writes[w + 1 :]))
