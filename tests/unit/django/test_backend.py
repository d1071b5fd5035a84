"""The backend for Django's ``TASKS``: what Django's own tests ask of a backend, and what is ours beside it."""

import asyncio
import copy
import dataclasses
import inspect
import os
import pickle
import socket
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

from nobroker_django import (
    JobNotFoundError,
    JobState,
    SerializationError,
    TaskArgumentError,
    compat,
    current_job,
    registry,
)
from nobroker_django import task as our_task
from nobroker_django.execution import execute
from nobroker_django.queues import get_queue
from nobroker_django.results import JobResult, NoException
from nobroker_django.testing import run_jobs

from . import sample

pytestmark = pytest.mark.skipif(not compat.AVAILABLE, reason="this Django has no task framework")
BACKEND = "nobroker_django.backend.NobrokerBackend"


def add(a, b=1):
    return a + b


async def add_later(a, b=1):
    await asyncio.sleep(0)
    return a + b


def fail():
    raise ValueError("This one failed")


def leave():
    raise SystemExit("This one left")


def with_context(context, a):
    assert context.task_result.worker_ids == [f"{socket.gethostname()}:{os.getpid()}"]
    return [context.attempt, a, context.task_result.id, str(context.task_result.status), current_job().job_id]


async def with_context_later(context, a):
    return [context.attempt, a, context.task_result.id]


def bytes_back():
    return b"x"


@pytest.fixture(autouse=True)
def tasks(settings):
    settings.TASKS = {"default": {"BACKEND": BACKEND}}
    return settings


@pytest.fixture
def django_task():
    """Django's decorator; what it makes is forgotten after the test."""
    made = []

    def decorate(function, **options):
        from importlib import import_module

        made.append(import_module(compat.SOURCE).task(**options)(function))
        return made[-1]

    yield decorate
    for one in made:
        known = registry.find(getattr(one, "task_name", None) or one.module_path)
        if known is not None and known.source is not None:
            registry.unregister(known)


def with_options():
    from importlib import import_module

    return "kwargs" in inspect.signature(import_module(compat.SOURCE).task).parameters


needs_options = pytest.mark.skipif(
    compat.AVAILABLE and not with_options(), reason="the decorator of Django 6.0 takes no options of a backend"
)


def backend():
    return compat.task_backends["default"]


def run(queue="default"):
    """Every job that can be run now."""
    reports = []
    while (job := get_queue(queue).lease_one()) is not None:
        reports.append(execute(get_queue(queue), job))
    return reports


# --- the backend


def test_it_has_every_capability_of_a_full_backend():
    made = backend()
    assert type(made).__name__ == "NobrokerBackend"
    assert isinstance(made, compat.BaseTaskBackend)
    assert (made.alias, made.options, made.queues) == ("default", {}, {"default", "emails"})
    flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
    assert [getattr(made, flag) for flag in flags] == [True] * 4


@pytest.mark.contract("DJ-07")
@pytest.mark.parametrize("function", [add, add_later])
def test_a_task_of_djangos_decorator_is_run_by_our_worker_and_its_result_is_found(django_task, function):
    task = django_task(function)
    result = task.enqueue(1, b=3)
    assert isinstance(result, compat.TaskResult)
    assert isinstance(result, JobResult)
    assert (result.status, result.is_finished, result.attempts, result.errors) == ("READY", False, 0, [])
    assert (result.args, result.kwargs, result.backend, result.task) == ([1], {"b": 3}, "default", task)
    assert result.enqueued_at is not None
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    with pytest.raises(ValueError, match="has not finished"):
        _ = result.return_value
    assert [report.error for report in run_jobs()] == [""]
    assert result.status == "READY"  # until it is looked at again
    result.refresh()
    assert result.finished_at >= result.started_at == result.last_attempted_at >= result.enqueued_at
    assert (result.status, result.is_finished, result.attempts, result.return_value) == ("SUCCESSFUL", True, 1, 4)
    assert result.finished_at >= result.enqueued_at
    assert task.get_result(result.id) == backend().get_result(result.id) == result
    assert result.status in compat.TaskResultStatus


def test_the_same_from_a_coroutine(django_task):
    task = django_task(add)

    async def work():
        result = await task.aenqueue(1, b=3)
        await sync_to_async(run)()
        await result.arefresh()
        assert (result.status, result.return_value) == ("SUCCESSFUL", 4)
        assert await task.aget_result(result.id) == await backend().aget_result(result.id) == result

    async_to_sync(work)()


def test_the_backends_own_method_takes_both_kinds_of_tasks(django_task):
    task = django_task(add)
    results = [backend().enqueue(task, [1], {"b": 5}), backend().enqueue(sample.add, (1,), {"b": 5})]
    run()
    for result in results:
        assert backend().get_result(result.id).return_value == 6
    assert [result.task for result in results] == [task, sample.add]


def test_the_backends_own_method_checks_both_kinds_of_tasks(django_task, settings):
    tasks = [django_task(add, queue_name="emails"), sample.add.using(queue_name="emails")]
    for task in tasks:
        backend().validate_task(task)
    settings.NOBROKER = {**settings.NOBROKER, "QUEUES": {"default": {}}}
    for task in tasks:
        with pytest.raises(compat.InvalidTask, match="emails"):
            backend().validate_task(task)
        with pytest.raises(compat.InvalidTask, match="emails"):
            backend().enqueue(task, [1], {})


@pytest.mark.contract("DJ-07")
def test_results_of_both_kinds_of_tasks_are_found_by_both(django_task):
    task = django_task(sample.add.function)
    ours, djangos = sample.add.enqueue(1), task.enqueue(2)
    run()
    assert task.get_result(ours.id).return_value == sample.add.get_result(ours.id).return_value == 2
    assert task.get_result(djangos.id).return_value == sample.add.get_result(djangos.id).return_value == 3


def test_a_missing_result_is_djangos_error_and_ours(django_task):
    task = django_task(add)
    for look in (task.get_result, backend().get_result):
        for job_id in ("123", "x" * 300, 7):
            with pytest.raises(compat.TaskResultDoesNotExist):
                look(job_id)
    with pytest.raises(compat.TaskResultDoesNotExist):
        async_to_sync(task.aget_result)("123")
    result = sample.add.enqueue(1)
    get_queue().purge()
    with pytest.raises(compat.TaskResultDoesNotExist) as raised:
        result.refresh()
    assert isinstance(raised.value, JobNotFoundError)


def test_a_result_of_another_task_is_a_mismatch(django_task):
    result = django_task(add_later).enqueue(1)
    with pytest.raises(compat.TaskResultMismatch):
        django_task(add).get_result(result.id)


def test_a_job_that_is_no_call_of_a_known_task_is_a_mismatch():
    for payload in ("text", {"task": "subprocess.check_output", "args": [["exit"]], "kwargs": {}}):
        job = get_queue().enqueue(payload)
        with pytest.raises(compat.TaskResultMismatch, match="not known here"):
            backend().get_result(job.id)


def test_looking_for_a_result_creates_no_queue(settings):
    with pytest.raises(compat.TaskResultDoesNotExist):
        backend().get_result("123")
    with pytest.raises(compat.TaskResultDoesNotExist):
        backend().get_result(123)
    assert not settings.NOBROKER["DIR"].exists()


# --- what went wrong


@pytest.mark.parametrize(("function", "kind"), [(fail, ValueError), (leave, SystemExit)])
def test_a_failure_is_told_with_its_class_and_traceback(django_task, function, kind):
    result = django_task(function).using(max_attempts=1).enqueue()
    run()
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 1)
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    (error,) = result.errors
    assert issubclass(type(error), compat.TaskError)
    assert (error.exception_class, error.exception_class_path) == (kind, f"builtins.{kind.__name__}")
    assert error.traceback.endswith(f"{kind.__name__}: {error.message}\n")
    assert (error.attempt, error.error_class) == (1, kind.__name__)
    assert result.finished_at.timestamp() == pytest.approx(error.at)


def test_a_job_that_waits_for_another_attempt_is_ready_and_keeps_its_errors(django_task, settings):
    settings.NOBROKER = {**settings.NOBROKER, "BACKOFF": {"BASE": 0}}
    result = django_task(fail).using(max_attempts=2).enqueue()
    execute(get_queue(), get_queue().lease_one())
    result.refresh()
    assert (result.status, result.is_finished, result.attempts, len(result.errors)) == ("READY", False, 1, 1)
    run()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 2, 2)


ME = f"{socket.gethostname()}:{os.getpid()}"


def test_worker_ids_are_those_of_the_attempts_in_their_order(django_task, settings, monkeypatch):
    settings.NOBROKER = {**settings.NOBROKER, "BACKOFF": {"BASE": 0}}
    seen, names = [], iter(["one:1", "two:2", "three:3"])

    def work(context):
        seen.append(context.task_result.worker_ids)
        if context.attempt < 3:
            raise ValueError

    def look(sender, task_result, **kwargs):
        seen.append(task_result.worker_ids)

    result = our_task(name="three attempts", takes_context=True)(work).enqueue()
    assert result.worker_ids == []
    compat.task_finished.connect(look)
    try:
        while (job := get_queue().lease_one()) is not None:
            name = next(names)
            monkeypatch.setattr("nobroker_django.execution.this_worker", lambda name=name: name)
            execute(get_queue(), job)
    finally:
        compat.task_finished.disconnect(look)
        registry.unregister(registry.find("three attempts"))
    assert seen == [["one:1"], ["one:1", "two:2"], *[["one:1", "two:2", "three:3"]] * 2]
    for look_again in (result.refresh, lambda: get_queue().compact() and result.refresh()):
        look_again()
        assert (result.worker_ids, result.attempts) == (["one:1", "two:2", "three:3"], 3)


def test_who_has_lost_the_job_does_not_take_its_next_attempt_for_its_own(django_task, make):
    seen = []

    def work(context):
        result = context.task_result
        get_queue().nack(result.id, error="the lease ran out", delay=0)
        get_queue().lease_one()
        result.refresh()
        seen.append((str(result.status), result.attempts, result.worker_ids))

    make(work, takes_context=True).enqueue()
    execute(get_queue(), get_queue().lease_one())
    assert seen == [("RUNNING", 2, [])]


def test_an_attempt_whose_worker_could_not_tell_its_end_has_no_worker_id(django_task):
    result = django_task(add).using(max_attempts=3).enqueue(1)
    get_queue().nack(get_queue().lease_one(), error="worker died: killed", delay=0)
    leased = get_queue().lease_one()
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == ("RUNNING", 2, [])
    execute(get_queue(), leased)
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == ("SUCCESSFUL", 2, [ME])


def test_an_attempt_that_ended_without_an_exception_has_a_class_too(django_task):
    result = django_task(add).using(max_attempts=1).enqueue(1)
    get_queue().nack(get_queue().lease_one(), error="worker died: killed")
    result.refresh()
    assert (result.errors[0].exception_class, result.errors[0].traceback) == (NoException, "worker died: killed")


def test_a_class_that_is_gone_and_one_that_is_none_are_said(django_task):
    result = django_task(fail).using(max_attempts=1).enqueue()
    run()
    result.refresh()
    for path, error in (("does.not.exist", ImportError), ("subprocess.run", ValueError)):
        with pytest.raises(error):
            _ = dataclasses.replace(result.errors[0], exception_class_path=path).exception_class


def test_a_return_value_that_json_would_change_is_a_failure(django_task):
    result = django_task(bytes_back).using(max_attempts=1).enqueue()
    run()
    result.refresh()
    assert result.status == "FAILED"
    assert "return value cannot be stored" in result.errors[0].traceback


@pytest.mark.parametrize("value", [b"bytes", float("nan"), {1: 2}, datetime(2026, 1, 1), object()])
def test_arguments_that_json_would_change_are_refused_where_django_changes_them(django_task, value):
    with pytest.raises(SerializationError, match="parameter 'a'"):
        django_task(add).enqueue(value)
    assert get_queue().stats().total == 0


def test_arguments_that_do_not_fit_are_refused_at_the_call(django_task):
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"c": 2})):
        with pytest.raises(TaskArgumentError):
            django_task(add).enqueue(*args, **kwargs)
    with pytest.raises(TypeError):
        async_to_sync(django_task(add).aenqueue)()


# --- options


def test_using_makes_an_equal_task_and_keeps_what_was_chosen(django_task):
    task = django_task(add)
    assert task.using() == task
    assert task.using() is not task
    now = timezone.now()
    chosen = task.using(run_after=now).using(priority=10).using(queue_name="emails")
    assert (chosen.run_after, chosen.priority, chosen.queue_name) == (now, 10, "emails")
    assert (task.run_after, task.priority, task.queue_name) == (None, 0, "default")


def test_what_using_chose_is_in_the_job_and_in_its_result(django_task):
    task = django_task(add)
    result = task.using(priority=7, queue_name="emails", job_id="mine", max_attempts=9, visibility_timeout=70).enqueue(
        1
    )
    job = get_queue("emails").get("mine")
    assert (job.priority, job.max_attempts, job.visibility_timeout, result.id) == (7, 9, 70, "mine")
    found = task.get_result("mine")
    assert (found.task.priority, found.task.queue_name, found.task.func) == (7, "emails", add)
    assert task.using(job_id="mine", queue_name="emails").enqueue(1).created is False


@pytest.mark.parametrize("wrong", [-101, 101, 3.1, True, "5"])
def test_a_priority_outside_is_refused(django_task, wrong):
    with pytest.raises(compat.InvalidTask, match="priority"):
        django_task(add).using(priority=wrong)


def test_priorities_decide_the_order(django_task):
    task = django_task(add)
    for priority in (0, -100, 100):
        task.using(priority=priority).enqueue(priority)
    assert [get_queue().lease_one().payload["args"] for _ in range(3)] == [[100], [0], [-100]]


def test_run_after_is_an_aware_datetime_or_a_timedelta(django_task):
    task = django_task(add)
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    first = task.using(run_after=moment).enqueue(1)
    before = time.time()
    second = task.using(run_after=timedelta(hours=1)).enqueue(1)
    third = task.using(delay=3600).enqueue(1)
    assert get_queue().get(first.id).available_at == pytest.approx(moment.timestamp(), abs=0.001)
    for result in (second, third):
        assert before + 3600 <= get_queue().get(result.id).available_at <= time.time() + 3600
    assert run() == []
    assert [result.task.run_after for result in (first, second)] == [
        moment,
        datetime.fromtimestamp(get_queue().get(second.id).available_at, UTC),  # what Django's tasks have there
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"run_after": datetime(2030, 1, 1)},
        {"run_after": timedelta(seconds=-1)},
        {"delay": -1},
        {"delay": 1, "run_after": timedelta(1)},
        {"queue_name": "emial"},
        {"queue_name": "a.b"},
        {"max_attempts": 0},
        {"visibility_timeout": 0},
        {"job_id": ""},
        {"on_commit": "yes"},
    ],
)
def test_a_wrong_option_is_djangos_error_and_says_which(django_task, options):
    with pytest.raises(compat.InvalidTask, match="|".join(options)):
        django_task(add).using(**options)


def test_an_option_that_there_is_not_is_a_type_error(django_task):
    with pytest.raises(TypeError, match="'retries'"):
        django_task(add).using(retries=3)


def test_an_unknown_queue_is_refused_when_the_task_is_made_and_at_the_enqueue(django_task, settings):
    """C87: both moments, also when the queue went away in between."""
    with pytest.raises(compat.InvalidTask, match="did you mean 'emails'"):
        django_task(add, queue_name="emial")
    task = django_task(add, queue_name="emails")
    settings.NOBROKER = {"DIR": settings.NOBROKER["DIR"]}
    for enqueue in (task.enqueue, async_to_sync(task.aenqueue)):
        with pytest.raises(compat.InvalidTask, match="emails"):
            enqueue(1)


def test_wrong_settings_do_not_break_the_import_of_tasks_but_the_enqueue(django_task, settings):
    settings.NOBROKER = {"DIRR": 1}
    task = django_task(add)
    with pytest.raises(ImproperlyConfigured, match="DIRR"):
        task.enqueue(1)


@needs_options
def test_djangos_decorator_takes_our_options(django_task):
    task = django_task(
        fail,
        priority=3,
        queue_name="emails",
        max_attempts=2,
        backoff={"base": 100, "jitter": 0.0},
        visibility_timeout=60,
        soft_time_limit=10,
        time_limit=timedelta(seconds=20),
        name="failing",
        aliases=["failing.before"],
    )
    assert (task.name, task.task_name) == ("fail", "failing")
    entry = registry.find("failing.before")
    assert (entry.name, entry.limits.soft, entry.limits.hard) == ("failing", 10, 20)
    result = task.enqueue()
    job = get_queue("emails").get(result.id)
    assert (job.payload["task"], job.max_attempts, job.visibility_timeout) == ("failing", 2, 60)
    (report,) = run("emails")
    assert 99 < report.retry_in <= 100


@needs_options
def test_an_option_that_is_none_is_named_with_those_that_there_are(django_task):
    with pytest.raises(
        TypeError, match=r"^@task takes no 'foo'; with a backend of nobroker_django it takes aliases, .*"
    ):
        django_task(add, foo=1)


@needs_options
@pytest.mark.parametrize(
    "options",
    [
        {"backoff": {"bse": 1}},
        {"max_attempts": "3"},
        {"time_limit": 0},
        {"soft_time_limit": 5, "time_limit": 5},
        {"name": ""},
        {"aliases": "text"},
    ],
)
def test_a_wrong_option_of_the_decorator_is_djangos_error(django_task, options):
    with pytest.raises(compat.InvalidTask):
        django_task(add, **options)


def test_run_after_is_for_using_not_for_the_decorator(django_task):
    with pytest.raises(TypeError):
        django_task(add, run_after=timezone.now())


def test_functions_that_no_worker_could_find_are_refused(django_task):
    def inner():
        pass

    for function in (any, inner, lambda: None):
        with pytest.raises(compat.InvalidTask):
            django_task(function)


def test_an_annotation_that_cannot_work_is_djangos_error(django_task):
    with pytest.raises(compat.InvalidTask, match=r"parameter 'key': its annotation .* cannot work"):
        django_task(with_a_key)


def with_a_key(key: str | uuid.UUID) -> None: ...


def test_two_tasks_of_one_name_are_refused(django_task, make):
    make(lambda: None, name=f"{__name__}.add")
    with pytest.raises(compat.InvalidTask, match="already belongs to"):
        django_task(add)


# --- context


@pytest.mark.contract("DJ-07")
def test_a_task_that_takes_its_context_gets_djangos(django_task):
    result = django_task(with_context, takes_context=True).enqueue("x")
    later = django_task(with_context_later, takes_context=True).enqueue("y")
    run()
    result.refresh()
    later.refresh()
    assert result.return_value == [1, "x", result.id, "RUNNING", result.id]
    assert later.return_value == [1, "y", later.id]


def test_the_context_is_not_the_callers_to_give(django_task):
    with pytest.raises(TaskArgumentError):
        django_task(with_context, takes_context=True).enqueue("x", "y")


def test_a_task_without_a_parameter_for_the_context_is_refused(django_task):
    with pytest.raises(compat.InvalidTask, match="context"):
        django_task(add, takes_context=True)


# --- transactions


@pytest.mark.django_db(transaction=True)
@pytest.mark.contract("DJ-02")
def test_a_job_of_djangos_task_waits_for_the_commit(django_task):
    """C43: the id is there at once, and looking for it before the commit is the error that says so."""
    task = django_task(add)
    with transaction.atomic():
        result = task.enqueue(1, b=2)
        assert (result.created, result.enqueued_at, result.args, result.kwargs) == (None, None, [1], {"b": 2})
        kept = result.id
        with pytest.raises(compat.TaskResultDoesNotExist):
            task.get_result(result.id)
        with pytest.raises(compat.TaskResultDoesNotExist):
            result.refresh()
    assert (result.created, result.id) == (True, kept)
    assert result.enqueued_at is not None
    assert task.get_result(kept) == result


@pytest.mark.django_db(transaction=True)
def test_a_job_of_djangos_task_is_never_seen_after_a_rollback(django_task):
    """C40, C43: also of a savepoint; the lookup is the defined error."""
    task = django_task(add)
    with transaction.atomic():
        try:
            with transaction.atomic():
                result = task.enqueue(1)
                raise RuntimeError
        except RuntimeError:
            pass
    with pytest.raises(compat.TaskResultDoesNotExist):
        task.get_result(result.id)
    assert get_queue().stats().total == 0


@pytest.mark.django_db(transaction=True)
def test_on_commit_false_stores_it_at_once(django_task):
    with transaction.atomic():
        assert django_task(add).using(on_commit=False).enqueue(1).created is True


# --- copies


def test_results_can_be_copied_compared_and_used_as_keys():
    result = sample.add.enqueue(1)
    assert copy.deepcopy(result) == result
    assert result != "text"
    assert len({result, backend().get_result(result.id)}) == 1
    shown = dataclasses.asdict(result)  # type: ignore[call-overload]
    assert (shown["id"], shown["status"], shown["args"]) == (result.id, "READY", [1])
    run()
    assert backend().get_result(result.id) != result


def test_results_and_tasks_of_ours_can_be_pickled():
    chosen = sample.add.using(priority=3)
    again = pickle.loads(pickle.dumps(chosen))
    assert (again.function, again.options) == (sample.add.function, chosen.options)
    result = chosen.enqueue(1)
    assert pickle.loads(pickle.dumps(result)).id == result.id


# --- ours where Django's is expected


def test_a_task_of_ours_has_what_djangos_have():
    task = sample.send
    assert (task.func, task.module_path, task.priority, task.queue_name) == (
        sample.send.function, f"{sample.__name__}.send", 5, "emails"
    )  # fmt: skip
    assert (task.run_after, task.takes_context, task.backend) == (None, False, "default")
    assert task.get_backend() == backend()
    assert task.using(delay=60).run_after == timedelta(seconds=60)
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert task.using(run_after=moment).run_after == moment
    assert task.call("a") == async_to_sync(task.acall)("a") == "a"
    later = our_task(name="later")(add_later)
    assert later.call(1) == async_to_sync(later.acall)(1) == 2
    registry.unregister(later)


def test_a_job_names_its_task_by_path_and_is_found_though_nobody_imported_it(tmp_path, monkeypatch):
    """A worker imports the module that the job names, of Django's tasks and of ours, also of coroutine functions."""
    source = f"from {compat.SOURCE} import task\n@task\nasync def work(a):\n    return a\n"
    (tmp_path / "far_away_tasks.py").write_text(source)
    (tmp_path / "our_far_away_tasks.py").write_text(source.replace(compat.SOURCE, "nobroker_django"))
    (tmp_path / "broken_tasks.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("far_away_tasks.work", "our_far_away_tasks.work")
    good = [get_queue().enqueue({"task": name, "args": [5], "kwargs": {}}) for name in names]
    bad = get_queue().enqueue({"task": "broken_tasks.work", "args": [5], "kwargs": {}})
    other = get_queue().enqueue({"task": "os.getcwd", "args": [], "kwargs": {}})
    reports = {report.job_id: report for report in run()}
    assert [get_queue().get(job.id).result for job in good] == [5, 5]
    assert "UnknownTaskError" in reports[bad.id].error
    assert "UnknownTaskError" in reports[other.id].error
    assert get_queue().get(bad.id).state is JobState.READY
    for name in names:
        registry.unregister(registry.find(name))


def test_a_task_of_another_backend_that_was_sent_to_ours_is_found(tmp_path, monkeypatch, settings):
    dummy = f"{compat.SOURCE}.backends.dummy.DummyBackend"
    settings.TASKS = {"default": {"BACKEND": dummy}, "ours": {"BACKEND": BACKEND}}
    (tmp_path / "other_tasks.py").write_text(f"from {compat.SOURCE} import task\n@task\ndef work(a):\n    return a\n")
    monkeypatch.syspath_prepend(tmp_path)
    from other_tasks import work  # type: ignore[import-not-found]

    result = work.using(backend="ours").enqueue(5)
    assert (result.backend, result.created) == ("ours", True)
    registry.unregister(registry.find("other_tasks.work"))  # as in a worker, which has imported it at most
    assert [report.error for report in run()] == [""]
    found = compat.task_backends["ours"].get_result(result.id)
    assert (found.return_value, found.backend) == (5, "ours")
    registry.unregister(registry.find("other_tasks.work"))


def test_a_result_names_the_backend_that_was_asked(django_task, settings):
    settings.TASKS = {**settings.TASKS, "second": {"BACKEND": BACKEND}}
    result = django_task(add).enqueue(1)
    assert (result.backend, compat.task_backends["second"].get_result(result.id).backend) == ("default", "second")
