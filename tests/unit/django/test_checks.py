"""Every check, with what it finds and with nothing to find."""

import re
import stat
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection, connections

from nobroker_django import Queue, checks, checks_of_backends, compat, task
from nobroker_django.management.commands.nobroker_work import Command as Work
from nobroker_django.mounts import Mount
from nobroker_django.outbox import checks as outbox_checks
from nobroker_django.outbox.models import OutboxRow
from nobroker_django.registry import unregister

pytestmark = pytest.mark.contract("DJ-10")
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "checks.md"


@pytest.fixture(autouse=True)
def directory(settings, tmp_path, monkeypatch):
    """A project that every check is content with, and without the tasks of other tests."""
    monkeypatch.setattr("nobroker_django.registry._tasks", {})
    path = tmp_path / "queues"
    path.mkdir(mode=0o700)
    settings.NOBROKER = {"DIR": path, "QUEUES": {"default": {}, "emails": {}}}
    settings.DEBUG = False
    return path


@pytest.fixture
def change(settings):
    def change(**values):
        settings.NOBROKER = {**settings.NOBROKER, **values}

    return change


def found():
    """Ids of our messages, without their application's name, in order."""
    return [message.id.split(".")[1] for message in messages()]


def messages():
    return run_checks(tags=[checks.TAG])


def text():
    return " ".join(f"{message.msg} {message.hint or ''}" for message in messages())


def test_nothing_is_found_where_nothing_is_wrong():
    assert found() == []


def test_the_documented_ids_are_those_of_the_code_and_of_these_tests():
    sources = "".join(Path(module.__file__).read_text() for module in (checks, checks_of_backends, outbox_checks))
    code = set(re.findall(r'"nobroker\.([EIW][0-9]{3})"', sources))
    documented = re.findall(r"^\| `nobroker\.([EIW][0-9]{3})` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    tested = set(re.findall(r'"([EIW][0-9]{3})"', Path(__file__).read_text()))
    assert code == {number for number, _ in documented} == tested
    levels = {"E": "error", "W": "warning", "I": "info"}
    assert all(level == levels[number[0]] for number, level in documented)


# -- settings


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"RETENTON": 1}, ["did you mean 'RETENTION'"]),
        ({"RETENTION": "1d"}, ["NOBROKER['RETENTION']"]),
        ({"QUEUES": {"emails": {"MAX_ATEMPTS": 1}}}, ["'MAX_ATEMPTS'"]),
        ({"QUEUES": {"a b": {}}}, ["a queue name has"]),
        ({"QUEUES": []}, ["must be a dict"]),
        ({"QUEUES": {"a": {}, "A": {}}}, ["differ only by case"]),
        ({"DIR": "relative"}, ["must be absolute"]),
        ({"FSYNC": "no", "BACKOFF": {"BASE": -1}, "NO": 1}, ["'FSYNC'", "BACKOFF", "'NO'"]),
        ({"QUEUES": {"a": {"FSYNC": 1, "RETENTION": -1}, "b": {"X": 1}}}, ["'FSYNC'", "'RETENTION'", "'X'"]),
    ],
)
def test_wrong_settings_are_errors_one_by_one(change, values, texts):
    change(**values)
    assert found() == ["E001"] * len(texts)
    for expected in texts:
        assert expected in text()


@pytest.mark.parametrize("name", ["a.b", "b ", "b.dlq", "e\u0301", "\u00e9", "../b", "b/c", "", "b" * 65, "-b"])
def test_queue_names_that_another_could_be_taken_for_are_errors(change, name):
    """C86."""
    change(QUEUES={"b": {}, name: {}})
    assert found() == ["E001"]
    assert repr(name)[1:-1] in text()


def test_queue_names_that_contain_each_other_are_fine(change):
    """C86."""
    change(QUEUES={"b": {}, "b-1": {}, "b_dlq": {}, "ab": {}, "bb": {}})
    assert found() == []


@pytest.mark.parametrize("value", [None, [], {1: 2}])
def test_a_setting_that_is_no_dictionary_is_one_error(settings, value):
    settings.NOBROKER = value
    assert found() == ["E001"]


def test_a_missing_directory_setting_is_an_error_with_debug_off_only(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("nobroker_django.testrun.number", lambda: None)
    settings.NOBROKER = {}
    assert found() == ["E001"]
    assert "NOBROKER['DIR'] is missing" in text()
    settings.DEBUG, settings.BASE_DIR = True, tmp_path
    assert found() == ["I001"]


def test_a_database_that_is_none(change):
    change(DATABASE="nobody")
    assert found() == ["E004"]
    assert "'default'" in text()
    change(DATABASE="default")
    assert found() == []


def test_an_outbox_without_its_app(change, settings):
    change(OUTBOX=True)
    assert found() == []
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "nobroker_django.outbox"]
    assert found() == ["E020"]
    assert "migrate" in text()
    change(OUTBOX=False)
    assert found() == []


@pytest.mark.django_db
def test_rows_of_the_outbox_that_nobody_will_take():
    def asked():
        return [message.id for message in run_checks(tags=["database"], databases=["default"])]

    row = {"queue": "default", "job_id": "a", "jobs": 1, "size_bytes": 1, "called_at": 0, "content": b""}
    OutboxRow.objects.create(key="waits", known_until=4e9, **row)
    assert asked() == []
    OutboxRow.objects.create(key="old", known_until=1.0, **row)
    (number,) = asked()
    assert number.split(".")[1] == "W020"


@pytest.mark.django_db(databases=["default", "other"])
def test_an_outbox_whose_table_is_missing(change, make):
    def asked():
        databases = ["default", "other"]
        return [
            (message.id.split(".")[1], message.msg.split("'")[3])
            for message in run_checks(tags=["database"], databases=databases)
        ]

    change(OUTBOX=True)
    assert asked() == []
    for database in ("default", "other"):
        connections[database].cursor().execute(f"DROP TABLE {OutboxRow._meta.db_table}")  # and rolled back
    assert asked() == [("W021", "default")]  # no job is enqueued in transactions of the other one
    make(lambda: None, name="elsewhere", database="other")
    assert asked() == [("W021", "default"), ("W021", "other")]
    change(RETENTON=1)
    assert asked() == []  # E001 says it


@pytest.mark.django_db
def test_an_outbox_that_is_off_needs_no_table(change):
    connection.cursor().execute(f"DROP TABLE {OutboxRow._meta.db_table}")
    assert run_checks(tags=["database"], databases=["default"]) == []


def test_durability_off(change, settings):
    change(QUEUES={"default": {}, "emails": {"FSYNC": False}})
    assert found() == ["W004"]
    assert "'emails'" in text()
    assert "not durable" in text()
    settings.DEBUG = True
    assert found() == []


@pytest.mark.parametrize(("seconds", "ids"), [(0.1, ["W005"]), (4.9, ["W005"]), (5, []), (3600, [])])
def test_a_tiny_visibility_timeout(change, seconds, ids):
    change(QUEUES={"default": {"VISIBILITY_TIMEOUT": seconds}})
    assert found() == ids


@pytest.mark.parametrize(
    ("backoff", "ids"),
    [({"BASE": 10, "MAX_DELAY": 5}, ["W006"]), ({"BASE": 10, "MAX_DELAY": 10}, []), ({"BASE": 301}, ["W006"])],
)
def test_a_backoff_that_contradicts_itself(change, backoff, ids):
    change(QUEUES={"default": {"BACKOFF": backoff}})
    assert found() == ids


# -- the directory


def test_a_missing_directory_that_can_be_made_is_only_mentioned(change, tmp_path):
    path = tmp_path / "new" / "queues"
    change(DIR=path)
    assert found() == ["I001"]
    assert not path.parent.exists()


def test_something_else_in_the_place_of_the_directory(change, tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "queues"):
        change(DIR=path)
        assert found() == ["E002"]


def refuse(monkeypatch, *paths):
    """The system says that these may not be written (root may write anything)."""
    real = checks._may
    monkeypatch.setattr(checks, "_may", lambda path, rights: path not in paths and real(path, rights))


def test_a_directory_that_is_not_writable(directory, monkeypatch):
    refuse(monkeypatch, directory)
    assert found() == ["E003"]
    assert "uid" in text()


def test_a_directory_that_cannot_be_made(change, tmp_path, monkeypatch):
    change(DIR=tmp_path / "a" / "b")
    refuse(monkeypatch, tmp_path)
    assert found() == ["E003"]
    assert f"{tmp_path} is not writable" in text()


def test_files_of_somebody_else(directory, monkeypatch):
    Queue(directory).close()
    assert found() == []
    refuse(monkeypatch, directory / "default.lock")
    assert found() == ["E003"]
    assert "default.lock" in text()


def test_the_system_is_asked_about_the_effective_user(directory, monkeypatch):
    asked = []

    def access(path, rights, *, effective_ids=False):
        asked.append((path, rights, effective_ids))
        return False

    monkeypatch.setattr("os.access", access)
    monkeypatch.setattr("os.supports_effective_ids", {access})
    assert checks._may(directory, 7) is False
    assert asked == [(directory, 7, True)]


def test_a_network_file_system(monkeypatch):
    monkeypatch.setattr("nobroker_django.mounts.mount_of", lambda path: Mount("/srv", "nfs4", "nas:/x"))
    assert found() == ["W001"]
    assert "nfs4, nas:/x on /srv" in text()
    monkeypatch.setattr("nobroker_django.mounts.mount_of", lambda path: Mount("/srv", "xfs", "/dev/sda"))
    assert found() == []
    monkeypatch.setattr("nobroker_django.mounts.mount_of", lambda path: None)
    assert found() == []


@pytest.mark.parametrize("setting", ["MEDIA_ROOT", "STATIC_ROOT"])
def test_a_directory_that_visitors_can_reach(settings, directory, tmp_path, setting):
    for root in (tmp_path, str(tmp_path) + "/", directory):
        setattr(settings, setting, root)
        assert found() == ["W002"]
        assert setting in text()
    for root in (tmp_path / "queue", directory / "below", "", None):
        setattr(settings, setting, root)
        assert found() == []


def test_a_link_into_what_visitors_can_reach(settings, tmp_path, change):
    (tmp_path / "media" / "queues").mkdir(parents=True, mode=0o700)
    (tmp_path / "media" / "queues").chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "media" / "queues")
    change(DIR=tmp_path / "link")
    settings.MEDIA_ROOT = tmp_path / "media"
    assert found() == ["W002"]


def test_directories_of_static_files_count(settings, tmp_path):
    settings.STATICFILES_DIRS = [("prefix", tmp_path / "other"), str(tmp_path)]
    assert found() == ["W002"]


@pytest.mark.parametrize(("mode", "ids"), [(0o700, []), (0o2770, []), (0o755, ["W003"]), (0o701, ["W003"])])
def test_a_directory_open_to_others(directory, mode, ids):
    directory.chmod(mode)
    assert found() == ids


def test_files_open_to_others_are_named(directory):
    Queue(directory).close()
    directory.chmod(0o755)
    assert "default.000001.log" not in text()
    log = directory / "default.000001.log"
    log.chmod(0o644)
    assert "files in it (default.000001.log)" in text()
    directory.chmod(0o704)  # its names can be read, its files not
    assert "default.000001.log" not in text()
    directory.chmod(0o700)
    assert found() == []


@pytest.mark.parametrize(
    "values", [{"FILE_MODE": 0o644}, {"DIR_MODE": 0o755}, {"QUEUES": {"a": {"FILE_MODE": 0o606}}}]
)
def test_modes_that_open_what_will_be_made(change, values):
    change(**values)
    assert found() == ["W003"]


def test_modes_for_a_group_are_fine(change):
    change(FILE_MODE=0o660, DIR_MODE=0o2770)
    assert found() == []


# -- tasks


def test_a_task_for_a_queue_that_is_not_there():
    """C87."""
    made = task(queue_name="emial", name="wrong queue")(lambda: None)
    try:
        assert found() == ["E005"]
        assert "'emial'" in text()
        assert "default, emails" in text()
    finally:
        unregister(made)
    assert found() == []


def test_a_database_of_a_task_that_is_none(make):
    make(lambda: None, database="default")
    assert found() == []
    make(lambda: None, name="archiver", database="archive")
    assert found() == ["E004"]
    assert "task archiver is 'archive', but DATABASES has no such alias (it has 'default'" in text()


def test_times_of_a_task_are_looked_at():
    made = task(visibility_timeout=1, backoff={"base": 5, "max_delay": 1}, name="hasty")(lambda: None)
    try:
        assert found() == ["W005", "W006"]
        assert "task hasty" in text()
    finally:
        unregister(made)


@pytest.mark.parametrize(
    ("of_the_queue", "of_the_task", "ids"),
    [
        ({"TIME_LIMIT": 30}, {"soft_time_limit": 30}, ["W008"]),
        ({"SOFT_TIME_LIMIT": 30, "TIME_LIMIT": 40}, {"time_limit": 20}, ["W008"]),
        ({"SOFT_TIME_LIMIT": 30, "TIME_LIMIT": 40}, {"soft_time_limit": 35}, []),
        ({}, {"soft_time_limit": 35}, []),
    ],
)
def test_limits_of_a_task_that_contradict_those_of_its_queue(change, of_the_queue, of_the_task, ids):
    change(QUEUES={"default": of_the_queue})
    made = task(name="limited", **of_the_task)(lambda: None)
    try:
        assert found() == ids
    finally:
        unregister(made)


def test_a_module_of_tasks_that_cannot_be_imported(change):
    change(IMPORTS=["no.such.module"])
    assert found() == ["W007"]
    assert "no.such.module cannot be imported: ModuleNotFoundError: No module named 'no'" in text()


def test_every_module_of_tasks_that_cannot_be_imported_is_named_also_one_that_exits(change, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imports_that_exit.py").write_text("import sys\n\nsys.exit(3)\n")
    (tmp_path / "imports_that_fail.py").write_text("1 / 0\n")
    change(IMPORTS=["imports_that_exit", "imports_that_fail"])
    assert found() == ["W007", "W007"]
    assert f"imports_that_exit cannot be imported: SystemExit: 3 ({tmp_path}/imports_that_exit.py, line 3)" in text()
    assert f"ZeroDivisionError: division by zero ({tmp_path}/imports_that_fail.py, line 1)" in text()


def test_a_parameter_to_which_nothing_can_be_passed(make):
    def work(number: int, later: "Missing" = None): ...  # type: ignore[name-defined]  # noqa: F821

    make(work, name="my task")
    assert found() == ["W009"]
    assert "task my task: no value can be passed for its parameter 'later': has the annotation Missing" in text()
    work.__globals__["Missing"] = int
    try:
        assert found() == []
    finally:
        del work.__globals__["Missing"]


# -- how they are run


def test_checks_create_and_open_nothing(directory, monkeypatch):
    Queue(directory).close()
    before = {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]}
    monkeypatch.setattr(Queue, "__init__", None)
    assert found() == []
    assert {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]} == before
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_they_are_part_of_manage_py_check(change, capsys):
    call_command("check")
    change(RETENTION=-1)
    with pytest.raises(CommandError, match=r"nobroker\.E001"):
        call_command("check")
    change(RETENTION=1, VISIBILITY_TIMEOUT=1)
    call_command("check")
    assert "nobroker.W005" in capsys.readouterr().err


def test_they_can_be_silenced(change, settings):
    settings.SILENCED_SYSTEM_CHECKS = ["nobroker.W005"]
    change(VISIBILITY_TIMEOUT=1)
    assert [message.is_silenced() for message in messages()] == [True, True]


def test_a_worker_checks_when_it_starts_but_imports_no_tasks(change, monkeypatch):
    imported = []
    monkeypatch.setattr("nobroker_django.discovery.failures", lambda: imported.append("tasks") or [])
    Work().check()
    change(RETENTION=-1)
    with pytest.raises(CommandError, match=r"nobroker\.E001"):
        Work().check()
    assert imported == []
    change(RETENTION=1)
    assert found() == []
    assert imported == ["tasks"]


# -- backends


NOBROKER_BACKEND = "nobroker_django.backend.NobrokerBackend"
needs_framework = pytest.mark.skipif(not compat.AVAILABLE, reason="this Django has no task framework")


@pytest.fixture
def backend(settings):
    def backend(kind=NOBROKER_BACKEND, **params):
        settings.TASKS = {"default": {"BACKEND": kind, **params}}

    return backend


@needs_framework
@pytest.mark.parametrize("queues", [{}, {"QUEUES": ["default", "emails"]}, {"OPTIONS": {}}])
def test_a_backend_that_says_what_nobroker_says_is_fine(backend, queues):
    backend(**queues)
    assert found() == []
    assert compat.task_backends["default"].check() == []


@needs_framework
@pytest.mark.parametrize("queues", [["default"], [], ["default", "emails", "third"]])
def test_queues_of_tasks_that_differ_are_an_error(backend, queues):
    backend(QUEUES=queues)
    assert found() == ["E007"]
    assert "NOBROKER has ['default', 'emails']" in text()


@needs_framework
def test_options_of_a_backend_that_have_no_effect_are_said(backend):
    backend(OPTIONS={"a": 1}, ENQUEUE_ON_COMMIT=False)
    assert found() == ["W010"]
    assert "has ENQUEUE_ON_COMMIT, OPTIONS, which" in text()


@needs_framework
def test_a_backend_without_the_application_is_an_error(backend, settings):
    backend()
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != "nobroker_django"]
    (message,) = compat.task_backends["default"].check()
    assert message.id.split(".")[1] == "E006"
    if compat.SOURCE == "django.tasks":
        assert message in run_checks()


@needs_framework
def test_a_backend_beside_wrong_settings_leaves_the_word_to_them(backend, change):
    backend(QUEUES=["default"])
    change(RETENTON=1)
    assert found() == ["E001"]


@needs_framework
@pytest.mark.parametrize("kind", ["ImmediateBackend", "DummyBackend"])
def test_a_backend_without_queues_is_for_development_and_tests(backend, settings, monkeypatch, kind):
    backend(f"nobroker_django.backend.{kind}")
    assert found() == []
    monkeypatch.setattr("nobroker_django.testrun.number", lambda: None)
    assert found() == ["W011"]
    settings.DEBUG = True
    assert found() == []


def test_immediate_is_for_development_and_tests(change, settings, monkeypatch):
    change(IMMEDIATE=True)
    assert found() == []
    monkeypatch.setattr("nobroker_django.testrun.number", lambda: None)
    assert found() == ["W011"]
    settings.DEBUG = True
    assert found() == []
    change(IMMEDIATE="yes")
    assert found() == ["E001"]


def test_immediate_needs_no_directory_and_what_does_says_so(settings, monkeypatch):
    monkeypatch.setattr("nobroker_django.testrun.number", lambda: None)
    settings.NOBROKER = {"IMMEDIATE": True}
    assert found() == ["W011"]
    result = task(name="at once")(lambda: 3).enqueue()
    assert result.return_value == 3
    with pytest.raises(CommandError, match=r"NOBROKER\['DIR'\] is missing"):
        call_command("nobroker_stats")
