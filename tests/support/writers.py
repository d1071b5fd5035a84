"""Programs of several writers that share one queue, drawn from a seed, and their trace for the power-cut simulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from nobroker_django import Job, JobNotFoundError, NobrokerError, NotLeasedError, Queue

from .crashing import written_into_doubt
from .history import Effect, History, positions_noted
from .ledger import State, key_of, payload_of
from .powercut import Killed, TraceFiles
from .scripts import NOW, clock, open_queue
from .turns import TurnFiles, Turns
from .version1 import fill_with_keys


@contextmanager
def same_randomness(seed: Any) -> Iterator[None]:
    """Ids and names are the same in every run with this seed."""
    rng, times = random.Random(repr(seed)), count(int(NOW * 1e9), 1000)
    with (
        mock.patch("os.urandom", rng.randbytes),
        mock.patch("time.time_ns", side_effect=partial(next, times)),
    ):
        yield


def _leased(key: str, state: State) -> State:
    return ("leased", state[1] + 1) if state and state[0] == "ready" else state


def _requeued(key: str, state: State) -> State:
    return ("ready", 0) if state and state[0] == "dead" else state


def _gone(key: str, state: State) -> State:
    return None


def _dropped(key: str, state: State) -> State:
    return None if state and state[0] == "done" else state


class Writer:
    """One process's verbs, each told to the history; what the queue refuses is judged by what it says."""

    def __init__(self, name: str, history: History, rng: random.Random, *, faults: bool) -> None:
        self.name = name
        self.queue: Queue | None = None
        self._history = history
        self._rng = rng
        self._faults = faults
        self._held: list[Job] = []
        self._count = 0
        self._note: Callable[..., None] = lambda *arguments: None

    def play(self, directory: Path, files: TraceFiles, steps: int) -> None:
        """Open, do that many verbs, close; or be killed in between."""
        self._note = files.note
        try:
            for _ in range(steps):
                if self.queue is None:
                    self._try(lambda: self._open(directory, files))
                else:
                    self._step()
            if self.queue is not None:
                self._try(self.queue.close)
        except Killed:
            pass
        finally:
            if self.queue is not None:
                self.queue._session.cache.drop()
            files.bury()

    def _open(self, directory: Path, files: TraceFiles) -> None:
        self.queue = open_queue(directory, files, lock_timeout=120.0)

    def _try(self, act: Callable[[], object]) -> bool:
        try:
            act()
            return True
        except NobrokerError:
            if not self._faults:
                raise
            return False

    def _step(self) -> None:
        verbs = [self.enqueue] * 4 + [self.known, self.lease, self.lease, self.requeue, self.compact, self.reopen]
        if self._rng.random() < 0.1:
            verbs = [self.purge, self.discard, self.discard, self.discard]
        elif self._held and self._rng.random() < 0.6:
            verbs = [self.ack, self.ack, self.ack_many, self.nack, self.bury, self.release, self.extend]
        self._rng.choice(verbs)()

    def _verb(
        self,
        effect: Effect,
        act: Callable[[], dict[str, Any]],
        *,
        keys: tuple[str, ...] = (),
    ) -> None:
        """``act`` calls the queue, and says how the history ends the verb."""
        number = self._history.begin(effect, keys=keys)
        self._note("ledger", self._history.ledger())
        try:
            how = act()
        except (JobNotFoundError, NotLeasedError):
            self._history.undone(number)  # purged by another writer
        except NobrokerError as error:
            if not self._faults:
                raise
            if error.stored is False and effect is not _dropped:
                self._history.undone(number)
        else:
            self._history.end(number, **how)
        self._note("ledger", self._history.ledger())

    @property
    def _queue(self) -> Queue:
        assert self.queue is not None
        return self.queue

    def enqueue(self) -> None:
        """One job, or a few at once."""
        keys = tuple(f"{self.name}{self._count + number}" for number in range(self._rng.choice((1, 1, 2, 3))))
        self._count += len(keys)
        limit = self._rng.choice((1, 5))
        then: dict[str, State] = dict.fromkeys(keys, ("ready", 0))

        def act() -> dict[str, Any]:
            if len(keys) == 1:
                self._queue.enqueue(payload_of(keys[0]), max_attempts=limit)
            else:
                self._queue.enqueue_many([payload_of(key) for key in keys], max_attempts=limit)
            return {"changes": then, "created": keys}

        self._verb(lambda key, state: then.get(key, state) if state is None else state, act, keys=keys)

    def known(self) -> None:
        """An id that every writer uses."""
        key = self._rng.choice(("known1", "known2"))

        def act() -> dict[str, Any]:
            job = self._queue.enqueue(payload_of(key), job_id=key)
            return {
                "changes": {key: (job.state.value, job.attempts)},
                "created": (key,) if job.created else (),
            }

        def effect(other: str, state: State) -> State:
            free = state is None or state[0] == "done"  # without retention a finished job's id may be used again
            return ("ready", 0) if other == key and free else state

        self._verb(effect, act, keys=(key,))

    def lease(self) -> None:
        count = self._rng.choice((1, 2))

        def act() -> dict[str, Any]:
            tokens = self._history.tokens
            latest = max(tokens, default="")  # of a lease that was over before this one began
            jobs = self._queue.lease(count)
            self._held += jobs
            for job in jobs:
                assert job.lease_token is not None
                assert job.lease_token > latest, "a token was given out again"
                assert job.lease_token not in tokens, "a token was given out twice"
                tokens.append(job.lease_token)
            return {"changes": {key_of(job): ("leased", job.attempts) for job in jobs}, "durable": False}

        self._verb(_leased, act)

    def _one(self) -> Job:
        return self._held.pop(self._rng.randrange(len(self._held)))

    def _finish(
        self, jobs: list[Job], state: Callable[[Job], State], call: Callable[[], list[Job] | Job | None]
    ) -> None:
        then = {key_of(job): state(job) for job in jobs}

        def act() -> dict[str, Any]:
            answer = call()
            lost = {key_of(job) for job in answer} if isinstance(answer, list) else set[str]()
            return {"changes": {key: state for key, state in then.items() if key not in lost}}

        leased = {key_of(job): ("leased", job.attempts) for job in jobs}
        self._verb(lambda key, state: then[key] if key in then and state == leased[key] else state, act)

    def ack(self) -> None:
        job = self._one()
        self._finish([job], _done, lambda: self._queue.ack(job, result=1))

    def ack_many(self) -> None:
        jobs, self._held = self._held, []
        self._finish(jobs, _done, lambda: self._queue.ack_many(jobs))

    def nack(self) -> None:
        job = self._one()
        self._finish([job], _failed, lambda: self._queue.nack(job, error="no"))

    def bury(self) -> None:
        job = self._one()
        self._finish([job], lambda job: ("dead", job.attempts), lambda: self._queue.bury(job, error="no"))

    def release(self) -> None:
        jobs, self._held = self._held, []
        self._finish(jobs, lambda job: ("ready", job.attempts - 1), lambda: self._queue.release(jobs))

    def extend(self) -> None:
        def act() -> dict[str, Any]:
            self._queue.extend(self._held[0], 30.0)
            return {"durable": False}

        self._verb(lambda key, state: state, act)

    def requeue(self) -> None:
        def act() -> dict[str, Any]:
            self._queue.requeue_dead()
            return {"sweep": _requeued}

        self._verb(_requeued, act)

    def discard(self) -> None:
        """One of the dead letters."""
        dead: list[Job] = []
        self._try(lambda: dead.extend(self._queue.dlq(limit=1)))

        def act() -> dict[str, Any]:
            others = self._queue.discard_dead([job.id for job in dead])
            return {"changes": {key_of(job): None for job in dead if job.id not in others}}

        gone = {key_of(job) for job in dead}
        self._verb(lambda key, state: None if key in gone and state and state[0] == "dead" else state, act)

    def purge(self) -> None:
        def act() -> dict[str, Any]:
            self._queue.purge()
            return {"sweep": _gone}

        self._verb(_gone, act)

    def compact(self) -> None:
        """Finished jobs may go from now on."""
        self._history.begin(_dropped)

        def act() -> dict[str, Any]:
            try:
                self._queue.compact()
            except NobrokerError as error:
                if "another compaction" not in str(error):
                    raise
            return {}

        self._verb(lambda key, state: state, act)

    def reopen(self) -> None:
        """Close; the next step opens."""
        self._try(self._queue.close)
        self.queue, self._held = None, []


def _done(job: Job) -> State:
    return "done", job.attempts


def _failed(job: Job) -> State:
    return "dead" if job.attempts >= job.max_attempts else "ready", job.attempts


def interleaved(directory: Path, seed: int, *, old: bool = False) -> TraceFiles:
    """The trace of two or three writers; with some seeds syncs and writes fail, or one or two of them are killed.

    Args:
        old: they find a queue of version 1.

    Raises:
        AssertionError: something was wrong already without a power cut.
    """
    rng = random.Random(seed)
    turns = Turns(rng, rng.choice((0.2, 0.5, 0.8, 0.95)))
    history, trace = History(), TraceFiles(directory)
    if old:
        history.found(fill_with_keys(directory, clock))
        trace = TraceFiles.over(directory, {path.name: path.read_bytes() for path in directory.iterdir()})
        trace.note("ledger", history.ledger())
    faults, killed = rng.random() < 0.3, rng.choice((0, 0, 1, 2))
    bodies, recorders = [], []
    for number in range(rng.choice((2, 2, 3))):
        options: dict[str, Any] = {"kill_at": rng.randrange(100) if number < killed else None}
        if faults:
            options["fail_syncs"] = frozenset(rng.sample(range(12), 2))
            options["fail_writes"] = frozenset(rng.sample(range(20), 2))
        files = TurnFiles(directory, trace, turns, **options)
        recorders.append(files)
        writer = Writer("abc"[number], history, random.Random(rng.random()), faults=faults)
        bodies.append(partial(writer.play, directory, files, rng.randint(6, 14)))
    with positions_noted(), turns.instead_of_sleeping():
        turns.run(*bodies)
    trace.note("ledger", history.ledger())
    breaches = [breach for files in recorders for breach in files.breaches] + written_into_doubt(trace)
    assert not breaches, f"seed {seed}: {breaches}"
    with open_queue(directory) as queue:
        problems = history.ledger().problems(queue.list_jobs())
        assert not problems, f"seed {seed}, without a power cut: {problems}"
    return trace
