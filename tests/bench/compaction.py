"""How long a producer waits while a large queue is compacted, and how long the compaction takes.

    python tests/bench/compaction.py            # 300,000 waiting jobs, 100,000 finished ones

One process enqueues without a pause, another leases and acknowledges, a third compacts. Printed are the longest and
the usual call of the first two, before and while the compaction runs. Use a local disk (``--dir``), not tmpfs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from typing import Any

from nobroker_django import Queue

PAYLOAD = {"task": "email.send", "to": "ada@example.com", "template": "welcome", "user_id": 123456, "n": 1234567}


def fill(path: str, waiting: int, finished: int) -> None:
    """A queue with so many jobs."""
    with Queue(path, lock_timeout=60, fsync=False) as queue:
        for _ in range(0, finished, 1000):
            queue.enqueue_many([PAYLOAD] * 1000)
            queue.ack_many(queue.lease(1000))
        for _ in range(0, waiting, 1000):
            queue.enqueue_many([PAYLOAD] * 1000)


def produce(path: str, pipe: Any) -> None:
    """Enqueue until told to stop; start and length of each call go into the pipe."""
    queue = Queue(path, lock_timeout=60)
    call(queue.enqueue, PAYLOAD, pipe)


def work(path: str, pipe: Any) -> None:
    """Lease one job and acknowledge it, until told to stop."""
    queue = Queue(path, lock_timeout=60)

    def one(_: Any) -> None:
        for job in queue.lease():
            queue.ack(job)

    call(one, None, pipe)


def call(act: Any, argument: Any, pipe: Any) -> None:
    act(argument)
    pipe.send(True)
    calls: list[tuple[float, float]] = []
    while not pipe.poll():
        begun = time.monotonic()
        act(argument)
        calls.append((begun, time.monotonic() - begun))
    pipe.send(calls)
    os._exit(0)


def shown(calls: list[float]) -> str:
    """The longest and the usual one, in milliseconds."""
    if not calls:
        return "no call ended"
    calls.sort()
    at = [calls[-1], calls[int(len(calls) * 0.99)], statistics.median(calls)]
    return "longest {:7.1f} ms, 99% below {:6.2f} ms, median {:5.2f} ms".format(*(1000 * value for value in at))


def main() -> None:
    """Fill, start, compact, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=300_000)
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--without-worker", action="store_true")
    options = parser.parse_args()
    path = tempfile.mkdtemp(prefix="compaction-", dir=options.dir) + "/queue"
    try:
        fill(path, options.jobs, options.finished)
        context = multiprocessing.get_context("fork")
        children = []
        for role in (produce,) if options.without_worker else (produce, work):
            mine, theirs = context.Pipe()
            child = context.Process(target=role, args=(path, theirs))
            child.start()
            mine.recv()
            children.append((role.__name__, child, mine))
        queue = Queue(path, lock_timeout=60)
        time.sleep(1.0)
        begun = time.monotonic()
        result = queue.compact()
        ended = time.monotonic()
        time.sleep(1.0)
        for _, _, pipe in children:
            pipe.send(True)
        print(f"{result.describe()}: {ended - begun:.1f} s")
        for name, child, pipe in children:
            calls = pipe.recv()
            child.join()
            print(f"{name + ', before':<16}", shown([took for at, took in calls if at + took < begun]))
            during = [took for at, took in calls if at + took >= begun and at <= ended]
            print(f"{name + ', during':<16}", shown(during))
            print(f"{name + ', after':<16}", shown([took for at, took in calls if at > ended]))
        queue.close()
    finally:
        shutil.rmtree(os.path.dirname(path))


if __name__ == "__main__":
    main()
