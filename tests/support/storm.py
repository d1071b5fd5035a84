"""Producers, workers, compactors and openers on one queue, killed at random; what they were promised, checked.

Each writes to the diary after a verb has returned: ``E key...`` enqueued, ``L key token attempts pid`` leased,
``A key token`` acked, ``N key token`` nacked. Whoever is killed in between has written less than was done, never more.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nobroker_django import BackoffPolicy, CompactionError, JobState, NotLeasedError, Queue, StorageError

from .procs import Child, Diary, wait_until

VISIBILITY = 0.5  # seconds: what a killed worker held comes back within the test


def open_queue(directory: Path, **options: Any) -> Queue:
    """As everybody in the storm opens it: finished jobs stay known, so that they can be counted."""
    options = {"retention": 1e6, "max_attempts": 1000, "lock_timeout": 30.0, **options}
    return Queue(directory, visibility_timeout=VISIBILITY, backoff=BackoffPolicy(base=0.0), **options)


def producer(directory: Path, diary: Diary, seed: str) -> None:
    """Enqueue, one or several at once, with and without ids, for ever."""
    rng = random.Random(seed)
    me = f"{os.getpid()}-{rng.getrandbits(40):x}"
    with open_queue(directory) as queue:
        for number in itertools.count():
            keys = [f"{me}-{number}-{place}" for place in range(rng.choice((1, 1, 1, 4)))]
            if len(keys) > 1:
                queue.enqueue_many([{"k": key} for key in keys])
            elif rng.random() < 0.3:
                queue.enqueue({"k": keys[0]}, job_id=keys[0])
            else:
                queue.enqueue({"k": keys[0]}, priority=rng.randrange(3))
            diary.write("E", *keys)


def worker(directory: Path, diary: Diary, seed: str) -> None:
    """Lease and finish, fail, release or forget, for ever."""
    rng = random.Random(seed)
    with open_queue(directory) as queue:
        while True:
            for job in queue.lease(rng.choice((1, 1, 3)), timeout=0.2):
                key = job.payload["k"]
                diary.write("L", key, job.lease_token, job.attempts, os.getpid())
                try:
                    what = rng.random()
                    if what < 0.7:
                        queue.ack(job)
                        diary.write("A", key, job.lease_token)
                    elif what < 0.8:
                        queue.nack(job, error="storm")
                        diary.write("N", key, job.lease_token)
                    elif what < 0.9:
                        queue.release([job])
                except NotLeasedError:
                    diary.write("X", key, job.lease_token)


def compactor(directory: Path, diary: Diary, seed: str) -> None:
    """Compact again and again."""
    with open_queue(directory) as queue:
        while True:
            try:
                queue.compact()
                diary.write("C")
            except CompactionError as error:
                if "another compaction" not in str(error):
                    raise


def visitor(directory: Path, diary: Diary, seed: str) -> None:
    """Open, look, close, for ever: first opener and last closer in turn."""
    while True:
        with open_queue(directory) as queue:
            queue.stats()
        diary.write("V")


def patient(role: Callable[..., None]) -> Callable[..., None]:
    """The role, starting over whenever the queue says that it could not; what it had claimed must hold."""

    def starting_over(directory: Path, diary: Diary, seed: str) -> None:
        for number in itertools.count():
            try:
                role(directory, diary, f"{seed}-{number}")
            except (StorageError, CompactionError):
                continue

    return starting_over


ROLES: list[Callable[..., None]] = [producer, producer, worker, worker, compactor, visitor]


class Storm:
    """The children of one storm."""

    def __init__(self, directory: Path, diary: Diary, errors: Diary, rng: random.Random) -> None:
        self.directory, self.diary, self.errors, self.rng = directory, diary, errors, rng
        self.children: list[Child] = []
        self.births = 0

    def start(self, role: Callable[..., None]) -> Child:
        self.births += 1
        seed = f"{self.rng.random()}"
        child = Child(role, self.directory, self.diary, seed, errors=self.errors)
        child.role = role  # type: ignore[attr-defined]
        self.children.append(child)
        return child

    def more(self, amount: int) -> None:
        """Wait until the diary has grown by so many bytes."""
        size = self.diary.size()
        wait_until(lambda: self.diary.size() >= size + amount or self._failed(), "events")
        assert not self._failed(), "a child failed, see errors"

    def _failed(self) -> bool:
        return self.errors.size() > 0

    def kill_some(self) -> None:
        """Kill one or several at once, and start others in their place."""
        victims = self.rng.sample(self.children, self.rng.choice((1, 1, 2, len(self.children))))
        for victim in victims:
            victim.kill()
            self.children.remove(victim)
        for victim in victims:
            self.start(victim.role)  # type: ignore[attr-defined]

    def end(self) -> None:
        """Kill everybody."""
        for child in self.children:
            child.kill()
        self.children.clear()


def check(directory: Path, diary: Diary) -> dict[str, int]:
    """Hold the queue against the diary; counts of what was seen.

    Raises:
        AssertionError: a promise was broken.
    """
    enqueued: set[str] = set()
    in_turn: dict[str, list[str]] = {}  # by process, of which the number begins the key
    acked: dict[str, list[str]] = {}
    leases: dict[str, list[tuple[int, str]]] = {}
    by_process: dict[str, list[str]] = {}
    for what, *words in diary.lines():
        if what == "E":
            enqueued.update(words)
            in_turn.setdefault(words[0].split("-")[0], []).extend(words)
        elif what == "A":
            acked.setdefault(words[0], []).append(words[1])
        elif what == "L":
            leases.setdefault(words[0], []).append((int(words[2]), words[1]))
            by_process.setdefault(words[3], []).append(words[1])
    with open_queue(directory) as queue:
        jobs = queue.list_jobs()
    shown = {job.payload["k"]: job for job in jobs}
    assert len(shown) == len(jobs), "a job is there twice"
    assert not enqueued - shown.keys(), f"lost: {sorted(enqueued - shown.keys())[:5]}"
    places = {key: place for place, key in enumerate(shown)}
    for process, keys in in_turn.items():
        one_after_the_other = [places[key] for key in keys]
        assert not process.isdigit() or one_after_the_other == sorted(one_after_the_other), f"order of {process}"
    twice = {key: tokens for key, tokens in acked.items() if len(set(tokens)) > 1}
    assert not twice, f"done by two deliveries: {twice}"
    revived = [key for key in acked if shown[key].state is not JobState.DONE]
    assert not revived, f"acked, but not done: {revived[:5]}"
    everything = [token for tokens in leases.values() for _, token in tokens]
    assert len(everything) == len(set(everything)), "a token was handed out twice"
    for key, taken in leases.items():
        last = max(token for _, token in taken)
        if key in acked:
            assert acked[key][0] == last, f"{key}: acked by {acked[key]}, although {last} was handed out"
    for tokens in by_process.values():
        assert tokens == sorted(tokens), "tokens of one process fell"
    return {"enqueued": len(enqueued), "leased": len(everything), "acked": len(acked), "jobs": len(jobs)}
