"""The types of tasks from end to end, as mypy sees them (DJ-01)."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
pytest.importorskip("mypy_django_plugin")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.long


def mypy(*paths: Path) -> str:
    """What mypy finds in these files, under the project's configuration."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", *(str(path) for path in paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.mark.contract("DJ-01")
def test_right_calls_are_accepted_and_each_wrong_one_is_refused():
    assert mypy(HERE / "right.py", HERE / "wrong.py") == ""


def test_a_wrong_call_that_is_accepted_would_be_found(tmp_path):
    text = (HERE / "wrong.py").read_text()
    assert text.count("# type: ignore[") > 10
    accepted = tmp_path / "accepted.py"
    accepted.write_text(text.replace('bare.enqueue("one")', "bare.enqueue(1)"))
    assert 'Unused "type: ignore" comment' in mypy(accepted)
