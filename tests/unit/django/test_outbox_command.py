"""The command that people look at the outbox with, and what other commands say of it."""

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, transaction

from nobroker_django.outbox.models import OutboxRow
from nobroker_django.queues import get_queue

from .sample import add, send

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture(autouse=True)
def outbox(settings):
    settings.NOBROKER = {**settings.NOBROKER, "OUTBOX": True}


@pytest.fixture
def left(monkeypatch):
    """Leave the rows of some jobs behind, as a process does that dies; their keys."""

    def leave(*enqueues, database="default"):
        before = set(OutboxRow.objects.using(database).values_list("key", flat=True))
        with monkeypatch.context() as patch, transaction.atomic(using=database):
            patch.setattr(transaction, "on_commit", lambda *args, **kwargs: None)
            for enqueue in enqueues:
                enqueue()
        keys = OutboxRow.objects.using(database).order_by("key").values_list("key", flat=True)
        return [key for key in keys if key not in before]

    return leave


def run(*arguments, answer=None, monkeypatch=None):
    """Exit code, lines, and what was said on standard error."""
    output, errors = io.StringIO(), io.StringIO()
    if answer is not None:
        monkeypatch.setattr("builtins.input", lambda prompt="": answer)
    code = 0
    try:
        call_command("nobroker_outbox", *arguments, stdout=output, stderr=errors)
    except CommandError as error:
        code = error.returncode
        errors.write(str(error))
    return code, output.getvalue(), errors.getvalue()


def old(key):
    OutboxRow.objects.filter(key=key).update(known_until=1.0)


def test_nothing_to_show():
    assert run() == (0, "", "")
    assert json.loads(run("--json")[1]) == {"schema": 1, "rows": []}


@pytest.mark.contract("DJ-09")
def test_rows_are_listed_with_what_a_person_wants_to_know(left):
    first, second = left(lambda: add.enqueue(1), lambda: send.enqueue_many([send.s("a"), send.s("b")]))
    (other,) = left(lambda: add.using(database="other").enqueue(1), database="other")
    code, output, _ = run()
    assert code == 0
    lines = [line.split("  ") for line in output.splitlines()]
    assert [line[1:6] for line in lines] == [
        ["default", "default", first, "waiting", "1 job"],
        ["default", "emails", second, "waiting", "2 jobs"],
        ["other", "default", other, "waiting", "1 job"],
    ]
    assert lines[0][6] == "tests.unit.django.sample.add"
    (row,) = json.loads(run("--json", "--queue", "emails")[1])["rows"]
    assert (row["key"], row["jobs"], row["state"], row["problem"]) == (second, 2, "waiting", None)
    assert row["known_until"] > row["called_at"]
    assert run("--database", "other")[1] == output.splitlines()[2] + "\n"
    assert run("--limit", "1", "--database", "default")[1] == output.splitlines()[0] + "\n"


@pytest.mark.contract("DJ-09")
def test_a_sweep_writes_what_waits(left):
    left(lambda: add.enqueue(1), lambda: send.enqueue_many([send.s("a"), send.s("b")]))
    assert run("--sweep", "--queue", "emails")[:2] == (
        0, "default: 1 row with 2 jobs written\nother: 0 rows with 0 jobs written\n",
    )  # fmt: skip
    assert (get_queue().stats().total, get_queue("emails").stats().total) == (0, 2)
    code, output, _ = run("--sweep", "--json", "--database", "default")
    assert code == 0
    assert json.loads(output) == {
        "schema": 1, "databases": [{"database": "default", "rows": 1, "jobs": 1, "parked": 0}], "failed": [],
    }  # fmt: skip
    assert get_queue().stats().total == 1


def test_a_queue_that_refuses_is_named(left, settings, tmp_path):
    left(lambda: add.enqueue(1))
    (tmp_path / "file").write_text("in the way")
    settings.NOBROKER = {**settings.NOBROKER, "DIR": tmp_path / "file" / "queues"}
    code, _, errors = run("--sweep", "--database", "default")
    assert code == 1
    assert errors.startswith("default: ")
    assert OutboxRow.objects.count() == 1


@pytest.mark.contract("DJ-02")
def test_rows_that_need_somebody_give_exit_code_4(left, settings):
    stale, bad, gone, _ = left(
        lambda: add.enqueue(1),
        lambda: add.enqueue(2),
        lambda: send.enqueue("a"),
        lambda: add.enqueue(3),
    )
    old(stale)
    OutboxRow.objects.filter(key=bad).update(content=b"[]")
    settings.NOBROKER = {**settings.NOBROKER, "QUEUES": {"default": {}}}
    code, output, errors = run("--sweep")
    assert code == 4
    assert "1 row with 1 job written" in output
    for text in ("1 too old to be swept", "1 parked", "1 for queues that are not in NOBROKER['QUEUES']"):
        assert text in errors
    code, output, _ = run()
    assert code == 4
    states = {line.split("  ")[3]: line.split("  ")[4] for line in output.splitlines()}
    assert states == {stale: "old", bad: "parked", gone: "orphaned"}
    assert "not that of an outbox" in output


@pytest.mark.contract("DJ-02")
def test_an_old_row_is_written_on_demand_and_after_a_question(left, monkeypatch):
    stale, other = left(lambda: add.enqueue(1), lambda: add.enqueue(2))
    old(stale)
    old(other)
    code, _, errors = run("--write-old", stale, answer="n", monkeypatch=monkeypatch)
    assert (code, get_queue().stats().total) == (1, 0)
    assert "may have run before" in errors
    assert run("--write-old", stale, answer="y", monkeypatch=monkeypatch)[:2] == (0, "1 row written\n")
    assert [job.payload["args"] for job in get_queue().list_jobs()] == [[1]]
    assert OutboxRow.objects.get().key == other


def test_a_row_is_discarded_on_demand(left):
    (key,) = left(lambda: add.enqueue(1))
    assert run("--discard", key, "nobody", "--yes")[0] == 1
    assert OutboxRow.objects.count() == 1
    assert run("--discard", key, "--yes", "--json")[1] == '{"schema": 1, "discarded": 1}\n'
    assert (OutboxRow.objects.count(), get_queue().stats().total) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--sweep", "--discard", "x"], "either --sweep"),
        (["--database", "nobody"], "has no outbox; those that have one: default, other"),
        (["--queue", "nobody"], "there is no queue"),
    ],
)
def test_wrong_usage(arguments, text):
    code, _, errors = run(*arguments)
    assert code == 2
    assert text in errors


def test_a_database_that_refuses_is_no_traceback(monkeypatch):
    def refuse(*args, **kwargs):
        raise OperationalError("the server has gone away")

    monkeypatch.setattr("nobroker_django.outbox.operating.standing", refuse)
    assert run()[::2] == (1, "a database refused: the server has gone away")
    monkeypatch.setattr("nobroker_django.outbox.operating.databases", refuse)
    assert run()[0] == 1


def stats():
    output, errors = io.StringIO(), io.StringIO()
    call_command("nobroker_stats", stdout=output, stderr=errors)
    return output.getvalue(), errors.getvalue()


@pytest.mark.contract("DJ-02")
def test_the_statistics_speak_of_rows_that_need_somebody(left, monkeypatch):
    (key,) = left(lambda: add.enqueue(1))
    assert stats()[1] == ""
    old(key)
    output, errors = stats()
    assert "default" in output
    assert errors.startswith("the outbox of database 'default' has 1 too old to be swept")

    def refuse(*args, **kwargs):
        raise OperationalError("the server has gone away")

    monkeypatch.setattr("nobroker_django.outbox.operating.standing", refuse)
    assert stats()[1] == "the outbox could not be looked at: the server has gone away\n"
