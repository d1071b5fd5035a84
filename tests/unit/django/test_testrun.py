"""The directory of a test run: not the one of the settings module, whichever runner runs the tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import UserSettingsHolder
from django.core import mail
from django.test import override_settings
from django.test.utils import _TestState

from nobroker_django import conf, testrun
from nobroker_django.queues import get_queue
from tests import settings as module

OWN = Path(module.NOBROKER["DIR"])


def directory():
    return conf.get_settings().dir


def is_of_the_run(path):
    return path.name.startswith("nobroker-tests-") and path.is_dir() and path != OWN


def test_the_directory_of_the_settings_module_is_not_used_also_when_it_is_copied():
    for value in (
        module.NOBROKER,
        {**module.NOBROKER, "RETENTION": 5.0},
        {"DIR": str(OWN), "QUEUES": {"other": {}}},
        {},
    ):
        with override_settings(NOBROKER=value):
            assert is_of_the_run(directory())


def test_a_directory_that_a_test_has_chosen_is_used_as_it_stands(tmp_path):
    with override_settings(NOBROKER={"DIR": tmp_path}):
        assert directory() == tmp_path
        with override_settings(DEBUG=True):
            assert directory() == tmp_path
        with override_settings(NOBROKER=module.NOBROKER, DEBUG=True):
            assert is_of_the_run(directory())
        assert directory() == tmp_path


def test_what_a_test_has_chosen_is_not_taken_for_the_modules_where_that_has_none(tmp_path):
    holder = UserSettingsHolder(type("Settings", (), {})())
    holder.NOBROKER = {"DIR": tmp_path}
    assert testrun.directory_in_module(type("Lazy", (), {"_wrapped": holder})()) is None


def test_outside_of_a_test_run_the_setting_counts_also_with_mails_in_memory(monkeypatch, tmp_path):
    with override_settings(NOBROKER=module.NOBROKER):
        inside = get_queue()
        assert is_of_the_run(directory())
        with monkeypatch.context() as patch:
            patch.delattr(_TestState, "saved_data")
            assert hasattr(mail, "outbox")
            assert testrun.number() is None
            assert directory() == OWN
        assert get_queue() is inside


def test_a_queue_that_was_open_before_the_test_run_is_not_that_of_the_run(monkeypatch, tmp_path):
    with override_settings(NOBROKER={"DIR": tmp_path}):
        monkeypatch.setattr(testrun, "directory_in_module", lambda settings: tmp_path)
        with monkeypatch.context() as patch:
            patch.delattr(_TestState, "saved_data")
            get_queue().enqueue(1)
        assert get_queue().list_jobs() == []


# -- the runners

SETTINGS = """
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["nobroker_django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
NOBROKER = {"DIR": BASE_DIR / "real"}
"""
TASKS = """
from nobroker_django import task


@task
def add(a):
    return a + 1
"""
TESTS = """
import os

from django.test import SimpleTestCase
from nobroker_django import conf
from nobroker_django.testing import run_jobs
from shop.tasks import add


class {name}(SimpleTestCase):
    def test_it(self):
        with open(os.environ["DIRECTORIES"], "a") as file:
            file.write(str(conf.get_settings().dir) + "\\n")
        result = add.enqueue(1)
        self.assertEqual([report.job_id for report in run_jobs()], [result.id])
"""


@pytest.fixture
def project(tmp_path):
    """A project with two test modules whose settings name a directory; runs a command in it."""
    (tmp_path / "project_settings.py").write_text(SETTINGS)
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "tasks.py").write_text(TASKS)
    for name in ("One", "Two"):
        (shop / f"test_{name.lower()}.py").write_text(TESTS.format(name=name))

    def run(*command):
        seen = tmp_path / "directories"
        seen.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "project_settings",
                "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]),
                "DIRECTORIES": str(seen),
                "TMPDIR": str(tmp_path),
                "PYTEST_ADDOPTS": "",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not (tmp_path / "real").exists()
        assert list(tmp_path.glob("nobroker-tests-*")) == []  # nothing stays behind
        return seen.read_text().split()

    return run


def test_djangos_runner_leaves_the_directory_alone(project):
    one, two = project("django", "test", "shop")
    assert one == two


def test_the_processes_of_a_parallel_run_have_one_directory_each(project):
    one, two = project("django", "test", "--parallel", "2", "shop")
    assert one != two


def test_the_processes_of_xdist_have_one_directory_each(project):
    one, two = project("pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", "shop")
    assert one != two
