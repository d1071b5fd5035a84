"""What every part of the suite uses; what only one part needs stands beside it."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, and no opinion about how long one takes: a busy machine fails no test. The long tests
# draw new ones.
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture
def queue_dir(tmp_path: Path) -> Path:
    """A directory for queues that does not exist yet, on the file system of pytest's temporary directory."""
    return tmp_path / "queues"
