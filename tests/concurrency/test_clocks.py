"""Wall clocks that jump, and that differ between processes."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nobroker_django import BackoffPolicy, JobState, Queue, Worker
from tests.support import storm
from tests.support.crashing import drawn
from tests.support.procs import Diary, wait_until
from tests.support.storm import ROLES, Storm, check

HOUR = 3600.0
JUMPS = (-2 * HOUR, -5.0, 0.0, 5.0, 24 * HOUR)


def jumping(seed: str) -> Callable[[], float]:
    """A clock that goes right for a while, and then jumps."""
    rng, left, offset = random.Random(seed), 0, 0.0

    def clock() -> float:
        nonlocal left, offset
        if not left:
            left, offset = rng.randrange(1, 200), rng.choice(JUMPS)
        left -= 1
        return time.time() + offset

    return clock


def confused(role: Callable[[Path, Diary, str], None]) -> Callable[[Path, Diary, str], None]:
    """The role, in a process whose clock jumps."""

    def in_a_child(directory: Path, diary: Diary, seed: str) -> None:
        opening, clock = storm.open_queue, jumping(seed)
        storm.open_queue = lambda *arguments, **options: opening(*arguments, clock=clock, **options)
        role(directory, diary, seed)

    return in_a_child


@pytest.mark.contract("LEASE-03", "LEASE-05")
def test_processes_whose_clocks_jump(queue_dir: Path, diary: Diary, errors: Diary):
    """C82: leases may end early; the outcome of each job is one, tokens rise, and nothing is lost or in the way."""
    rng = drawn("clocks")
    weather = Storm(queue_dir, diary, errors, rng)
    try:
        for role in ROLES:
            weather.start(confused(role))
        for _ in range(5):
            weather.more(rng.randrange(1, 3000))
            weather.kill_some()
        weather.more(1000)
        weather.end()
        print(check(queue_dir, diary))
    finally:
        weather.end()


class Clock:
    """It moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.contract("LEASE-05")
def test_a_worker_whose_clock_is_set(queue_dir: Path, monkeypatch: pytest.MonkeyPatch):
    """C82: forward, and what is due runs; back, and what is ready runs; it neither hangs nor spins."""
    clock, ran, looks = Clock(), [], 0
    go, started = threading.Event(), threading.Event()
    with Queue(queue_dir, clock=clock, retention=1e9, backoff=BackoffPolicy(base=0)) as queue:
        lease = queue._lease_as

        def counted(*arguments, **options):
            nonlocal looks
            looks += 1
            return lease(*arguments, **options)

        monkeypatch.setattr(queue, "_lease_as", counted)

        def handler(job):
            ran.append(job.payload)
            if job.payload == "long":
                started.set()
                assert go.wait(60)

        worker = Worker(queue, handler, poll_interval=0.05, handle_signals=False)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            queue.enqueue("tomorrow", delay=24 * HOUR)
            queue.enqueue("now")
            wait_until(lambda: "now" in ran, "the job that is due")
            clock.now += 24 * HOUR
            wait_until(lambda: "tomorrow" in ran, "the job that became due")
            clock.now -= 26 * HOUR
            queue.enqueue("earlier")
            wait_until(lambda: "earlier" in ran, "a job of before")
            queue.enqueue("long")
            assert started.wait(60)
            clock.now += 24 * HOUR  # its lease is over by the clock, and nobody else has taken it
            go.set()
            wait_until(lambda: queue.stats().done == 4, "all jobs to be done")
            before, begun = looks, time.monotonic()
            wait_until(lambda: looks >= before + 3, "the worker to look again")
            assert time.monotonic() - begun > 0.05  # three looks are at least two pauses
        finally:
            go.set()
            worker.stop()
            thread.join()
        assert sorted(ran) == ["earlier", "long", "now", "tomorrow"]
        assert {job.state for job in queue.list_jobs()} == {JobState.DONE}
