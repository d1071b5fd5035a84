"""Speed as ratios of one run: this queue, the published ``nobroker`` and a bare append + fdatasync loop, interleaved.

    pip install nobroker
    python tests/bench/ratios.py            # about two minutes; --rounds 5 for calmer figures

Each cell is a fresh process on a fresh directory below ``--dir`` (a local disk, not tmpfs); the figure is the median
of the rounds. Quote ratios, never a figure against another day's. Exit code 1 when a ratio misses its target.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PAYLOAD = {
    "task": "email.send",
    "to": "ada@example.com",
    "template": "welcome",
    "user_id": 123456,
    "ref": "a1b2c3d4e5f6",
    "n": 1234567,
}
RECORD = b"x" * 199 + b"\n"


class Bare:
    """200 bytes appended and synced: the floor, not a queue."""

    def __init__(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        self.fd = os.open(path + "/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def enqueue(self, payload: Any) -> None:
        os.write(self.fd, RECORD)
        os.fdatasync(self.fd)

    def enqueue_many(self, payloads: list[Any]) -> None:
        os.write(self.fd, RECORD * len(payloads))
        os.fdatasync(self.fd)


def open_system(name: str, path: str) -> Any:
    """An open queue of one of the systems."""
    if name == "bare":
        return Bare(path)
    if name == "nobroker":
        import nobroker  # type: ignore[import-not-found,unused-ignore]

        return nobroker.Queue(path, lock_timeout=60)
    from nobroker_django import Queue

    return Queue(path, lock_timeout=60)


def loop(queue: Any, seconds: float, many: bool) -> tuple[int, float, float]:
    """Jobs stored in about ``seconds``, the time it really took, and the longest call."""
    batch = [PAYLOAD] * 1000
    count, worst = 0, 0.0
    begun = now = time.perf_counter()
    while now - begun < seconds:
        if many:
            queue.enqueue_many(batch)
            count += 1000
        else:
            queue.enqueue(PAYLOAD)
            count += 1
        after = time.perf_counter()
        worst, now = max(worst, after - now), after
    return count, now - begun, worst


def measure_one(name: str, path: str, many: bool) -> float:
    """Jobs per second of one process."""
    queue = open_system(name, path)
    loop(queue, 0.1, many)
    count, took, _ = loop(queue, 1.0, many)
    return count / took


def measure_processes(name: str, path: str, processes: int) -> float:
    """Jobs per second of several processes together."""
    open_system(name, path)  # created before the race
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(processes), context.SimpleQueue()

    def run() -> None:
        queue = open_system(name, path)
        queue.enqueue(PAYLOAD)
        ready.wait()
        results.put(loop(queue, 1.5, False)[:2])
        os._exit(0)

    children = [context.Process(target=run) for _ in range(processes)]
    for child in children:
        child.start()
    found = [results.get() for _ in children]
    for child in children:
        child.join()
    return float(sum(count for count, _ in found) / max(took for _, took in found))


def measure_open(path: str) -> dict[str, float]:
    """Milliseconds to open a queue of 500,000 records; longest wait of a producer while they are folded."""
    from nobroker_django import Queue

    queue = Queue(path, lock_timeout=60)
    for _ in range(500):
        queue.enqueue_many([PAYLOAD] * 1000)
    queue.close()
    begun = time.perf_counter()
    queue = Queue(path, lock_timeout=60)
    opened = time.perf_counter()
    queue.enqueue(PAYLOAD)
    queue.close()
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.SimpleQueue()
    child = context.Process(target=produce, args=(path, stop, results))
    child.start()
    results.get()
    queue = Queue(path, lock_timeout=60)
    folding = time.perf_counter()
    total = queue.stats().total
    folded = time.perf_counter() - folding
    stop.set()
    worst = results.get()
    child.join()
    return {"open_ms": 1000 * (opened - begun), "worst_ms": 1000 * worst, "folded_per_s": total / folded}


def measure_rebuild(path: str) -> dict[str, float]:
    """Records per second when the projection of 360,000 records is made anew: enqueued, leased, acked, interleaved.

    A job's lease comes some 15,000 records after its enqueue, so that its row has to be found again.
    """
    from nobroker_django import Queue

    jobs, batch, ahead = 120_000, 1000, 10
    with Queue(path, fsync=False, retention=86_400.0) as queue:
        for number in range(jobs // batch + ahead):
            if number < jobs // batch:
                queue.enqueue_many([PAYLOAD] * batch)
            for _ in range(batch // 20 if number >= ahead else 0):
                queue.ack_many(queue.lease(20))
    shutil.rmtree(path + "/default.run")
    with Queue(path) as queue:
        begun, busy = time.perf_counter(), time.process_time()
        assert queue.stats().done == jobs
        took, busy = time.perf_counter() - begun, time.process_time() - busy
    return {"per_s": 3 * jobs / took, "per_busy_s": 3 * jobs / busy}


def produce(path: str, stop: Any, results: Any) -> None:
    """Enqueue until told to stop; the longest call."""
    queue = open_system("ours", path)
    queue.enqueue(PAYLOAD)
    results.put(True)
    worst = 0.0
    while not stop.is_set():
        begun = time.perf_counter()
        queue.enqueue(PAYLOAD)
        worst = max(worst, time.perf_counter() - begun)
    results.put(worst)


CELLS = {
    "one": lambda name, path: measure_one(name, path, many=False),
    "many": lambda name, path: measure_one(name, path, many=True),
    "sixteen": lambda name, path: measure_processes(name, path, 16),
    "open": lambda name, path: measure_open(path),
    "rebuild": lambda name, path: measure_rebuild(path),
}


def cell(kind: str, name: str, directory: str) -> Any:
    """One measurement in a fresh process on a fresh directory."""
    path = tempfile.mkdtemp(prefix="ratios-", dir=directory)
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--cell", kind, name, path + "/queue"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        return json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(path)


def medians(kind: str, names: list[str], rounds: int, directory: str) -> dict[str, float]:
    """Median of each system, the order turned round after each round."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            found[name].append(cell(kind, name, directory))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> int:
    """Print the table; whether all targets were met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        kind, name, path = options.cell
        print(json.dumps(CELLS[kind](name, path)))
        sys.stdout.flush()
        os._exit(0)
    one = medians("one", ["bare", "nobroker", "ours"], options.rounds, options.dir)
    many = medians("many", ["nobroker", "ours"], options.rounds, options.dir)
    sixteen = medians("sixteen", ["bare", "nobroker", "ours"], options.rounds, options.dir)
    opened = [cell("open", "ours", options.dir) for _ in range(options.rounds)]
    rebuilt = [cell("rebuild", "ours", options.dir) for _ in range(options.rounds)]
    rows = [
        ("one process, durable enqueue, against a bare loop", one["ours"] / one["bare"], ">=", 0.65),
        ("one process, durable enqueue, against nobroker 0.1", one["ours"] / one["nobroker"], ">=", 1.5),
        ("16 processes, durable enqueue, against nobroker 0.1", sixteen["ours"] / sixteen["nobroker"], ">=", 5.0),
        ("enqueue_many of 1,000, durable, against nobroker 0.1", many["ours"] / many["nobroker"], ">=", 6.0),
        ("rebuilding the projection, records/s", statistics.median(row["per_s"] for row in rebuilt), ">=", 80_000.0),
        ("opening 500,000 records, ms", statistics.median(row["open_ms"] for row in opened), "<=", 20.0),
        ("longest wait of a producer while they are folded, ms", max(row["worst_ms"] for row in opened), "<=", 50.0),
    ]
    for title, figures in (("one process", one), ("enqueue_many", many), ("16 processes", sixteen)):
        print(title + ":", ", ".join(f"{name} {figure:,.0f}/s" for name, figure in figures.items()))
    print(f"folding beside a producer: {statistics.median(row['folded_per_s'] for row in opened):,.0f} records/s")
    busy = statistics.median(row["per_busy_s"] for row in rebuilt)
    print(f"rebuilding, for each second of processor time: {busy:,.0f} records\n")
    missed = 0
    for text, figure, sign, target in rows:
        good = figure >= target if sign == ">=" else figure <= target
        missed += not good
        print(f"{text:<58} {figure:9.2f}   {sign} {target:g}   {'ok' if good else 'MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
