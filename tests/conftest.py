"""What every part of the suite uses; what only one part needs stands beside it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgres import NoServerError, server
from tests.support.procs import Diary

pytest_plugins = ["nobroker_django.pytest_plugin"]  # which pytest finds by itself where the package is installed

# The same examples in every run, and no opinion about how long one takes: a busy machine fails no test. The long tests
# draw new ones.
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture
def queue_dir(tmp_path: Path) -> Path:
    """A directory for queues that does not exist yet, on the file system of pytest's temporary directory."""
    return tmp_path / "queues"


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of syncs that prove nothing need no disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="nobroker-test-", dir=memory))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def diary(tmp_path: Path) -> Iterator[Diary]:
    """What child processes did, or were told."""
    diary = Diary(tmp_path / "diary")
    yield diary
    diary.close()


@pytest.fixture
def errors(tmp_path: Path) -> Iterator[Diary]:
    """What went wrong in child processes; a test ends with an empty one."""
    errors = Diary(tmp_path / "errors")
    yield errors
    text = "\n".join(" ".join(line) for line in errors.lines()).replace("\\n", "\n")
    errors.close()
    assert not text, text


@pytest.fixture(scope="session")
def postgresql() -> Iterator[dict[str, Any]]:
    """A PostgreSQL server, as ``DATABASES`` has it; the tests are skipped where there is none."""
    with contextlib.ExitStack() as running:
        try:
            database = running.enter_context(server())
        except NoServerError as error:
            pytest.skip(str(error))
        yield database


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> dict[str, Any] | None:
    """What processes have for ``DATABASES["default"]``; ``None``: SQLite in their directory."""
    found: dict[str, Any] | None = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    return found
