"""One process creates, converts or compacts a queue and is killed at its n-th system call, beside two producers.

In one process, where a seed says whose call is the next: so every n of one seed is tried on the same course of events.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from nobroker_django import Queue
from nobroker_django.engine.verification import verify_queue

from .crashing import written_into_doubt
from .history import History, positions_noted
from .interleaving import same_randomness
from .powercut import TraceFiles
from .scripts import clock, open_queue
from .turns import TurnFiles, Turns
from .version1 import fill_with_keys
from .writers import Writer

PROTOCOLS = ("creation", "conversion", "compaction")


class Victim(Writer):
    """Opens the queue, which creates or converts it; compacts; adds a job; closes."""

    def __init__(self, what: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._left = [self.compact] if what == "compaction" else []
        self._left.append(self.enqueue)

    @property
    def steps(self) -> int:
        """How many there are, the opening included."""
        return 1 + len(self._left)

    def step(self) -> None:
        self._left.pop(0)()


class Producer(Writer):
    """Adds jobs; now and then it finishes one."""

    def step(self) -> None:
        verbs = [self.enqueue] * 4 + [self.known, self.lease]
        self.rng.choice([self.ack, self.nack, self.enqueue] if self.mine and self.rng.random() < 0.6 else verbs)()


def killed_beside_producers(
    directory: Path, what: str, seed: int, kill_at: int, *, half: bool = False
) -> tuple[TraceFiles, bool]:
    """The victim's files, with the trace of all, and whether it got to that call. What all were told is checked.

    Raises:
        AssertionError: a promise is broken, without any power cut. NobrokerError: the queue needs a person.
    """
    rng = random.Random(f"{what} {seed}")
    turns = Turns(rng, rng.choice((0.3, 0.6, 0.8)))
    history, trace = History(), TraceFiles(directory)
    if what == "conversion":
        history.found(fill_with_keys(directory, clock))
        trace = TraceFiles.over(directory, {path.name: path.read_bytes() for path in directory.iterdir()})
        trace.note("ledger", history.ledger())
    with same_randomness((what, seed)), positions_noted(Counter()), turns.instead_of_sleeping():
        if what == "compaction":
            before = Writer("p", history, random.Random(rng.random()), faults=False)
            before.play(directory, TurnFiles(directory, trace, turns), 14)
        recorders = [
            TurnFiles(directory, trace, turns, kill_at=kill_at, kill_anywhere=True, half=half),
            TurnFiles(directory, trace, turns),
            TurnFiles(directory, trace, turns),
        ]
        victim = Victim(what, "v", history, random.Random(rng.random()), faults=False)
        producers = [Producer(name, history, random.Random(rng.random()), faults=False) for name in "ab"]
        begin_at = rng.choice((20, 40, 80))  # calls of the victim

        def produce(producer: Producer, files: TraceFiles) -> None:
            while recorders[0].changes < begin_at and not recorders[0].dead:
                turns.turn()
            producer.play(directory, files, 6)

        turns.run(
            lambda: victim.play(directory, recorders[0], victim.steps),
            lambda: produce(producers[0], recorders[1]),
            lambda: produce(producers[1], recorders[2]),
        )
    trace.note("ledger", history.ledger())
    breaches = [breach for files in recorders for breach in files.breaches] + written_into_doubt(trace)
    assert not breaches, breaches
    with open_queue(directory) as queue:
        problems = history.ledger().problems(queue.list_jobs())
        assert not problems, problems
        check_live_generation(queue)
    return recorders[0], any(event.kind == "killed" for event in trace.trace)


def check_live_generation(queue: Queue) -> None:
    """One complete live generation, and after a compaction nothing beside it.

    Raises:
        AssertionError: not so.
    """
    before = [(job.id, job.state, job.attempts) for job in queue.list_jobs() if job.state != "done"]
    assert verify_queue(queue.dir, queue.name).findings == []
    queue.compact()
    assert [(job.id, job.state, job.attempts) for job in queue.list_jobs() if job.state != "done"] == before
    assert verify_queue(queue.dir, queue.name).findings == []
    assert list(queue.dir.glob("default.*.log")) == [queue.path]
    assert not list(queue.dir.glob("*.tmp"))
