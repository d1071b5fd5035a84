"""What the tests of Django's tasks, and of a backend beside them, ask for, as far as ``test_backend`` does not."""

import dataclasses
import logging
import pickle
import sys
from datetime import UTC, datetime

import pytest
from asgiref.sync import async_to_sync

from nobroker_django import SerializationError, compat, registry
from nobroker_django.queues import get_queue
from nobroker_django.testing import run_jobs

from .test_backend import add, add_later, backend, django_task, fail, leave, tasks

__all__ = ["django_task", "tasks"]
pytestmark = pytest.mark.skipif(not compat.AVAILABLE, reason="this Django has no task framework")
LOGGER = "django.tasks" if compat.SOURCE == "django.tasks" else "django_tasks"
ALL = ["NobrokerBackend", "ImmediateBackend"]


def fail_with_an_object():
    raise ValueError(ValueError("This one failed"))


async def fail_later():
    raise ValueError("This one failed")


def interrupt():
    raise KeyboardInterrupt


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, logger=LOGGER)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records if record.name == LOGGER]


def ran(task, kind):
    """A job that has been run, if it was not at once."""
    result = task.using(max_attempts=1).enqueue()
    if kind == "NobrokerBackend":
        run_jobs()
        result.refresh()
    return result


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("function", [fail, fail_later, leave, fail_with_an_object])
def test_a_failure_is_in_djangos_log_with_its_traceback(settings, django_task, log, caplog, kind, function):
    """Django's own receiver takes it from ``sys.exc_info()``."""
    settings.TASKS = {"default": {"BACKEND": f"nobroker_django.backend.{kind}"}}
    result = ran(django_task(function), kind)
    levels, lines = zip(*log(), strict=True)
    assert levels == ("DEBUG", "INFO", "ERROR")
    assert all(result.id in line for line in lines)
    words = ("enqueued", "state=RUNNING", "state=FAILED")
    assert all(word in line for word, line in zip(words, lines, strict=True))
    assert "This one" in caplog.text.partition("state=FAILED")[2]


@pytest.mark.parametrize("kind", ALL)
def test_a_success_is_in_djangos_log_without_one(settings, django_task, log, caplog, kind):
    settings.TASKS = {"default": {"BACKEND": f"nobroker_django.backend.{kind}"}}
    result = ran(django_task(all_well), kind)
    assert [line for _, line in log() if result.id not in line] == []
    assert [level for level, _ in log()] == ["DEBUG", "INFO", "INFO"]
    assert "NoneType" not in caplog.text


def all_well():
    pass


async def well_later():
    assert sys.exc_info()[0] is None


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("function", [fail, fail_later])
def test_a_receiver_finds_the_exception_and_no_other(settings, django_task, kind, function):
    settings.TASKS = {"default": {"BACKEND": f"nobroker_django.backend.{kind}"}}
    seen = []

    def look(sender, **kwargs):
        seen.append(sys.exc_info()[0])

    compat.task_finished.connect(look)
    try:
        ran(django_task(function), kind)
        ran(django_task(all_well), kind)
        result = ran(django_task(well_later), kind)
    finally:
        compat.task_finished.disconnect(look)
    assert seen == [ValueError, None, None]
    assert result.return_value is None


@pytest.mark.parametrize("kind", ALL)
def test_what_a_failed_job_says_of_itself(settings, django_task, kind):
    settings.TASKS = {"default": {"BACKEND": f"nobroker_django.backend.{kind}"}}
    task = django_task(fail_with_an_object)
    result = ran(task, kind)
    assert result.finished_at >= result.started_at == result.last_attempted_at >= result.enqueued_at
    assert (result.attempts, result._return_value, result.task.func) == (1, None, task.func)
    assert 'ValueError(ValueError("This one failed"))' in result.errors[0].traceback
    assert result.errors[0].exception_class is ValueError


def test_the_immediate_backend_lets_an_interrupt_through(settings, django_task):
    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.ImmediateBackend"}}
    with pytest.raises(KeyboardInterrupt):
        backend().enqueue(django_task(interrupt), [], {})


def test_arguments_are_checked_in_a_coroutine_too(django_task):
    with pytest.raises(SerializationError, match="parameter 'a'"):
        async_to_sync(django_task(add).aenqueue)(datetime(2026, 1, 1, tzinfo=UTC))


def test_a_result_of_another_task_is_a_mismatch_in_a_coroutine_too(django_task):
    result = django_task(add_later).enqueue(1)
    with pytest.raises(compat.TaskResultMismatch):
        async_to_sync(django_task(add).aget_result)(result.id)


def test_looking_again_changes_nothing_where_nothing_has_happened(django_task):
    result = django_task(add).enqueue(1)
    before = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == before
    async_to_sync(result.arefresh)()
    assert dataclasses.asdict(result) == before


def test_a_backend_that_there_is_not_is_djangos_error(django_task, settings):
    settings.TASKS = {**settings.TASKS, "missing": {"BACKEND": "does.not.exist"}}
    for alias in ("unknown", "missing"):
        with pytest.raises(compat.InvalidTaskBackend):
            django_task(add).using(backend=alias)


def test_a_bound_method_is_no_task(django_task):
    class Holder:
        def method(self):
            pass

    with pytest.raises(compat.InvalidTask):
        django_task(Holder().method)


def test_it_is_called_without_a_queue(django_task):
    for function in (add, add_later):
        task = django_task(function)
        assert task.call(1, b=2) == async_to_sync(task.acall)(1, b=2) == 3
    assert get_queue().stats().total == 0


@pytest.mark.skipif(
    compat.AVAILABLE and not hasattr(compat.Task, "_reconstruct"), reason="tasks of this Django cannot be pickled"
)
def test_a_task_and_its_result_can_be_pickled(tmp_path, monkeypatch):
    (tmp_path / "pickled_tasks.py").write_text(
        f"from {compat.SOURCE} import task\n@task(priority=3)\ndef work(a):\n    return a\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from pickled_tasks import work  # type: ignore[import-not-found]

    again = pickle.loads(pickle.dumps(work.using(max_attempts=7, job_id="one")))
    assert again == work.using(max_attempts=7, job_id="one")
    assert (again.func, again.max_attempts, again.job_id, again.priority) == (work.func, 7, "one", 3)
    result = again.enqueue(5)
    unpickled = pickle.loads(pickle.dumps(result))
    assert (unpickled, unpickled.task) == (result, again)
    run_jobs()
    unpickled.refresh()
    assert unpickled.return_value == 5
    for path in ("does.not.exist.fake_task", "builtins.any"):
        with pytest.raises(ValueError, match=path):
            type(work)._reconstruct({"func": path})
    registry.unregister(registry.find("pickled_tasks.work"))
