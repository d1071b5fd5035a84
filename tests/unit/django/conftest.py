"""Each test of the Django layer has queues of its own."""

import pytest

from nobroker_django import registry, task

QUEUES = {"default": {}, "emails": {"MAX_ATTEMPTS": 3}}


@pytest.fixture(autouse=True)
def own_queues(settings, tmp_path):
    """``NOBROKER`` with a directory of this test; the queue objects are closed when the setting is put back."""
    settings.NOBROKER = {"DIR": tmp_path / "queues", "QUEUES": QUEUES}
    return settings


@pytest.fixture
def make():
    """Tasks that are forgotten after the test."""
    made = []

    def decorate(function, **options):
        made.append(task(**{"name": "the task", **options})(function))
        return made[-1]

    yield decorate
    for one in made:
        registry.unregister(one)
