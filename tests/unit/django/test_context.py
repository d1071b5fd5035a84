"""``takes_context``: Django's ``TaskContext`` before the arguments, for tasks of our decorator as for Django's."""

import asyncio
import datetime
import inspect
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError
from django.db import transaction

import nobroker_django
from nobroker_django import InvalidOptionError, TaskArgumentError, TaskContext, compat, current_job, task
from nobroker_django.execution import execute
from nobroker_django.outbox.models import OutboxRow
from nobroker_django.queues import get_queue
from nobroker_django.testing import run_jobs

from .test_backend import backend, django_task
from .test_commands import run

__all__ = ["django_task"]
needs_framework = pytest.mark.skipif(not compat.AVAILABLE, reason="this Django has no task framework")
DAY = datetime.date(2026, 1, 2)


@task(takes_context=True)
def told(context: TaskContext, day: datetime.date, *days: datetime.date, note: str = "") -> list[object]:
    assert type(context) is compat.TaskContext
    assert all(isinstance(one, datetime.date) for one in (day, *days))
    result = context.task_result
    result.refresh()
    return [context.attempt, result.id, str(result.status), current_job().job_id, day.isoformat(), len(days), note]


@task(takes_context=True)
async def told_later(context: TaskContext, number: int) -> list[object]:
    await asyncio.sleep(0)
    await context.task_result.arefresh()
    return [context.attempt, context.task_result.id, number]


@task(takes_context=True)
def fails_first(context, /):
    if context.attempt == 1:
        raise ValueError("not yet")
    return [context.attempt, len(context.task_result.errors)]


def plain(context, number):
    return [context.attempt, context.task_result.id, number]


def only_by_name(*, context):
    pass


@pytest.fixture
def immediate(settings):
    settings.NOBROKER = {**settings.NOBROKER, "IMMEDIATE": True}
    return settings


def expected(result, *rest):
    return [1, result.id, "RUNNING", result.id, "2026-01-02", *rest]


def test_the_class_is_djangos_where_there_is_one_and_else_the_same():
    assert nobroker_django.TaskContext is compat.TaskContext
    context = TaskContext(task_result=told.enqueue(DAY))
    assert context.attempt == 0
    with pytest.raises(AttributeError):
        context.task_result = None
    with pytest.raises(TypeError):
        TaskContext(told.enqueue(DAY))  # type: ignore[call-arg]


@pytest.mark.contract("DJ-01")
def test_every_way_to_enqueue_leaves_the_context_to_the_worker():
    results = [
        told.enqueue(DAY, DAY, note="x"),
        async_to_sync(told.aenqueue)(DAY, DAY, note="x"),
        *told.enqueue_many([told.s(DAY, DAY, note="x")]),
        told.using(priority=3).enqueue(day=DAY, note="x"),
    ]
    assert get_queue().get(results[0].id).payload["args"] == ["2026-01-02", "2026-01-02"]
    assert {report.error for report in run_jobs()} == {""}
    counts = (1, 1, 1, 0)
    assert [told.get_result(result.id).return_value for result in results] == [
        expected(result, count, "x") for result, count in zip(results, counts, strict=True)
    ]


def test_a_coroutine_function_gets_it_too():
    result = told_later.enqueue(5)
    assert [report.error for report in run_jobs()] == [""]
    assert told_later.get_result(result.id).return_value == [1, result.id, 5]


def test_it_knows_the_attempt_and_what_went_wrong_before():
    result = fails_first.enqueue()
    run_jobs(delayed=True)
    assert fails_first.get_result(result.id).return_value == [2, 1]


@pytest.mark.contract("DJ-04")
def test_it_is_not_the_callers_to_give():
    context = TaskContext(task_result=told.enqueue(DAY))
    stored = get_queue().stats().total
    wrong: list[tuple[Any, Any]] = [((context, DAY), {}), ((DAY,), {"context": context}), ((), {})]
    for args, kwargs in wrong:
        for refuse in (told.enqueue, told.s):
            with pytest.raises(TaskArgumentError, match=r"told\(day: datetime.date, \*days|parameter 'day'"):
                refuse(*args, **kwargs)
    assert get_queue().stats().total == stored


def test_who_calls_the_function_gives_it(make):
    result = told.enqueue(DAY)
    context = TaskContext(task_result=result)
    assert inspect.signature(told).parameters.keys() == {"context", "day", "days", "note"}
    called = make(plain, takes_context=True)
    for call in (called, called.call, async_to_sync(called.acall), told_later.call):
        assert call(context, 1) == [0, result.id, 1]
    assert asyncio.run(told_later(context, 1)) == [0, result.id, 1]


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda a, context: None, lambda *context: None, lambda **context: None, only_by_name],
)
def test_a_function_without_a_parameter_for_it_is_refused_at_the_decoration(function):
    with pytest.raises(InvalidOptionError, match=r"takes_context.*the first parameter of odd.* has to be 'context'"):
        task(takes_context=True, name="odd")(function)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_it_is_true_or_false(value):
    with pytest.raises(InvalidOptionError, match="takes_context"):
        task(takes_context=value)


@pytest.mark.contract("DJ-01", "DJ-04")
def test_callers_cannot_give_it_among_arguments_of_any_name(make):
    def work(context, **others):
        return others

    def by_position(context, /, **others):
        return others

    made = make(work, takes_context=True)
    for call in (made.enqueue, made.s):
        with pytest.raises(TaskArgumentError, match=r"unexpected keyword argument 'context'\. Nothing was stored"):
            call(context=1, a=2)
    assert get_queue().stats().total == 0
    made.enqueue(a=2)
    make(by_position, name="by position", takes_context=True).enqueue(context=1)
    assert [report.error for report in run_jobs()] == ["", ""]
    assert [job.result for job in get_queue().list_jobs()] == [{"a": 2}, {"context": 1}]


@pytest.mark.contract("DJ-05")
def test_a_stored_call_that_gives_it_fails_as_one_that_does_not_fit(make):
    made = make(lambda context, **others: None, name="work", takes_context=True)
    get_queue().enqueue({"task": made.name, "args": [], "kwargs": {"context": 1}}, max_attempts=1)
    assert ["unexpected keyword argument 'context'" in report.error for report in run_jobs()] == [True]


def test_the_key_of_unique_work_is_made_of_the_other_arguments(make):
    unique = make(lambda context, a, b=1: a, takes_context=True, unique=True)
    assert [unique.enqueue(1).created, unique.enqueue(a=1, b=1).created, unique.enqueue(2).created] == [
        True, False, True
    ]  # fmt: skip
    by_function = make(lambda context, a: a, name="f", takes_context=True, unique=lambda a: f"key {a}")
    assert by_function.enqueue(1).created is True
    assert by_function.enqueue(1).created is False
    with pytest.raises(InvalidOptionError, match="has no parameter 'context'"):
        make(lambda context, a: a, name="g", takes_context=True, unique=["context"])


def test_a_call_by_hand_leaves_it_to_the_worker_too():
    run("nobroker_enqueue", told.name, "--args", '["2026-01-02"]', "--kwargs", '{"note": "by hand"}')
    with pytest.raises(CommandError, match="day"):
        run("nobroker_enqueue", told.name, "--args", '[{}, "2026-01-02"]')
    assert [report.error for report in run_jobs()] == [""]
    [job] = get_queue().list_jobs()
    assert job.result[4:] == ["2026-01-02", 0, "by hand"]


def test_it_is_there_without_a_queue(immediate):
    result = told.enqueue(DAY)
    assert result.return_value == expected(result, 0, "")
    later = told_later.enqueue(5)
    assert later.return_value == [1, later.id, 5]
    assert not immediate.NOBROKER["DIR"].exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outbox", [False, True])
def test_a_job_of_a_transaction_has_it_too(settings, outbox):
    settings.NOBROKER = {**settings.NOBROKER, "OUTBOX": outbox}
    with transaction.atomic():
        result = told.enqueue(DAY)
        assert OutboxRow.objects.count() == int(outbox)
    run_jobs()
    assert told.get_result(result.id).return_value == expected(result, 0, "")


@needs_framework
@pytest.mark.contract("DJ-07")
def test_the_same_function_under_both_decorators(django_task, make, settings):
    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.NobrokerBackend"}}
    djangos = django_task(plain, takes_context=True)
    ours = make(plain, name="ours", takes_context=True)
    assert (djangos.takes_context, ours.takes_context) == (True, True)
    results = [djangos.enqueue(1), ours.enqueue(1), backend().enqueue(ours, [1], {})]
    for _ in results:
        assert execute(get_queue(), get_queue().lease_one()).error == ""
    for result in results:
        result.refresh()
        assert result.return_value == [1, result.id, 1]


@needs_framework
def test_the_last_decoration_of_a_function_says_whether_it_takes_one(django_task, settings):
    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.NobrokerBackend"}}
    django_task(plain)
    result = django_task(plain, takes_context=True).enqueue(1)
    run_jobs()
    result.refresh()
    assert result.return_value == [1, result.id, 1]


@needs_framework
def test_djangos_decorator_refuses_a_context_that_can_only_be_named(django_task, settings):
    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.NobrokerBackend"}}
    with pytest.raises(compat.InvalidTask, match="context"):
        django_task(only_by_name, takes_context=True)


@needs_framework
@pytest.mark.parametrize("kind", ["ours", "djangos"])
def test_the_immediate_backend_gives_a_result_that_can_be_looked_at_again(settings, django_task, make, kind):
    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.ImmediateBackend"}}
    given = told if kind == "ours" else django_task(told.function, takes_context=True)
    result = backend().enqueue(given, [DAY], {})
    assert result.errors == []
    assert result.return_value == expected(result, 0, "")
