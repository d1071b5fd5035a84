"""A user's project beside the models that have no table: migrations, dumps, its test runner, pytest-django.

Each test makes a small project of its own and runs its commands, as the user would.
"""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SETTINGS = """
from pathlib import Path
BASE_DIR = Path(__file__).parent
SECRET_KEY = "x"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "nobroker_django", "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
    "context_processors": ["django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                           "django.contrib.messages.context_processors.messages"]}}]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
NOBROKER = {"DIR": BASE_DIR / "queue"}
"""
FILES = {
    "settings.py": SETTINGS,
    "shop/__init__.py": "",
    "shop/models.py": '''
from django.db import models
class Jobs(models.Model):
    """With the name that the projection's own table has."""
    name = models.CharField(max_length=20)
    class Meta:
        db_table = "jobs"
''',
    "shop/migrations/__init__.py": "",
    "shop/urls.py": """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
""",
    "shop/tests.py": """
from django.contrib.auth.models import User
from django.test import TestCase, TransactionTestCase
from nobroker_django.models import Job
from nobroker_django.queues import get_queue
from shop.models import Jobs
def setUpModule():
    get_queue().enqueue({"task": "t"}, job_id="one")
class Plain(TestCase):
    def test_the_list(self):
        Jobs.objects.create(name="x")
        self.client.force_login(User.objects.create_superuser("root"))
        self.assertEqual(self.client.get("/admin/nobroker_django/job/").status_code, 200)
        self.assertEqual(Job.objects.count(), 1)
class Flushing(TransactionTestCase):
    serialized_rollback = True
    def test_the_list(self):
        self.assertEqual(Job.objects.count(), 1)
        self.assertEqual(Jobs.objects.count(), 0)
""",
    "test_with_pytest.py": """
import pytest
from nobroker_django.models import Job
from nobroker_django.queues import get_queue
def setup_module():
    get_queue().enqueue({"task": "t"}, job_id="one")
@pytest.mark.django_db
def test_with_the_mark():
    assert Job.objects.count() == 1
def test_without_the_mark_nothing_is_touched():
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        Job.objects.count()
""",
    "conftest.py": "",
}


@pytest.fixture
def project(tmp_path):
    """A project with one job in its queue, before its first migration."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run(
        tmp_path,
        "-c",
        "import nobroker_django as n; q = n.Queue('queue'); q.enqueue({'task': 't'}); q.close()",
    )
    return tmp_path


def run(project, *command):
    """One Python command in the project; its output. A failure fails the test."""
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", *command],
        cwd=project,
        env={
            # Without what pytest was told about this run.
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "PYTHONPATH": f"{ROOT}:{project}",
            "DJANGO_SETTINGS_MODULE": "settings",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def manage(project, *command):
    return run(project, "-m", "django", *command)


def tables(project):
    with sqlite3.connect(project / "db.sqlite3") as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return names


@pytest.mark.contract("DJ-08")
def test_migrations_make_no_table_and_are_complete(project):
    manage(project, "makemigrations", "shop")
    manage(project, "migrate", "-v0")
    manage(project, "makemigrations", "--check", "--dry-run")
    assert {name for name in tables(project) if "nobroker" in name} == set()
    assert "jobs" in tables(project)
    assert manage(project, "sqlmigrate", "nobroker_django", "0001").count("CREATE TABLE") == 0
    manage(project, "migrate", "-v0", "nobroker_django", "zero")
    manage(project, "migrate", "-v0", "--run-syncdb")
    assert {name for name in tables(project) if "nobroker" in name} == set()
    assert "no issues" in manage(project, "check")


@pytest.mark.contract("DJ-08")
def test_dumps_and_loads_pass_by(project):
    manage(project, "makemigrations", "shop")
    manage(project, "migrate", "-v0")
    run(project, "-c", "import django; django.setup(); from shop.models import Jobs; Jobs.objects.create(name='x')")
    for extra in ([], ["--all"], ["nobroker_django", "shop"], ["--natural-foreign", "--natural-primary"]):
        dumped = manage(project, "dumpdata", *extra, "-o", "dump.json") or (project / "dump.json").read_text()
        assert {row["model"] for row in json.loads((project / "dump.json").read_text())} & {"shop.jobs"}, dumped
        assert "nobroker_django." not in (project / "dump.json").read_text().replace('"model": "job"', "")
    manage(project, "flush", "--noinput", "-v0")
    manage(project, "loaddata", "-v0", "dump.json")


WITHOUT_A_DIRECTORY = """
import os
from django.test import TransactionTestCase
from nobroker_django.queues import get_queue
class Enqueueing(TransactionTestCase):
    def test_enqueueing(self):
        queue = get_queue()
        queue.enqueue("x")
        with open("where", "w") as file:
            file.write(str(queue.dir))
        if os.fork() == 0:
            raise SystemExit(0)  # a child that ends as processes do removes nothing
        os.wait()
        self.assertEqual(queue.stats().ready, 1)
"""


@pytest.mark.contract("DJ-08")
@pytest.mark.parametrize("runner", [["-m", "django", "test", "shop", "-v0"], ["-m", "pytest", "-q", "shop/tests.py"]])
def test_a_project_that_leaves_the_directory_to_debug_can_be_tested(project, runner):
    settings = project / "settings.py"
    settings.write_text(settings.read_text().replace("NOBROKER =", "DEBUG = True\nNOT_SET ="))
    (project / "shop" / "tests.py").write_text(WITHOUT_A_DIRECTORY)
    manage(project, "makemigrations", "shop")
    run(project, *runner)
    where = Path((project / "where").read_text())
    assert where.name.startswith("nobroker-tests-")
    assert not where.exists()
    assert not (project / ".nobroker").exists()


@pytest.mark.contract("DJ-08")
def test_the_test_runner_and_pytest_django_go_on_as_before(project):
    manage(project, "makemigrations", "shop")
    assert "nobroker" not in manage(project, "test", "shop", "-v0")
    output = run(
        project,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "test_with_pytest.py",
    )
    assert "2 passed" in output
