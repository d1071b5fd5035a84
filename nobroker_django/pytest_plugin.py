"""The pytest fixture ``nobroker``: queues for one test. Loaded by pytest itself where this package is installed.

Invariant: loading it imports neither Django nor the rest of the package; only a test that asks for the fixture does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .engine.worker_queue import WorkerQueue
    from .execution import Report


class Queues:
    """What the fixture gives. ``dir`` is the directory of the queues of this test."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory

    def run_jobs(self, *queues: str, delayed: bool = False, limit: int = 1000) -> list[Report]:
        """See ``nobroker_django.testing.run_jobs``."""
        from .testing import run_jobs

        return run_jobs(*queues, delayed=delayed, limit=limit)

    def committed(
        self, *queues: str, delayed: bool = False, using: str = "default"
    ) -> AbstractContextManager[list[Report]]:
        """See ``nobroker_django.testing.committed``."""
        from .testing import committed

        return committed(*queues, delayed=delayed, using=using)

    def queue(self, name: str = "default") -> WorkerQueue:
        """A queue, to look into it."""
        from .queues import get_queue

        return get_queue(name)


@pytest.fixture
def nobroker(tmp_path: Path) -> Iterator[Queues]:
    """The settings' queues in a directory of this test; ``nobroker.run_jobs()`` runs what is in them."""
    from .testing import own_queues

    with own_queues(tmp_path / "nobroker") as directory:
        yield Queues(directory)
