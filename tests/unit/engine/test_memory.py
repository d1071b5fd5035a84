"""Memory does not grow with the queue: the highest resident memory of fresh processes, large queue against empty one.

``tests/bench/memory.py`` measures the same with a million jobs.
"""

import sys

import pytest

from nobroker_django import Queue
from tests.bench import memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def growth(use, place, fill):
    """How many MB more a use takes with the queue that ``fill`` fills than with an empty one."""
    with Queue(place / "empty"):
        pass
    with Queue(place / "filled", fsync=False) as queue:
        fill(queue)
    return memory.measure(use, place / "filled") - memory.measure(use, place / "empty")


@pytest.mark.parametrize("use", ["the same, the projection made anew", "read-only, without a projection"])
def test_a_process_with_many_jobs_takes_little_more_memory_than_one_with_none(memory_dir, use):
    def fill(queue):
        for start in range(0, 50_000, 5000):
            queue.enqueue_many([{"task": "a", "args": [number, "x" * 100]} for number in range(start, start + 5000)])

    assert growth(use, memory_dir, fill) < 25


def test_large_payloads_are_not_held_together(memory_dir):
    def fill(queue):
        for _ in range(24):
            queue.enqueue("x" * 2_000_000)

    assert growth("statistics alone", memory_dir, fill) < 25
