"""Where Django's task framework comes from, and that nothing but the backend needs it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import django
import pytest

from nobroker_django import compat

ROOT = Path(__file__).parents[3]


def test_djangos_own_goes_before_the_package():
    if django.VERSION >= (6, 0):
        assert compat.SOURCE == "django.tasks"
    else:
        assert compat.SOURCE in ("django_tasks", None)


@pytest.mark.contract("DJ-01")
def test_tasks_of_ours_need_no_framework(tmp_path):
    script = """
        import sys
        sys.modules["django.tasks"] = sys.modules["django_tasks"] = None
        import django
        django.setup()
        from django.core.checks import run_checks
        from nobroker_django import compat, testing
        from tests.unit.django.sample import add
        assert not compat.AVAILABLE
        result = add.enqueue(1)
        assert (str(result.status), result.backend, result.task) == ("READY", "", add)
        testing.run_jobs()
        result.refresh()
        assert (result.return_value, result.status) == (2, "SUCCESSFUL")
        assert result.finished_at >= result.started_at
        run_checks()
        try:
            import nobroker_django.backend
        except ImportError as error:
            assert "pip install 'nobroker-django[django-tasks]'" in str(error)
        else:
            raise AssertionError
    """
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "NOBROKER_TESTS_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
