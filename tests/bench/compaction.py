"""How long producers and workers wait while a large queue is compacted beside them.

    python tests/bench/compaction.py            # 300,000 waiting jobs, 100,000 finished ones

One process enqueues without a pause, another leases and acknowledges, a third appends to a file of its own and syncs
it: what the disk alone makes everybody wait for. Printed are, before, while and after a fourth one compacts, the
longest and the usual wait for the log's lock, and the whole calls. Use a local disk (``--dir``), not tmpfs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from nobroker_django import Queue

PAYLOAD = {"task": "email.send", "to": "ada@example.com", "template": "welcome", "user_id": 123456, "n": 1234567}
Times = list[tuple[float, float]]  # when it began, and how long it took


def fill(path: str, waiting: int, finished: int) -> None:
    """A queue with so many jobs, all of it on the disk."""
    with Queue(path, lock_timeout=60, fsync=False) as queue:
        for _ in range(0, finished, 1000):
            queue.enqueue_many([PAYLOAD] * 1000)
            queue.ack_many(queue.lease(1000))
        for _ in range(0, waiting, 1000):
            queue.enqueue_many([PAYLOAD] * 1000)
    os.sync()


def timed(act: Callable[..., Any], times: Times) -> Callable[..., Any]:
    """The same call, with its times noted."""

    def call(*arguments: Any, **options: Any) -> Any:
        begun = time.monotonic()
        result = act(*arguments, **options)
        times.append((begun, time.monotonic() - begun))
        return result

    return call


def producer(path: str, locks: Times) -> Callable[[], Any]:
    """Enqueues one job."""
    queue = opened(path, locks)
    return lambda: queue.enqueue(PAYLOAD)


def worker(path: str, locks: Times) -> Callable[[], Any]:
    """Leases one job and acknowledges it."""
    queue = opened(path, locks)
    return lambda: queue.ack_many(queue.lease())


def disk(path: str, locks: Times) -> Callable[[], Any]:
    """Appends 200 bytes to a file of its own, and syncs."""
    fd = os.open(path + "/bare", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def append() -> None:
        os.write(fd, bytes(200))
        os.fdatasync(fd)

    return append


def opened(path: str, locks: Times) -> Queue:
    """The queue, with the times noted that it waits for the log's lock."""
    queue = Queue(path, lock_timeout=60)
    session: Any = queue._session
    session.locked = timed(session.locked, locks)
    return queue


def run(role: Callable[..., Callable[[], Any]], path: str, pipe: Any) -> None:
    """Do it until told to stop; the times go into the pipe."""
    locks: Times = []
    calls: Times = []
    act = timed(role(path, locks), calls)
    act()
    pipe.send(True)
    while not pipe.poll():
        act()
    pipe.send((locks, calls))
    os._exit(0)


def main() -> None:
    """Fill, start, compact, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=300_000)
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="before and after the compaction")
    parser.add_argument("--dir", default="/var/tmp")
    options = parser.parse_args()
    path = tempfile.mkdtemp(prefix="compaction-", dir=options.dir) + "/queue"
    try:
        fill(path, options.jobs, options.finished)
        context = multiprocessing.get_context("fork")
        children = []
        for role in (producer, worker, disk):
            mine, theirs = context.Pipe()
            child = context.Process(target=run, args=(role, path, theirs))
            child.start()
            mine.recv()
            children.append((role.__name__, child, mine))
        queue = Queue(path, lock_timeout=60)
        time.sleep(options.seconds)
        begun = time.monotonic()
        result = queue.compact()
        ended = time.monotonic()
        time.sleep(options.seconds)
        for _, _, pipe in children:
            pipe.send(True)
        print(f"{result.describe()}: {ended - begun:.1f} s\n")
        print(f"{'ms':<36} {'longest':>10} {'99%':>10} {'median':>10}")
        for name, child, pipe in children:
            locks, calls = pipe.recv()
            child.join()
            for what, times in ((f"{name} waits for the lock", locks), (f"{name}, the whole call", calls)):
                for when, chosen in (
                    ("before", [took for at, took in times if at + took < begun]),
                    ("meanwhile", [took for at, took in times if at + took >= begun and at <= ended]),
                    ("after", [took for at, took in times if at > ended]),
                ):
                    if chosen:
                        chosen.sort()
                        figures = (chosen[-1], chosen[len(chosen) * 99 // 100], statistics.median(chosen))
                        print(f"{what + ', ' + when:<36} " + " ".join(f"{1000 * value:10.2f}" for value in figures))
        queue.close()
    finally:
        shutil.rmtree(os.path.dirname(path))


if __name__ == "__main__":
    main()
