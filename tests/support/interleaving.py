"""Programs of several writers that share one queue, drawn from a seed, and their trace for the power-cut simulator."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from .crashing import written_into_doubt
from .history import History, positions_noted
from .powercut import TraceFiles
from .scripts import NOW, clock, open_queue
from .turns import TurnFiles, Turns
from .version1 import fill_with_keys
from .working import Worker
from .writers import Writer


@contextmanager
def same_randomness(seed: Any) -> Iterator[None]:
    """Ids and names are the same in every run with this seed."""
    rng, times = random.Random(repr(seed)), count(int(NOW * 1e9), 1000)
    with (
        mock.patch("os.urandom", rng.randbytes),
        mock.patch("time.time_ns", side_effect=partial(next, times)),
    ):
        yield


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
        kind = rng.choice((Writer, Worker))
        writer = kind("abc"[number], history, random.Random(rng.random()), faults=faults)
        bodies.append(partial(writer.play, directory, files, rng.randint(6, 18)))
    written = Counter[str]()
    with positions_noted(written), turns.instead_of_sleeping():
        turns.run(*bodies)
    trace.note("ledger", history.ledger())
    trace.note("written", written)
    breaches = [breach for files in recorders for breach in files.breaches] + written_into_doubt(trace)
    assert not breaches, f"seed {seed}: {breaches}"
    with open_queue(directory) as queue:
        problems = history.ledger().problems(queue.list_jobs())
        assert not problems, f"seed {seed}, without a power cut: {problems}"
    return trace
