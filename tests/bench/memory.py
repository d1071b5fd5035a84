"""Resident memory of a process that uses a large queue, against one that uses an empty one.

    python -m tests.bench.memory DIRECTORY [JOBS]      # a million jobs by default; made when they are not there

Each use is a fresh process. Printed is the highest resident memory (``VmHWM``) of the process with the empty queue,
with the large one, and the difference, in MB. Exit code 1 when a difference is over 40 MB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.admin_pages import make

LARGEST_MB = 40.0


def highest_mb() -> float:
    """The highest resident memory of this process so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not say")


def open_queue(directory: str, **options: Any) -> Any:
    """The queue, as the benchmark made it."""
    from nobroker_django import Queue

    return Queue(directory, retention=30 * 86_400, **options)


def work(directory: str) -> None:
    """A web process and a worker in one: enqueue, lease, ack, look, list."""
    with open_queue(directory) as queue:
        queue.enqueue({"task": "a", "args": []})
        queue.enqueue_many([{"task": "a", "args": [number]} for number in range(100)])
        for _ in range(50):
            queue.ack_many(queue.lease(10))
        queue.stats()
        for job in queue.list_jobs(limit=100):
            queue.get(job.id)
        for state in ("ready", "done", "dead"):
            queue.list_jobs(state, limit=100)
        queue.list_jobs(task="a", limit=100)


def rebuild(directory: str) -> None:
    """As ``work``, after the projection was lost."""
    shutil.rmtree(f"{directory}/default.run", ignore_errors=True)
    work(directory)


def count(directory: str) -> None:
    """Make the projection anew, and count."""
    shutil.rmtree(f"{directory}/default.run", ignore_errors=True)
    with open_queue(directory) as queue:
        queue.stats()


def look(directory: str) -> None:
    """Read-only, beside the projection of the others."""
    with open_queue(directory, read_only=True) as queue:
        queue.stats()
        queue.list_jobs(limit=100)
        queue.list_jobs(task="no such", limit=100)
        queue.list_jobs(since=1e11, limit=100)


def look_alone(directory: str) -> None:
    """Read-only, without a projection: the whole log is replayed."""
    shutil.rmtree(f"{directory}/default.run", ignore_errors=True)
    look(directory)


def compact(directory: str) -> None:
    """Write everything anew."""
    with open_queue(directory) as queue:
        queue.compact()


USES: dict[str, Callable[[str], None]] = {
    "enqueue, lease, ack, stats, lists": work,
    "the same, the projection made anew": rebuild,
    "statistics alone": count,
    "read-only": look,
    "read-only, without a projection": look_alone,
    "compaction": compact,
}


def measure(use: str, directory: Path) -> float:
    """The highest memory of one use in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.memory", "--use", use, str(directory)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def main(directory: Path, jobs: int) -> int:
    """Measure every use; 1 when one takes too much."""
    if not (directory / "default.current").exists():
        make(directory, jobs)
    missed = 0
    with tempfile.TemporaryDirectory() as place:
        empty = Path(place)
        open_queue(str(empty)).close()
        for use in USES:
            small, large = measure(use, empty), measure(use, directory)
            missed += large - small > LARGEST_MB
            print(f"{use:36} {small:7.1f} {large:7.1f}  {large - small:+7.1f} MB")
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--use":
        USES[sys.argv[2]](sys.argv[3])
        print(highest_mb())
    else:
        raise SystemExit(main(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000))
