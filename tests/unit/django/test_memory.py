"""Jobs without a queue: ``IMMEDIATE``, and the Immediate and Dummy backends."""

import asyncio
import datetime
import os
import socket
import uuid

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from nobroker_django import (
    InvalidOptionError,
    JobConflictError,
    JobNotFoundError,
    SerializationError,
    TaskArgumentError,
    compat,
    memory,
)
from nobroker_django.outbox.models import OutboxRow
from nobroker_django.queues import get_queue
from nobroker_django.results import JobResult

from . import sample
from .test_announcing import heard, words
from .test_backend import (
    add,
    add_later,
    backend,
    bytes_back,
    django_task,
    fail,
    leave,
    needs_options,
    with_context,
    with_context_later,
)

__all__ = ["django_task", "heard"]
needs_framework = pytest.mark.skipif(not compat.AVAILABLE, reason="this Django has no task framework")


@pytest.fixture
def immediate(settings):
    settings.NOBROKER = {**settings.NOBROKER, "IMMEDIATE": True}
    return settings


@pytest.fixture
def immediate_backend(settings):
    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.ImmediateBackend"}}
    return settings


@pytest.fixture
def dummy(settings):
    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.DummyBackend"}}
    return settings


# --- IMMEDIATE


@pytest.mark.contract("DJ-04")
def test_a_job_runs_at_the_call_and_no_queue_is_made(immediate):
    result = sample.add.enqueue(1, b=2)
    assert (result.status, result.return_value, result.created, result.attempts) == ("SUCCESSFUL", 3, True, 1)
    assert result.finished_at >= result.started_at >= result.enqueued_at
    result.refresh()
    assert result.wait(timeout=0).return_value == sample.add.get_result(result.id).return_value == 3
    assert not immediate.NOBROKER["DIR"].exists()


@pytest.mark.contract("DJ-04")
def test_what_production_refuses_is_refused(immediate):
    with pytest.raises(TaskArgumentError):
        sample.add.enqueue()  # type: ignore[call-arg]
    with pytest.raises(SerializationError, match=r"values\[0\]"):
        sample.keep.enqueue(b"x")
    with pytest.raises(SerializationError):
        sample.keep.enqueue("x" * (8 * 1024 * 1024))
    with pytest.raises(InvalidOptionError, match="emial"):
        sample.add.using(queue_name="emial").enqueue(1)
    with pytest.raises(InvalidOptionError, match="database"):
        sample.add.using(database="none").enqueue(1)
    with pytest.raises(InvalidOptionError, match="no call"):
        sample.add.enqueue_many([sample.keep.s(1)])


@pytest.mark.contract("DJ-04")
def test_arguments_and_return_values_go_through_json(immediate, make):
    """What only works because nothing was serialised does not work here either."""
    given = {"a": [1, (2, 3)]}
    result = sample.keep.enqueue(given)
    assert result.return_value == [[{"a": [1, [2, 3]]}], {}]
    given["a"].clear()
    assert result.args == [{"a": [1, [2, 3]]}]

    def typed(day: datetime.date, key: uuid.UUID) -> datetime.date:
        assert isinstance(key, uuid.UUID)
        return day

    day = datetime.date(2026, 1, 2)
    assert make(typed).enqueue(day, uuid.uuid4()).return_value == day
    failed = make(lambda: object(), name="objects").enqueue()
    assert "return value cannot be stored" in failed.errors[0].message


def test_a_failure_raises_nothing_and_is_tried_once(immediate, make):
    result = make(fail).enqueue()
    assert (result.status, result.attempts, result.errors[0].exception_class) == ("FAILED", 1, ValueError)


def test_who_interrupts_the_program_interrupts_it(immediate, make):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(interrupted).enqueue()


def test_an_id_is_one_job(immediate):
    first = sample.add.using(job_id="x").enqueue(1)
    again = sample.add.using(job_id="x").enqueue(1)
    assert (first.created, again.created, again.status) == (True, False, "SUCCESSFUL")
    with pytest.raises(JobConflictError):
        sample.add.using(job_id="x").enqueue(2)
    assert sample.send.using(job_id="x").enqueue("a").created is True  # of another queue


def test_unique_work_that_has_succeeded_is_new_and_what_has_failed_keeps_its_key(immediate, make):
    good = make(lambda a: a, name="good", unique=True)
    assert [good.enqueue(1).created for _ in range(2)] == [True, True]
    bad = make(lambda a: a / 0, name="bad", unique=True)
    assert [(result.created, result.status) for result in (bad.enqueue(1), bad.enqueue(1))] == [
        (True, "FAILED"), (False, "FAILED")
    ]  # fmt: skip
    ran = []
    once = make(lambda a, b: ran.append(b), name="once", unique=["a"])
    results = once.enqueue_many([once.s(1, "first"), once.s(1, "second"), once.s(2, "third")])
    assert [result.created for result in results] == [True, False, True]
    assert ran == ["first", "third"]


def test_many_run_in_their_order(immediate):
    results = sample.add.enqueue_many(sample.add.s(number) for number in range(3))
    assert [result.return_value for result in results] == [1, 2, 3]


def test_a_delayed_job_does_not_wait(immediate):
    assert sample.add.using(delay=3600).enqueue(1).return_value == 2


def test_a_coroutine_function_runs_from_everywhere(immediate, make):
    task = make(add_later)
    assert task.enqueue(1).return_value == 2

    async def awaiting():
        return (await task.aenqueue(1)).return_value

    async def calling():
        await asyncio.sleep(0)
        return task.enqueue(1).return_value

    assert async_to_sync(awaiting)() == 2
    assert asyncio.run(calling()) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.contract("DJ-02")
def test_in_a_transaction_it_runs_at_the_commit(immediate):
    with transaction.atomic():
        result = sample.add.enqueue(1)
        assert (result.status, result.created) == ("READY", None)
        with pytest.raises(JobNotFoundError):
            result.refresh()
        assert sample.add.using(on_commit=False).enqueue(5).return_value == 6
    assert (result.status, result.return_value) == ("SUCCESSFUL", 2)


@pytest.mark.django_db(transaction=True)
def test_the_outbox_is_for_queues(immediate):
    immediate.NOBROKER = {**immediate.NOBROKER, "OUTBOX": True}
    with transaction.atomic():
        result = sample.add.enqueue(1)
        assert OutboxRow.objects.count() == 0
    assert result.return_value == 2
    assert not immediate.NOBROKER["DIR"].exists()


@pytest.mark.django_db(transaction=True)
def test_after_a_rollback_it_never_runs(immediate):
    with transaction.atomic():
        result = sample.add.enqueue(1)
        transaction.set_rollback(True)
    with pytest.raises(JobNotFoundError):
        result.refresh()


def test_the_oldest_are_forgotten(immediate, monkeypatch):
    monkeypatch.setattr(memory, "MOST", 2)
    results = [sample.add.enqueue(number) for number in range(3)]
    assert sample.add.get_result(results[2].id).return_value == 3
    with pytest.raises(JobNotFoundError):
        sample.add.get_result(results[0].id)


def test_another_setting_is_another_memory(immediate):
    result = sample.add.enqueue(1)
    immediate.NOBROKER = dict(immediate.NOBROKER)
    with pytest.raises(JobNotFoundError):
        sample.add.get_result(result.id)


@needs_framework
def test_the_backend_for_queues_runs_its_tasks_at_the_call_too(immediate, django_task):
    immediate.TASKS = {"default": {"BACKEND": "nobroker_django.backend.NobrokerBackend"}}
    task = django_task(add)
    result = task.enqueue(1, b=3)
    assert (result.status, result.return_value) == ("SUCCESSFUL", 4)
    assert task.get_result(result.id) == backend().get_result(result.id) == result
    with pytest.raises(compat.TaskResultDoesNotExist):
        backend().get_result("123")
    assert not immediate.NOBROKER["DIR"].exists()


# --- the Immediate backend


@needs_framework
@pytest.mark.parametrize("function", [add, add_later])
def test_the_immediate_backend_runs_a_job_at_the_call(immediate_backend, django_task, heard, function):
    task = django_task(function)
    for result in (task.enqueue(1, b=3), async_to_sync(task.aenqueue)(1, b=3)):
        assert isinstance(result, JobResult)
        assert (result.status, result.return_value, result.attempts, result.is_finished) == ("SUCCESSFUL", 4, 1, True)
        assert (result.args, result.kwargs, result.task, result.backend) == ([1], {"b": 3}, task, "default")
        assert backend().get_result(result.id) == task.get_result(result.id) == result
        result.refresh()
        assert result.worker_ids == [f"{socket.gethostname()}:{os.getpid()}"]
    assert words(heard) == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")] * 2
    assert {sender for _, sender, _, _ in heard} == {type(backend())}
    assert type(backend()).__name__ == "ImmediateBackend"


@needs_framework
@pytest.mark.parametrize(("function", "kind"), [(fail, ValueError), (leave, SystemExit), (bytes_back, None)])
def test_failures_in_the_immediate_backend(immediate_backend, django_task, heard, function, kind):
    result = django_task(function).enqueue()
    assert (result.status, len(result.errors)) == ("FAILED", 1)
    assert kind is None or result.errors[0].exception_class is kind
    assert words(heard)[-1] == ("finished", "FAILED")


@needs_framework
def test_the_context_in_the_immediate_backend(immediate_backend, django_task):
    for function in (with_context, with_context_later):
        result = django_task(function, takes_context=True).enqueue("x")
        assert result.return_value[:3] == [1, "x", result.id]


@needs_framework
def test_its_jobs_are_in_no_queue_and_of_ours_in_theirs(immediate_backend, django_task):
    django_task(add).enqueue(1)
    assert not immediate_backend.NOBROKER["DIR"].exists()
    assert sample.add.enqueue(1).status == "READY"
    assert get_queue().stats().ready == 1


@needs_framework
@pytest.mark.parametrize("kind", ["ImmediateBackend", "DummyBackend"])
def test_a_task_of_ours_that_is_given_to_it_is_announced_by_it(settings, heard, kind):
    """Though no backend in ``TASKS`` announces what the task's own ``enqueue`` stores."""
    settings.TASKS = {"aside": {"BACKEND": f"nobroker_django.backend.{kind}"}}
    aside = compat.task_backends["aside"]
    result = aside.enqueue(sample.add, [1], {"b": 3})
    assert (result.backend, result.task, sample.add.backend) == ("aside", sample.add, "")
    runs = [("started", "RUNNING"), ("finished", "SUCCESSFUL")] if kind == "ImmediateBackend" else []
    assert words(heard) == [("enqueued", "READY"), *runs]
    assert {(sender, job_id) for _, sender, _, job_id in heard} == {(type(aside), result.id)}


# --- the Dummy backend


@needs_framework
@pytest.mark.parametrize("function", [add, add_later])
def test_the_dummy_backend_keeps_what_was_enqueued(dummy, django_task, heard, function):
    task = django_task(function)
    result = task.using(priority=3).enqueue(1, b=3)
    assert (result.status, result.is_finished, result.attempts) == ("READY", False, 0)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    assert backend().results == [result]
    assert (backend().results[0].task.priority, backend().get_result(result.id)) == (3, result)
    result.refresh()
    assert words(heard) == [("enqueued", "READY")]
    backend().clear()
    assert backend().results == []
    with pytest.raises(compat.TaskResultDoesNotExist):
        backend().get_result(result.id)


@needs_framework
@pytest.mark.parametrize("kind", ["ImmediateBackend", "DummyBackend"])
def test_both_check_what_production_checks(settings, django_task, kind):
    settings.TASKS = {"default": {"BACKEND": f"nobroker_django.backend.{kind}"}}
    task = django_task(add)
    with pytest.raises(SerializationError):
        task.enqueue(float("nan"))
    with pytest.raises(TaskArgumentError):
        task.enqueue()
    for options in ({"priority": 101}, {"queue_name": "emial"}, {"max_attempts": 0}):
        with pytest.raises(compat.InvalidTask):
            task.using(**options)
    assert task.using(delay=5, run_after=None).enqueue(1).created is True


@needs_framework
@needs_options
@pytest.mark.parametrize("kind", ["ImmediateBackend", "DummyBackend"])
def test_both_take_our_options_of_the_decorator(settings, django_task, kind):
    settings.TASKS = {"default": {"BACKEND": f"nobroker_django.backend.{kind}"}}
    task = django_task(add, max_attempts=3, backoff={"base": 2.0}, time_limit=5, name="mine", aliases=["yours"])
    assert task.enqueue(1).task_name == "mine"


@needs_framework
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["ImmediateBackend", "DummyBackend"])
def test_both_wait_for_the_commit(settings, django_task, heard, kind):
    settings.TASKS = {"default": {"BACKEND": f"nobroker_django.backend.{kind}"}}
    task = django_task(add)
    with transaction.atomic():
        result = task.enqueue(1)
        assert (result.enqueued_at, heard) == (None, [])
    assert result.enqueued_at is not None
    assert result.status == ("SUCCESSFUL" if kind == "ImmediateBackend" else "READY")


def test_a_soft_time_limit_ends_a_job_here_too(immediate, make):
    def endless():
        while True:
            pass

    result = make(endless, soft_time_limit=0.01).enqueue()
    assert "SoftTimeLimitExceeded" in result.errors[0].error_class
