"""Queues on a clock that stands still, closed again at the end of the test."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import NobrokerError, Queue

from .helpers import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory where a sync costs nothing, for tests that make hundreds of queues."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="nobroker-tests-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def open_queue(queue_dir: Path, clock: FakeClock) -> Iterator[Callable[..., Queue]]:
    """Opens queues of the test's directory; every call a ``Queue`` object of its own."""
    opened: list[Queue] = []

    def open_(path: Path = queue_dir, name: str = "default", **options: Any) -> Queue:
        queue = Queue(path, name, **{"clock": clock, **options})
        opened.append(queue)
        return queue

    yield open_
    for queue in opened:
        with suppress(NobrokerError):
            queue.close()


@pytest.fixture
def queue(open_queue: Callable[..., Queue]) -> Queue:
    return open_queue()
