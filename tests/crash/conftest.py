"""Fixtures of the crash tests."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Cut torn tails are what these tests are about: no warning for each."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
