"""The package can be imported where Django is not configured, and the engine without loading Django at all."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PUBLIC_NAMES = ("Queue", "Worker", "BackoffPolicy", "Job", "JobState", "QueueStats", "WorkerStats", "NobrokerError")


def run_python(code: str) -> str:
    """Run code in a fresh interpreter without any settings in its environment; returns its standard output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.contract("API-02")
def test_importing_the_package_loads_no_django_and_reads_no_settings():
    loaded = run_python(
        """
        import sys
        import nobroker_django
        print(nobroker_django.__version__)
        print(sorted(m for m in sys.modules if m == "django" or m.startswith("django.")))
        """
    )
    assert loaded.splitlines()[1] == "[]"


@pytest.mark.contract("API-02")
def test_the_engine_does_a_job_without_django(queue_dir):
    output = run_python(
        f"""
        import sys
        from nobroker_django import {", ".join(PUBLIC_NAMES)}
        with Queue({str(queue_dir)!r}) as queue:
            queue.enqueue({{"to": "ann"}})
            job = queue.lease_one()
            queue.ack(job)
            print(job.payload, queue.stats().done)
        print(sorted(m for m in sys.modules if m == "django" or m.startswith("django.")))
        """
    )
    assert output.splitlines() == ["{'to': 'ann'} 1", "[]"]
