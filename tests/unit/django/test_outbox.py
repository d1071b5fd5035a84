"""The outbox: a row in the transaction, written to the log after the commit, and what becomes of rows that stayed."""

import contextlib
import logging
import time
from typing import Any

import msgspec
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from nobroker_django import JobConflictError, JobNotFoundError, StorageError
from nobroker_django.engine.errors import TooLateError
from nobroker_django.outbox import checks, holding
from nobroker_django.outbox.models import OutboxRow
from nobroker_django.outbox.rows import SWEEP_SECONDS, unpack
from nobroker_django.outbox.sweeping import Standing, databases, standing, sweep, sweep_old
from nobroker_django.queues import get_queue
from nobroker_django.worker.options import WorkerOptions
from nobroker_django.worker.supervisor import Supervisor

from .sample import add, keep, send

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture(autouse=True)
def outbox(settings):
    settings.NOBROKER = {**settings.NOBROKER, "OUTBOX": True}


@pytest.fixture
def dying(monkeypatch):
    """As if each process died between its commit and the write: the callback does nothing."""

    @contextlib.contextmanager
    def without_the_write():
        with monkeypatch.context() as patch:
            patch.setattr(transaction, "on_commit", lambda *args, **kwargs: None)
            yield

    return without_the_write


@pytest.fixture
def failing(monkeypatch):
    """Make the write fail with an error, until told otherwise."""
    context = monkeypatch.context()

    def fail(error):
        def refuse(*args, **kwargs):
            raise error

        context.__enter__().setattr(get_queue(), "enqueue_once", refuse)
        return lambda: context.__exit__(None, None, None)

    return fail


def arguments(queue="default"):
    return [job.payload["args"] for job in get_queue(queue).list_jobs()]


def rows(database="default"):
    return OutboxRow.objects.using(database)


FULL = StorageError("append to", "/q/default.log", OSError(28, "No space left on device"))


@pytest.mark.contract("DJ-02")
def test_a_job_is_a_row_until_the_commit_and_in_the_log_after_it():
    with transaction.atomic():
        result = add.enqueue(1)
        assert rows().count() == 1
        assert get_queue().stats().total == 0
        assert result.created is None
    assert rows().count() == 0
    assert result.created is True
    assert get_queue().get(result.id).payload["args"] == [1]


def test_the_id_is_known_at_once_and_found_in_the_queue_after_the_commit():
    """C43."""
    with transaction.atomic():
        result = add.enqueue(1)
        known = result.id
        with pytest.raises(JobNotFoundError):
            add.get_result(known)
    assert add.get_result(known).id == result.id == known
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        result = add.enqueue(2)
        raise ZeroDivisionError
    with pytest.raises(JobNotFoundError):
        add.get_result(result.id)


def test_coroutines_take_part_in_the_transaction_that_synchronous_code_has_opened():
    def order():
        with transaction.atomic():
            result = async_to_sync(add.aenqueue)(1)
            assert rows().count() == 1
            assert result.created is None
        return result

    async def view():
        return await sync_to_async(order)()

    assert async_to_sync(view)().created is True
    assert rows().count() == 0
    assert arguments() == [[1]]


def test_callbacks_that_a_test_case_runs_itself(django_capture_on_commit_callbacks):
    with transaction.atomic():  # as a test case does
        with django_capture_on_commit_callbacks(execute=True):
            result = add.enqueue(1)
            assert rows().count() == 1
        assert result.created is True
        assert rows().count() == 0
    assert arguments() == [[1]]


@pytest.mark.contract("DJ-02")
def test_a_rollback_takes_the_row_along_also_that_of_a_savepoint():
    with transaction.atomic():
        add.enqueue(1)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            add.enqueue(2)
            raise ZeroDivisionError
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        add.enqueue(3)
        raise ZeroDivisionError
    assert sweep("default").rows == 0
    assert rows().count() == 0
    assert arguments() == [[1]]


def test_a_durable_transaction_is_one_as_well():
    with transaction.atomic(durable=True):
        add.enqueue(1)
    assert arguments() == [[1]]


def test_outside_a_transaction_nothing_is_asked_of_the_database(django_assert_num_queries):
    with django_assert_num_queries(0):
        add.enqueue(1)
        add.enqueue_many([add.s(2), add.s(3)])
    assert arguments() == [[1], [2], [3]]


@pytest.mark.parametrize(
    "call", [lambda: add.enqueue(1), lambda: add.enqueue_many([add.s(n) for n in range(3000)])], ids=["one", "many"]
)
def test_a_call_costs_one_insert_and_one_delete(call):
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        call()
    kinds = [query["sql"].split()[0] for query in queries]
    assert [kind for kind in kinds if kind not in ("BEGIN", "COMMIT")] == ["INSERT", "DELETE"]


@pytest.mark.contract("DJ-02")
def test_a_row_that_stayed_is_swept_with_its_id_and_options_and_stays_one_job(dying):
    with dying(), transaction.atomic():
        result = send.using(priority=7, max_attempts=4, visibility_timeout=9, delay=3600).enqueue("a@example.org")
    assert get_queue("emails").stats().total == 0
    assert standing("default") == Standing(waiting=1)
    assert sweep("default").jobs == 1
    job = get_queue("emails").get(result.id)
    assert (job.priority, job.max_attempts, job.visibility_timeout) == (7, 4, 9)
    assert 3590 < job.available_at - job.enqueued_at <= 3600
    assert job.payload["args"] == ["a@example.org"]
    assert standing("default") == Standing()
    assert sweep("default").rows == 0
    assert get_queue("emails").stats().total == 1


@pytest.mark.contract("DJ-02")
def test_a_row_of_several_jobs_keeps_the_options_of_each(dying):
    with dying(), transaction.atomic():
        results = add.enqueue_many(
            [add.s(1), add.using(priority=7, max_attempts=4, visibility_timeout=9, delay=3600).s(2)]
        )
    assert sweep("default").jobs == 2
    first, second = (get_queue().get(result.id) for result in results)
    assert (first.priority, first.max_attempts, first.visibility_timeout) == (0, 5, None)
    assert (second.priority, second.max_attempts, second.visibility_timeout) == (7, 4, 9)
    assert first.available_at <= first.enqueued_at
    assert 3590 < second.available_at - second.enqueued_at <= 3600


class OlderRow(msgspec.Struct):
    """What releases read that had one set of options for a call; they pass over fields that they do not know."""

    jobs: list[tuple[str, msgspec.Raw]]
    priority: int = 0
    due: float | None = None


def test_an_older_release_refuses_a_row_whose_jobs_have_options_of_their_own(dying):
    with dying(), transaction.atomic():
        add.enqueue_many([add.s(1), add.using(delay=3600).s(2)])
        add.enqueue_many([add.using(priority=3).s(number) for number in range(2)])
    own, alike = (bytes(row.content) for row in OutboxRow.objects.order_by("key"))
    with pytest.raises(msgspec.ValidationError, match="jobs"):
        msgspec.json.decode(own, type=OlderRow)
    read = msgspec.json.decode(alike, type=OlderRow)
    assert (len(read.jobs), read.priority) == (2, 3)


def test_a_row_of_an_older_release_is_read():
    [first, second] = unpack(b'{"jobs":[["a",1],["b",2]],"priority":3,"due":5.0}', 2e9)
    assert (first.job_id, first.payload, first.priority, first.due) == ("a", 1, 3, 5.0)
    assert (second.job_id, second.payload, second.priority, second.due) == ("b", 2, 3, 5.0)


@pytest.mark.parametrize(
    "content",
    [
        *(b"{}", b'{"jobs":[["a",1]],"each":[["b",2,{}]]}'),
        *(b'{"jobs":[["a",1]],"later":1}', b'{"each":[["a",1,{"later":1}]]}'),
    ],
)
def test_a_row_that_says_what_is_not_known_here_is_refused(content):
    with pytest.raises(ValueError, match="not that of an outbox"):
        unpack(content, 2e9)


@pytest.mark.contract("DJ-02")
def test_a_row_that_an_older_release_has_parked_can_be_written_by_hand(dying):
    with dying(), transaction.atomic():
        results = add.enqueue_many([add.s(1), add.using(priority=3).s(2)])
    [row] = OutboxRow.objects.all()
    holding.park("default", row.key, "ValueError: the content of the row is not that of an outbox")
    assert sweep("default").rows == 0
    assert sweep_old("default", [row.key]).jobs == 2
    assert [get_queue().get(result.id).priority for result in results] == [0, 3]


def test_a_delay_counts_from_the_call_however_late_the_sweep(dying, monkeypatch):
    now = [2_000_000_000.0]
    monkeypatch.setattr("nobroker_django.enqueueing.time.time", lambda: now[0])
    with dying(), transaction.atomic():
        early, late = add.using(delay=60).enqueue(1), add.using(delay=1e7).enqueue(2)
    now[0] += 1e5
    sweep("default")
    assert get_queue().get(late.id).available_at == 2_010_000_000.0
    assert get_queue().get(early.id).available_at == 2_000_000_060.0


@pytest.mark.contract("DJ-02")
def test_rows_are_swept_in_the_order_of_the_calls_and_each_call_as_a_whole(dying):
    with dying():
        for number in range(0, 30, 3):
            with transaction.atomic():
                add.enqueue(number)
                add.enqueue_many([add.s(number + 1), add.s(number + 2)])
    swept = sweep("default")
    assert (swept.rows, swept.jobs) == (20, 30)
    assert arguments() == [[number] for number in range(30)]


def test_more_rows_than_are_read_at_once_are_swept_as_well(dying, monkeypatch):
    monkeypatch.setattr("nobroker_django.outbox.sweeping._ROWS", 4)
    monkeypatch.setattr("nobroker_django.outbox.sweeping._BYTES", 300)
    with dying(), transaction.atomic():
        for number in range(11):
            add.enqueue(number)
        add.enqueue_many([add.s(n) for n in range(11, 40)])  # larger than a piece may be
    assert sweep("default").rows == 12
    assert arguments() == [[number] for number in range(40)]


@pytest.mark.contract("DJ-02")
def test_a_write_that_fails_after_the_commit_is_no_error_of_the_caller_and_is_made_up_for(failing, caplog):
    again = failing(FULL)
    with caplog.at_level(logging.ERROR, logger="nobroker_django"), transaction.atomic():
        User.objects.create(username="kept")
        result = add.enqueue(1)
    assert User.objects.filter(username="kept").exists()
    assert result.created is None
    (record,) = caplog.records
    assert "safe in the outbox of database 'default'" in record.getMessage()
    assert "No space left" in record.getMessage()
    assert record.job_id == result.id
    assert sweep("default").failed == {"default": str(FULL)}
    again()
    assert sweep("default").jobs == 1
    result.refresh()
    assert arguments() == [[1]]


def test_a_queue_that_refuses_does_not_keep_the_others_from_being_swept(dying, failing):
    with dying(), transaction.atomic():
        add.enqueue(1)
        send.enqueue("a@example.org")
        add.enqueue(2)
    failing(FULL)
    swept = sweep("default")
    assert (swept.rows, list(swept.failed)) == (1, ["default"])
    assert [row.queue for row in rows()] == ["default", "default"]


def refuse_some(monkeypatch, wanted):
    """Let ``wanted(arguments)`` say which writes raise what; the arguments of all writes, in their order."""
    tried, queue = [], get_queue()
    write = queue.enqueue_once

    def enqueue_once(entries):
        values = [entry.payload["args"][0] for entry in entries]
        tried.append(values)
        if (error := wanted(values)) is not None:
            raise error
        return write(entries)

    monkeypatch.setattr(queue, "enqueue_once", enqueue_once)
    return tried


def test_a_queue_that_refuses_is_left_for_the_next_sweep(dying, monkeypatch):
    monkeypatch.setattr("nobroker_django.outbox.sweeping._ROWS", 2)
    with dying():
        for number in range(6):
            with transaction.atomic():
                add.enqueue(number)
    tried = refuse_some(monkeypatch, lambda values: FULL)
    assert sweep("default").failed == {"default": str(FULL)}
    assert tried == [[0, 1]]
    assert rows().count() == 6


def test_once_a_queue_refuses_no_later_row_of_it_is_written(dying, monkeypatch):
    """Or the order of the calls would be lost."""
    conflict = JobConflictError("x", "default")
    with dying():
        for number in range(4):
            with transaction.atomic():
                add.enqueue(number)
    tried = refuse_some(monkeypatch, lambda values: conflict if len(values) > 1 else FULL if values == [2] else None)
    swept = sweep("default")
    assert (swept.jobs, swept.failed) == (2, {"default": str(FULL)})
    assert tried == [[0, 1, 2, 3], [0], [1], [2]]
    assert arguments() == [[0], [1]]
    assert rows().count() == 2


def test_a_row_that_the_queue_takes_to_be_too_old_is_left_alone_and_not_parked(dying, monkeypatch):
    """By the clock of whoever writes; the row is seen as old by the next look."""
    with dying():
        for number in range(3):
            with transaction.atomic():
                add.enqueue(number)
    tried = refuse_some(monkeypatch, lambda values: TooLateError("x", "default") if 1 in values else None)
    swept = sweep("default")
    assert (swept.jobs, swept.parked, swept.failed) == (2, 0, {})
    assert tried == [[0, 1, 2], [0], [1], [2]]
    assert [row.problem for row in rows()] == [""]


def test_what_is_written_at_once_is_not_too_much(dying, monkeypatch):
    monkeypatch.setattr("nobroker_django.outbox.sweeping._BYTES", 1000)
    with dying():
        for number, size in enumerate((300, 300, 300, 5000, 10, 10)):
            with transaction.atomic():
                keep.enqueue(number, "x" * size)
    tried = refuse_some(monkeypatch, lambda values: None)
    assert sweep("default").rows == 6
    assert tried == [[0, 1], [2], [3], [4, 5]]


def test_a_delete_that_fails_leaves_a_row_of_which_the_sweep_makes_no_second_job(monkeypatch, caplog):
    def refuse(database, keys):
        raise OperationalError("database is locked")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="nobroker_django"):
        patch.setattr(holding, "release", refuse)
        with transaction.atomic():
            result = add.enqueue(1)
    assert result.created is True
    assert "until the next sweep: database is locked" in caplog.text
    queue = get_queue()
    queue.ack(queue.lease_one())
    queue.compact()
    assert sweep("default").rows == 1
    assert queue.lease_one() is None
    assert rows().count() == 0


@pytest.mark.contract("DJ-02")
def test_a_conflict_is_logged_seen_in_the_result_and_its_row_left_for_a_person(caplog):
    add.using(job_id="x").enqueue(1)
    with caplog.at_level(logging.ERROR, logger="nobroker_django"), transaction.atomic():
        result = add.using(job_id="x").enqueue(2)
        add.enqueue(3)
    assert isinstance(result.conflict, JobConflictError)
    assert result.status == "FAILED"
    assert caplog.records[0].job_id == "x"
    assert "JobConflictError" in rows().get().problem
    assert sweep("default").parked == 0
    assert standing("default") == Standing(parked=1)
    assert arguments() == [[1], [3]]


def test_a_conflict_that_a_sweep_finds_parks_that_row_alone(dying):
    add.using(job_id="x").enqueue(1)
    with dying(), transaction.atomic():
        add.enqueue(2)
        add.using(job_id="x").enqueue(9)
        add.enqueue(3)
    swept = sweep("default")
    assert (swept.rows, swept.parked) == (2, 1)
    assert arguments() == [[1], [2], [3]]
    assert sweep("default").parked == 0


def test_a_row_that_cannot_be_read_is_parked(dying):
    with dying(), transaction.atomic():
        add.enqueue(1)
    rows().update(content=b'{"jobs": 3}')
    assert sweep("default").parked == 1
    assert "not that of an outbox" in rows().get().problem


def test_a_known_id_with_the_same_arguments_adds_nothing(dying):
    add.using(job_id="x").enqueue(1)
    with transaction.atomic():
        again = add.using(job_id="x").enqueue(1)
    assert again.created is False
    with dying(), transaction.atomic():
        add.using(job_id="x").enqueue(1)
    assert sweep("default").rows == 1
    assert arguments() == [[1]]


def test_a_sweep_that_was_quicker_does_not_make_the_job_somebody_elses(monkeypatch):
    once = type(get_queue()).enqueue_once

    def after_a_sweep(self, entries):
        once(self, entries)
        return once(self, entries)

    monkeypatch.setattr(type(get_queue()), "enqueue_once", after_a_sweep)
    with transaction.atomic():
        result = add.enqueue(1)
    assert result.created is True
    assert arguments() == [[1]]


def test_nor_does_it_if_the_id_was_chosen_by_the_caller(monkeypatch):
    once = type(get_queue()).enqueue_once
    monkeypatch.setattr(type(get_queue()), "enqueue_once", lambda self, some: once(self, some) and once(self, some))
    with transaction.atomic():
        mine = add.using(job_id="x").enqueue(1)
        others = add.using(job_id="x").enqueue(1)
    assert (mine.created, others.created) == (True, False)


@pytest.mark.parametrize("drain", [True, False])
def test_a_worker_that_runs_what_is_ready_waits_for_the_sweep(drain):
    supervisor = Supervisor(WorkerOptions(queues=("default",), processes=2, drain=drain), None)
    try:
        begin = time.monotonic()
        assert all(slot.start_at > begin for slot in supervisor._slots) == drain
        supervisor._swept()
        assert all(slot.start_at <= time.monotonic() for slot in supervisor._slots)
        assert supervisor._sweeper.start_at > begin + 50
    finally:
        supervisor._watch.close()
        supervisor._budget.close()
        supervisor._damaged.close()


@pytest.mark.contract("DJ-02")
def test_a_row_that_is_too_old_is_reported_and_not_swept_but_on_demand(dying, monkeypatch, settings):
    settings.NOBROKER = {**settings.NOBROKER, "RETENTION": 100}
    now = [2_000_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    with dying(), transaction.atomic():
        result = add.enqueue(1)
    assert rows().get().known_until == now[0] + 100 + SWEEP_SECONDS
    now[0] += 100 + SWEEP_SECONDS
    assert sweep("default").rows == 0
    assert standing("default") == Standing(old=1)
    (message,) = checks.check_rows(databases=["default"])
    assert message.id == "nobroker.W020"
    assert "1 too old" in message.msg
    assert arguments() == []
    assert sweep_old("default", [rows().get().key]).jobs == 1
    assert get_queue().get(result.id).payload["args"] == [1]
    assert checks.check_rows(databases=["default"]) == []
    assert checks.check_rows(databases=None) == []


def test_a_row_for_a_queue_that_is_gone_is_reported_and_swept_once_the_queue_is_back(dying, settings):
    with dying(), transaction.atomic():
        send.enqueue("a@example.org")
    before = settings.NOBROKER
    settings.NOBROKER = {**before, "QUEUES": {"default": {}}}
    assert sweep("default").rows == 0
    assert standing("default") == Standing(orphaned=1)
    settings.NOBROKER = before
    assert sweep("default").rows == 1


def test_young_rows_are_left_to_those_who_made_them_if_so_wanted(dying):
    with dying(), transaction.atomic():
        add.enqueue(1)
    assert sweep("default", young=3600.0).rows == 0
    assert sweep("default").rows == 1


def test_the_row_is_in_the_database_whose_transaction_is_open(dying):
    assert databases() == ["default", "other"]
    with dying():
        with transaction.atomic(using="other"):
            add.using(database="other").enqueue(1)
            assert add.enqueue(0).created is True  # the transaction of "default" is not open
        with transaction.atomic():
            add.enqueue(2)
    assert (rows().count(), rows("other").count()) == (1, 1)
    sweep("other")
    assert arguments() == [[0], [1]]


def test_routers_do_not_matter_for_the_row(settings):
    settings.DATABASE_ROUTERS = [Elsewhere()]
    with transaction.atomic():
        add.enqueue(1)
        assert OutboxRow.objects.using("default").count() == 1
    assert arguments() == [[1]]


class Elsewhere:
    """Sends every model to the other database."""

    def db_for_read(self, model, **hints):
        return "other"

    db_for_write = db_for_read


def test_a_replica_by_the_word_of_a_router_has_no_outbox(settings):
    settings.DATABASE_ROUTERS = [NothingOnOther()]
    assert databases() == ["default"]


def test_a_database_that_cannot_be_asked_is_named(monkeypatch):
    def gone(cursor=None, include_views=False):
        raise OperationalError("the server has gone away")

    monkeypatch.setattr(connections["other"].introspection, "table_names", gone)
    with pytest.raises(Error, match=r"^database 'other' cannot be asked for rows of the outbox: the server has"):
        databases()


class NothingOnOther:
    """Nothing is migrated on the other database."""

    def allow_migrate(self, db, app_label, **hints):
        return db != "other"


def test_a_missing_table_is_an_error_at_the_call_that_names_the_command():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE nobroker_outbox RENAME TO away")
    try:
        with pytest.raises(holding.OutboxError, match="migrate --database=default") as raised, transaction.atomic():
            add.enqueue(1)
        assert raised.value.stored is False
        assert databases() == ["other"]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE away RENAME TO nobroker_outbox")
    assert get_queue().stats().total == 0


def test_a_missing_app_is_an_error_at_the_call(settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "nobroker_django.outbox"]
    with pytest.raises(ImproperlyConfigured, match=r"nobroker_django\.outbox"), transaction.atomic():
        add.enqueue(1)
    assert get_queue().stats().total == 0


def test_signals_of_models_cost_no_statement(django_assert_num_queries):
    from django.db.models.signals import post_save, pre_delete

    def receiver(**kwargs):
        raise AssertionError("told of the outbox's rows")

    post_save.connect(receiver)
    pre_delete.connect(receiver)
    try:
        with transaction.atomic():
            add.enqueue(1)
    finally:
        post_save.disconnect(receiver)
        pre_delete.disconnect(receiver)


def test_payloads_of_any_kind_come_through_unchanged(dying):
    deep: Any = 0
    for _ in range(190):
        deep = [deep]
    values = ["\x00 \ud7ff 𝄞 \\u0000", 10**600, 1e-300, {"": None, "ключ": [True, 1.5]}, deep]
    with dying(), transaction.atomic():
        result = keep.enqueue(*values)
        many = keep.enqueue_many([keep.s(value) for value in values])
    sweep("default")
    assert get_queue().get(result.id).payload["args"] == values
    assert [get_queue().get(one.id).payload["args"] for one in many] == [[value] for value in values]
    assert connections["default"].in_atomic_block is False


def test_a_task_can_have_its_own_database_and_its_own_mind_about_commits(make):
    at_once = make(lambda n: n, name="at once", on_commit=False)
    of_other = make(lambda n: n, name="of other", database="other")
    with transaction.atomic():
        assert at_once.enqueue(1).created is True
        assert at_once.using(on_commit=True).enqueue(2).created is None
        assert of_other.enqueue(3).created is True
        with transaction.atomic(using="other"):
            assert of_other.enqueue(4).created is None
    assert sorted(arguments()) == [[1], [2], [3], [4]]
