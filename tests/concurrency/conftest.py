"""Fixtures of the tests with many processes."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.procs import Diary


@pytest.fixture
def diary(tmp_path: Path) -> Iterator[Diary]:
    """What the children did."""
    diary = Diary(tmp_path / "diary")
    yield diary
    diary.close()


@pytest.fixture
def errors(tmp_path: Path) -> Iterator[Diary]:
    """What went wrong in the children; a test ends with an empty one."""
    errors = Diary(tmp_path / "errors")
    yield errors
    text = "\n".join(" ".join(line) for line in errors.lines()).replace("\\n", "\n")
    errors.close()
    assert not text, text


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Cut torn tails and rebuilt projections are what these tests are about."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
