"""Fixtures of the tests with many processes."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Cut torn tails and rebuilt projections are what these tests are about."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
