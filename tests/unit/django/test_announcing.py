"""Django's three task signals: who is told what, when, by whom, and what a receiver may do."""

import asyncio
import logging

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import TestCase

from nobroker_django import announcing, compat, current_job
from nobroker_django.execution import Outcome, execute
from nobroker_django.queues import get_queue

from . import sample
from .test_backend import add, add_later, backend, django_task, fail, run, tasks

__all__ = ["django_task", "tasks"]
pytestmark = pytest.mark.skipif(not compat.AVAILABLE, reason="this Django has no task framework")


@pytest.fixture
def heard():
    """What was announced: signal, sender and how the result stood then."""
    from nobroker_django import compat

    said = []
    signals = {"enqueued": compat.task_enqueued, "started": compat.task_started, "finished": compat.task_finished}
    receivers = []
    for name, signal in signals.items():

        def receive(sender, task_result, name=name, **kwargs):
            said.append((name, sender, str(task_result.status), task_result.id))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield said
    for signal, receive in receivers:
        signal.disconnect(receive)


def words(heard):
    return [(name, status) for name, _, status, _ in heard]


@pytest.mark.contract("DJ-07")
@pytest.mark.parametrize("function", [add, add_later])
def test_the_three_signals_come_from_the_backend_in_their_order(django_task, heard, function):
    result = django_task(function).enqueue(1)
    run()
    assert words(heard) == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    assert {(sender, job_id) for _, sender, _, job_id in heard} == {(type(backend()), result.id)}


@pytest.mark.contract("DJ-07")
def test_they_come_for_tasks_of_ours_too(heard):
    sample.add.enqueue(1)
    sample.add.enqueue_many([sample.add.s(2), sample.add.s(3)])
    async_to_sync(sample.add.aenqueue)(4)
    run()
    assert [name for name, _ in words(heard)] == ["enqueued"] * 4 + ["started", "finished"] * 4
    assert {sender for _, sender, _, _ in heard} == {type(backend())}


def test_without_a_backend_of_ours_nobody_is_told(heard, settings):
    settings.TASKS = {"default": {"BACKEND": f"{compat.SOURCE}.backends.dummy.DummyBackend"}}
    result = sample.add.enqueue(1)
    run()
    assert (heard, result.backend) == ([], "")


def test_a_backend_that_cannot_be_imported_is_no_matter_of_ours(heard, settings):
    settings.TASKS = {"broken": {"BACKEND": "does.not.exist"}, "none": {}, "mine": settings.TASKS["default"]}
    assert sample.add.enqueue(1).backend == "mine"
    assert words(heard) == [("enqueued", "READY")]


@pytest.mark.parametrize("kind", ["ours", "djangos"])
def test_the_backend_that_a_task_was_given_to_announces_it(django_task, heard, settings, kind):
    settings.TASKS = {
        **settings.TASKS, "second": {"BACKEND": "tests.unit.django.other_backend.OtherBackend"}
    }  # fmt: skip
    second = compat.task_backends["second"]
    result = second.enqueue(sample.add if kind == "ours" else django_task(add), [1], {})
    assert [(name, sender) for name, sender, _, _ in heard] == [("enqueued", type(second))]
    assert (result.backend, type(second).__name__) == ("second", "OtherBackend")


def test_a_job_that_is_there_already_is_not_announced_again(heard):
    for _ in range(2):
        sample.add.using(job_id="x").enqueue(1)
    assert words(heard) == [("enqueued", "READY")]


def test_finished_is_said_once_after_the_last_attempt(django_task, heard, settings):
    settings.NOBROKER = {**settings.NOBROKER, "BACKOFF": {"BASE": 0}}
    errors = []

    def keep(sender, task_result, **kwargs):
        errors.append([error.exception_class for error in task_result.errors])

    compat.task_finished.connect(keep)
    django_task(fail).using(max_attempts=2).enqueue()
    run()
    compat.task_finished.disconnect(keep)
    assert words(heard)[1:] == [("started", "RUNNING"), ("started", "RUNNING"), ("finished", "FAILED")]
    assert errors == [[ValueError, ValueError]]


@pytest.mark.django_db(transaction=True)
def test_enqueued_is_said_after_the_commit_and_never_after_a_rollback(django_task, heard):
    """C40."""
    task = django_task(add)
    with transaction.atomic():
        task.enqueue(1)
        assert heard == []
    assert words(heard) == [("enqueued", "READY")]
    with transaction.atomic():
        task.enqueue(2)
        transaction.set_rollback(True)
    assert len(heard) == 1


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("function", [add, add_later])
@pytest.mark.parametrize("signal", ["task_enqueued", "task_started", "task_finished"])
def test_a_receiver_that_raises_harms_nothing_and_is_logged(django_task, heard, caplog, signal, function, error):
    def broken(sender, **kwargs):
        raise error("this receiver is broken")

    getattr(compat, signal).connect(broken)
    try:
        with caplog.at_level(logging.ERROR):
            result = django_task(function).enqueue(1)
            (report,) = run()
    finally:
        getattr(compat, signal).disconnect(broken)
    assert report.outcome is Outcome.SUCCEEDED
    result.refresh()
    assert result.return_value == 2
    assert "this receiver is broken" in caplog.text


def test_a_receiver_knows_the_job_and_may_use_the_database_also_of_a_coroutine(django_task):
    seen = []

    def look(sender, **kwargs):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # Django's database calls refuse to run on one
        seen.append(current_job().job_id)

    compat.task_started.connect(look)
    try:
        results = [django_task(function).enqueue(1) for function in (add, add_later)]
        run()
    finally:
        compat.task_started.disconnect(look)
    assert seen == [result.id for result in results]


def test_a_task_that_is_unknown_here_is_not_announced(heard):
    get_queue().enqueue({"task": "gone", "args": [], "kwargs": {}})
    run()
    assert heard == []


def test_a_receiver_of_finished_can_enqueue_the_next_job(django_task):
    later = django_task(add)

    def next_step(sender, task_result, **kwargs):
        if task_result.return_value == 2:
            later.enqueue(task_result.return_value)

    compat.task_finished.connect(next_step)
    try:
        later.enqueue(1)
        assert len(run()) == 2
    finally:
        compat.task_finished.disconnect(next_step)


class InTestCase(TestCase):
    def test_nothing_is_announced_of_a_job_that_waits_for_its_commit(self):
        said = []
        compat.task_enqueued.connect(lambda **kwargs: said.append(1), weak=False, dispatch_uid="here")
        self.addCleanup(lambda: compat.task_enqueued.disconnect(dispatch_uid="here"))
        with self.captureOnCommitCallbacks(execute=True):
            sample.add.enqueue(1)
            self.assertEqual(said, [])
        self.assertEqual(said, [1])


def test_the_signals_of_a_job_that_another_process_runs_name_its_backend(django_task, heard, settings):
    """The worker's settings decide; an alias that it does not have announces nothing."""
    django_task(add, backend="default").enqueue(1)
    heard.clear()
    settings.TASKS = {"other": settings.TASKS["default"]}
    execute(get_queue(), get_queue().lease_one())
    assert heard == []
    assert set(announcing.senders()) == {"other"}
