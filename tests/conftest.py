"""Fixtures that every part of the suite may use; what only one part needs stands beside it."""

from pathlib import Path

import pytest


@pytest.fixture
def queue_dir(tmp_path: Path) -> Path:
    """A directory for queues that does not exist yet, on the file system of pytest's temporary directory."""
    return tmp_path / "queues"
