"""Fixtures of the crash tests."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of syncs that prove nothing need no disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="nobroker-test-", dir=memory))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Cut torn tails are what these tests are about: no warning for each."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
