"""Enqueueing inside a transaction: after the commit, never after a rollback, everything checked at the call."""

import asyncio
import contextlib
import logging

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, connections, transaction

from nobroker_django import (
    InvalidOptionError,
    JobConflictError,
    JobNotFoundError,
    NobrokerError,
    SerializationError,
    StorageError,
    TaskArgumentError,
)
from nobroker_django.engine.errors import OutcomeUnknownError
from nobroker_django.queues import get_queue
from nobroker_django.transactions import NotStoredAfterCommitError

from .sample import add, keep, send

pytestmark = pytest.mark.django_db(transaction=True)


def count():
    return get_queue().stats().total


@pytest.mark.contract("DJ-02")
def test_a_job_becomes_visible_with_the_commit_and_its_id_is_known_before():
    """C43."""
    with transaction.atomic():
        result = add.enqueue(1)
        known = result.id
        assert len(known) == 32
        assert (result.created, result.status, result.attempts, result.errors) == (None, "READY", 0, [])
        assert count() == 0
        with pytest.raises(JobNotFoundError):
            result.refresh()
        with pytest.raises(JobNotFoundError):
            add.get_result(known)
        with pytest.raises(JobNotFoundError):
            result.wait(timeout=5)
    assert (result.id, result.created) == (known, True)
    assert get_queue().get(known).payload["args"] == [1]
    assert add.get_result(known).id == known


@pytest.mark.contract("DJ-02")
def test_the_list_of_results_is_the_callers_own():
    with transaction.atomic():
        results = add.enqueue_many([add.s(1), add.s(2)])
        results += [add.enqueue(3)]
    assert [result.created for result in results] == [True] * 3
    assert count() == 3


@pytest.mark.contract("DJ-02")
def test_a_rollback_leaves_no_job():
    """C40, C43."""
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        result = add.enqueue(1)
        raise ZeroDivisionError
    assert count() == 0
    assert result.created is None
    with pytest.raises(JobNotFoundError):
        add.get_result(result.id)


@pytest.mark.contract("DJ-02")
def test_a_savepoint_that_is_rolled_back_takes_its_jobs_with_it():
    """C40."""
    with transaction.atomic():
        outer = add.enqueue(1)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            lost = add.enqueue(2)
            with transaction.atomic():
                lost_too = add.enqueue(3)
            raise ZeroDivisionError
        with transaction.atomic():
            inner = add.enqueue(4)
        assert count() == 0
    assert [result.created for result in (outer, lost, lost_too, inner)] == [True, None, None, True]
    assert sorted(job.payload["args"] for job in get_queue().list_jobs()) == [[1], [4]]


def test_a_transaction_marked_for_rollback_leaves_no_job():
    with transaction.atomic():
        add.enqueue(1)
        transaction.set_rollback(True)
    assert count() == 0


def test_a_database_error_that_breaks_the_transaction_leaves_no_job():
    with contextlib.suppress(DatabaseError), transaction.atomic():
        add.enqueue(1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")
    assert count() == 0


def test_outside_a_transaction_the_job_is_stored_at_once():
    assert add.enqueue(1).created is True
    assert count() == 1


def test_a_worker_never_sees_a_job_before_the_row_that_it_is_about():
    """C40."""
    for number in range(20):
        with transaction.atomic():
            user = User.objects.create(username=f"user{number}")
            add.enqueue(user.pk)
            assert get_queue().lease_one() is None
        job = get_queue().lease_one()
        assert User.objects.filter(pk=job.payload["args"][0]).exists()
        get_queue().ack(job)


def test_many_are_written_together_at_the_commit():
    with transaction.atomic():
        results = add.enqueue_many([add.s(1), add.s(2)])
        assert [result.created for result in results] == [None, None]
        assert count() == 0
    assert [result.created for result in results] == [True, True]
    assert [get_queue().get(result.id).payload["args"] for result in results] == [[1], [2]]


def test_jobs_of_one_transaction_keep_the_order_of_the_calls():
    with transaction.atomic():
        ids = [add.enqueue(n).id for n in range(5)]
    assert [job.id for job in get_queue().lease(10)] == ids


@pytest.mark.contract("DJ-02")
def test_the_arguments_stored_are_those_of_the_call():
    values = [1]
    with transaction.atomic():
        result = keep.enqueue(values)
        several = keep.enqueue_many([keep.s(values)])
        values.append(2)
    assert get_queue().get(result.id).payload["args"] == [[1]]
    assert get_queue().get(several[0].id).payload["args"] == [[1]]


@pytest.mark.contract("DJ-02")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: add.enqueue(), TaskArgumentError),  # type: ignore[call-arg]
        (lambda: add.enqueue({1}), SerializationError),  # type: ignore[arg-type]
        (lambda: add.enqueue("x" * 9_000_000), SerializationError),  # type: ignore[arg-type]
        (lambda: keep.enqueue_many([keep.s("x"), keep.s({1})]), SerializationError),
        (lambda: add.using(queue_name="nobody").enqueue(1), InvalidOptionError),
        (lambda: add.using(database="nobody").enqueue(1), InvalidOptionError),
        (lambda: add.using(delay=1e12).enqueue(1), InvalidOptionError),
        (lambda: add.using(priority=1000).enqueue(1), InvalidOptionError),
        (lambda: add.using(job_id="x" * 300).enqueue(1), InvalidOptionError),
    ],
    ids=["arity", "type", "size", "one of many", "queue", "database", "delay", "priority", "id"],
)
def test_what_can_be_checked_is_checked_at_the_call(call, error):
    with transaction.atomic():
        User.objects.create(username="kept")
        with pytest.raises(error):
            call()
    assert count() == 0
    assert User.objects.filter(username="kept").exists()


def test_a_directory_that_cannot_be_used_is_an_error_at_the_call(settings, tmp_path):
    (tmp_path / "file").write_text("in the way")
    settings.NOBROKER = {"DIR": tmp_path / "file" / "queues"}
    with transaction.atomic(), pytest.raises(NobrokerError):
        add.enqueue(1)


def test_a_known_id_with_the_same_arguments_is_seen_at_the_commit():
    add.using(job_id="x").enqueue(1)
    with transaction.atomic():
        again = add.using(job_id="x").enqueue(1)
        assert again.created is None
    assert again.created is False
    assert count() == 1


@pytest.mark.contract("DJ-02")
def test_a_conflict_found_at_the_commit_is_logged_and_seen_in_the_result_not_raised(caplog):
    add.using(job_id="x").enqueue(1)
    after = []
    with caplog.at_level(logging.ERROR, logger="nobroker_django"), transaction.atomic():
        result = add.using(job_id="x").enqueue(2)
        transaction.on_commit(lambda: after.append("ran"))
    assert after == ["ran"]
    assert result.created is False
    assert isinstance(result.conflict, JobConflictError)
    assert result.status == "FAILED"
    with pytest.raises(JobConflictError):
        result.refresh()
    assert "'x'" in caplog.text
    assert caplog.records[0].job_id == "x"
    assert get_queue().get("x").payload["args"] == [1]


@pytest.fixture
def failing(monkeypatch):
    """Make the write after the commit fail with an error."""

    def fail(error):
        def refuse(*args, **kwargs):
            raise error

        monkeypatch.setattr(get_queue(), "enqueue", refuse)
        monkeypatch.setattr(get_queue(), "enqueue_many", refuse)

    return fail


@pytest.mark.contract("DJ-02")
def test_a_write_that_fails_after_the_commit_says_that_the_commit_happened(failing):
    failing(StorageError("append to", "/q/default.log", OSError(28, "No space left on device")))
    with pytest.raises(NotStoredAfterCommitError) as raised, transaction.atomic():
        User.objects.create(username="kept")
        result = add.enqueue(1)
    message = str(raised.value)
    assert "the transaction IS committed" in message
    assert f"job {result.id} was NOT stored" in message
    assert "No space left" in message
    assert raised.value.stored is False
    assert raised.value.job_ids == (result.id,)
    assert isinstance(raised.value.__cause__, StorageError)
    assert result.created is None
    assert User.objects.filter(username="kept").exists()


def test_an_unknown_outcome_after_the_commit_is_told_as_such(failing):
    failing(OutcomeUnknownError("sync", "/q/default.log", OSError(5, "I/O error")))
    with (
        pytest.raises(NotStoredAfterCommitError, match=r"IS committed; whether job .* is unknown") as raised,
        transaction.atomic(),
    ):
        add.enqueue(1)
    assert raised.value.stored is None


def test_a_write_of_many_that_fails_names_the_jobs(failing):
    failing(StorageError("append to", "/q/default.log", OSError(28, "No space left on device")))
    with pytest.raises(NotStoredAfterCommitError, match=r"jobs .* and 2 more were NOT stored"), transaction.atomic():
        add.enqueue_many([add.s(n) for n in range(7)])


def test_on_commit_false_stores_at_once_also_by_setting(settings):
    """C40: the setting says "immediately"."""
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        assert add.using(on_commit=False).enqueue(1).created is True
        raise ZeroDivisionError
    assert count() == 1
    settings.NOBROKER = {**settings.NOBROKER, "ON_COMMIT": False}
    with transaction.atomic():
        assert add.enqueue(1).created is True
        assert add.using(on_commit=True).enqueue(1).created is None


def test_a_delay_in_a_transaction_counts_from_the_call(monkeypatch):
    now = [2_000_000_000.0]
    monkeypatch.setattr("nobroker_django.enqueueing.time.time", lambda: now[0])
    seen = {}

    def write(payload, **options):
        seen.update(options)
        return original(payload, **options)

    with transaction.atomic():
        queue = get_queue()
        original = queue.enqueue
        monkeypatch.setattr(queue, "enqueue", write)
        add.using(delay=60).enqueue(1)
        now[0] += 20
    assert seen["delay"] == 40.0


def test_manual_transaction_management_is_refused_because_no_commit_can_be_seen():
    connection.ensure_connection()
    transaction.set_autocommit(False)
    try:
        with pytest.raises(
            InvalidOptionError, match=r"on_commit: .*manual transaction management.*Nothing was stored"
        ):
            add.enqueue(1)
        assert add.using(on_commit=False).enqueue(1).created is True
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_enqueueing_opens_no_database_connection(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(connections["default"], "connection", None)
        patch.setattr(connections["default"], "connect", lambda: pytest.fail("connected"))
        add.enqueue(1)


def test_an_async_caller_inside_a_synchronous_transaction_waits_for_its_commit():
    async def view():
        return await add.aenqueue(1)

    with transaction.atomic():
        result = async_to_sync(view)()
        assert result.created is None
        assert count() == 0
    assert result.created is True


def test_an_async_caller_outside_a_transaction_stores_at_once():
    async def view():
        return await add.aenqueue(1)

    assert asyncio.run(view()).created is True


def test_several_queues_in_one_transaction():
    with transaction.atomic():
        first, second = add.enqueue(1), send.enqueue("a@example.org")
    assert (first.created, second.created) == (True, True)
    assert get_queue("emails").stats().ready == 1
