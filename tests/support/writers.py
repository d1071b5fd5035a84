"""A writer among several that share one queue: the verbs of one process, drawn from a seed, told to the history."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nobroker_django import Job, JobNotFoundError, NobrokerError, NotLeasedError, Queue

from .history import Effect, History
from .ledger import State, key_of, payload_of
from .powercut import Killed, TraceFiles
from .scripts import open_queue


def _leased(key: str, state: State) -> State:
    return ("leased", state[1] + 1) if state and state[0] == "ready" else state


def _requeued(key: str, state: State) -> State:
    return ("ready", 0) if state and state[0] == "dead" else state


def _gone(key: str, state: State) -> State:
    return None


def _dropped(key: str, state: State) -> State:
    return None if state and state[0] == "done" else state


def _punished(key: str, state: State) -> State:
    return ("ready", state[1]) if state and state[0] == "leased" else state


def _given_up(key: str, state: State) -> State:
    return ("dead", state[1]) if state and state[0] == "leased" else state


def _given_back(key: str, state: State) -> State:
    return ("ready", state[1] - 1) if state and state[0] == "leased" else state


# What a dead worker held is taken back by anybody who leases: as a failed attempt, or as none.
TAKEN_BACK = (_punished, _given_up, _given_back)
LEASED = (*TAKEN_BACK, _leased)


class Writer:
    """One process's verbs, each told to the history; what the queue refuses is judged by what it says."""

    def __init__(self, name: str, history: History, rng: random.Random, *, faults: bool) -> None:
        self.name = name
        self.queue: Queue | None = None
        self.history = history
        self.rng = rng
        self.faults = faults
        self.mine: list[Job] = []
        self._count = 0
        self._note: Callable[..., None] = lambda *arguments: None

    def play(self, directory: Path, files: TraceFiles, steps: int) -> None:
        """Open, do that many verbs, close; or be killed in between."""
        self._note = files.note
        try:
            for _ in range(steps):
                if self.queue is None:
                    self.attempt(lambda: self.open(directory, files))
                else:
                    self.step()
            if self.queue is not None:
                self.attempt(self.queue.close)
        except Killed:
            pass
        finally:
            if self.queue is not None:
                self.queue._session.cache.drop()
            files.bury()

    def open(self, directory: Path, files: TraceFiles) -> None:
        self.queue = open_queue(directory, files, lock_timeout=120.0)

    def attempt(self, act: Callable[[], object]) -> bool:
        try:
            act()
            return True
        except NobrokerError:
            if not self.faults:
                raise
            return False

    def step(self) -> None:
        verbs = [self.enqueue] * 4 + [self.known, self.lease, self.lease, self.requeue, self.compact, self.reopen]
        if self.rng.random() < 0.1:
            verbs = [self.purge, self.discard, self.discard, self.discard]
        elif self.mine and self.rng.random() < 0.6:
            verbs = [self.ack, self.ack, self.ack_many, self.nack, self.bury, self.release, self.extend]
        self.rng.choice(verbs)()

    def verb(
        self,
        effects: Iterable[Effect],
        act: Callable[[], dict[str, Any]],
        *,
        keys: tuple[str, ...] = (),
    ) -> None:
        """``act`` calls the queue, which may do any of the ``effects``, and says how the history ends the verb."""
        effects = tuple(effects)
        number = self.history.begin(*effects, keys=keys)
        self._note("ledger", self.history.ledger())
        try:
            how = act()
        except (JobNotFoundError, NotLeasedError):
            self.history.undone(number)  # purged by another writer
        except NobrokerError as error:
            if not self.faults:
                raise
            if error.stored is False and _dropped not in effects:
                self.history.undone(number)
        else:
            self.history.end(number, **how)
        self._note("ledger", self.history.ledger())

    @property
    def live(self) -> Queue:
        assert self.queue is not None
        return self.queue

    def enqueue(self) -> None:
        """One job, or a few at once."""
        keys = tuple(f"{self.name}{self._count + number}" for number in range(self.rng.choice((1, 1, 2, 3))))
        self._count += len(keys)
        limit = self.rng.choice((1, 5))
        then: dict[str, State] = dict.fromkeys(keys, ("ready", 0))

        def act() -> dict[str, Any]:
            if len(keys) == 1:
                self.live.enqueue(payload_of(keys[0]), max_attempts=limit)
            else:
                self.live.enqueue_many([payload_of(key) for key in keys], max_attempts=limit)
            return {"changes": then, "created": keys}

        self.verb([lambda key, state: then.get(key, state) if state is None else state], act, keys=keys)

    def known(self) -> None:
        """An id that every writer uses."""
        key = self.rng.choice(("known1", "known2"))

        def act() -> dict[str, Any]:
            job = self.live.enqueue(payload_of(key), job_id=key)
            return {
                "changes": {key: (job.state.value, job.attempts)},
                "created": (key,) if job.created else (),
            }

        def effect(other: str, state: State) -> State:
            free = state is None or state[0] == "done"  # without retention a finished job's id may be used again
            return ("ready", 0) if other == key and free else state

        self.verb([effect], act, keys=(key,))

    def lease(self) -> None:
        count = self.rng.choice((1, 2))

        def act() -> dict[str, Any]:
            jobs = self.taken(lambda: self.live.lease(count))
            self.mine += jobs
            leased = {key_of(job): ("leased", job.attempts) for job in jobs}
            return {"changes": leased, "durable": False}

        self.verb(LEASED, act)

    def taken(self, lease: Callable[[], list[Job]]) -> list[Job]:
        """The jobs, whose tokens are above all that were given out before this began."""
        tokens = self.history.tokens
        latest = max(tokens, default="")  # of a lease that was over before this one began
        jobs = lease()
        for job in jobs:
            assert job.lease_token is not None
            assert job.lease_token > latest, "a token was given out again"
            assert job.lease_token not in tokens, "a token was given out twice"
            tokens.append(job.lease_token)
        return jobs

    def _one(self) -> Job:
        return self.mine.pop(self.rng.randrange(len(self.mine)))

    def _finish(
        self, jobs: list[Job], state: Callable[[Job], State], call: Callable[[], list[Job] | Job | None]
    ) -> None:
        then = {key_of(job): state(job) for job in jobs}

        def act() -> dict[str, Any]:
            answer = call()
            lost = {key_of(job) for job in answer} if isinstance(answer, list) else set[str]()
            return {"changes": {key: state for key, state in then.items() if key not in lost}}

        leased = {key_of(job): ("leased", job.attempts) for job in jobs}
        self.verb([lambda key, state: then[key] if key in then and state == leased[key] else state], act)

    def ack(self) -> None:
        job = self._one()
        self._finish([job], done, lambda: self.live.ack(job, result=1))

    def ack_many(self) -> None:
        jobs, self.mine = self.mine, []
        self._finish(jobs, done, lambda: self.live.ack_many(jobs))

    def nack(self) -> None:
        job = self._one()
        self._finish([job], failed, lambda: self.live.nack(job, error="no"))

    def bury(self) -> None:
        job = self._one()
        self._finish([job], lambda job: ("dead", job.attempts), lambda: self.live.bury(job, error="no"))

    def release(self) -> None:
        jobs, self.mine = self.mine, []
        self._finish(jobs, lambda job: ("ready", job.attempts - 1), lambda: self.live.release(jobs))

    def extend(self) -> None:
        def act() -> dict[str, Any]:
            self.live.extend(self.mine[0], 30.0)
            return {"durable": False}

        self.verb([], act)

    def requeue(self) -> None:
        def act() -> dict[str, Any]:
            self.live.requeue_dead()
            return {"sweep": _requeued}

        self.verb([_requeued], act)

    def discard(self) -> None:
        """One of the dead letters."""
        dead: list[Job] = []
        self.attempt(lambda: dead.extend(self.live.dlq(limit=1)))

        def act() -> dict[str, Any]:
            others = self.live.discard_dead([job.id for job in dead])
            return {"changes": {key_of(job): None for job in dead if job.id not in others}}

        gone = {key_of(job) for job in dead}
        self.verb([lambda key, state: None if key in gone and state and state[0] == "dead" else state], act)

    def purge(self) -> None:
        def act() -> dict[str, Any]:
            self.live.purge()
            return {"sweep": _gone}

        self.history.purges += 1
        self.verb([_gone], act)

    def compact(self) -> None:
        """Finished jobs may go from now on."""
        self.history.begin(_dropped)

        def act() -> dict[str, Any]:
            try:
                self.live.compact()
            except NobrokerError as error:
                if "another compaction" not in str(error):
                    raise
            return {}

        self.verb([], act)

    def reopen(self) -> None:
        """Close; the next step opens."""
        self.attempt(self.live.close)
        self.queue, self.mine = None, []


def done(job: Job) -> State:
    return "done", job.attempts


def failed(job: Job) -> State:
    return "dead" if job.attempts >= job.max_attempts else "ready", job.attempts
