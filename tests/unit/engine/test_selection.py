"""Lists by task, class of the last error, time and state: found by columns, as a look at every job would find them."""

from itertools import product

import pytest

from nobroker_django import BackoffPolicy, InvalidOptionError, JobState
from nobroker_django.engine import unit
from nobroker_django.engine.selection import Selection
from nobroker_django.engine.transitions import LEASED
from tests.contract.helpers import NOON, RecordingFiles

TASKS = (None, "mail.send", "mail.sort", "no.such")
ERRORS = (None, "ValueError", "KeyError", "NoSuchError")


@pytest.fixture
def mixed(open_queue, clock):
    """Jobs of two tasks and of none, in every state, enqueued over a while, some with failures behind them."""
    queue = open_queue(retention=1e6, max_attempts=2, backoff=BackoffPolicy(base=0))
    for number in range(24):
        payload = {"task": TASKS[1 + number % 2], "args": [number]} if number % 3 else number
        queue.enqueue(payload, delay=50 if number % 5 == 0 else 0, priority=-number)
        clock.advance(1)
    for number in range(12):
        job = queue.lease_one()
        if number % 4 == 0:
            queue.ack(job)
        elif number % 4 < 3:
            queue.nack(job, error=(ValueError if number % 2 else KeyError)("no"))
    return queue


def error_class_of(job):
    return job.errors[-1].error_class if job.errors else None


def task_of(job):
    return job.payload["task"] if isinstance(job.payload, dict) else None


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("few", [True, False])
def test_every_combination_finds_what_a_look_at_every_job_finds(open_queue, clock, mixed, monkeypatch, read_only, few):
    monkeypatch.setattr(unit, "_FEW_ROWS", 1000 if few else -1)
    queue = open_queue(read_only=True) if read_only else mixed
    jobs = queue.list_jobs()
    assert {job.state for job in jobs} == set(JobState)
    found = 0
    for state, task, error, since, delayed in product(
        (None, *JobState), TASKS, ERRORS, (None, NOON + 7.0), (None, True, False)
    ):
        expected = [
            job.id
            for job in jobs
            if (state is None or job.state is state)
            and (task is None or task_of(job) == task)
            and (error is None or error_class_of(job) == error)
            and (since is None or job.enqueued_at >= since)
            and (delayed is None or (job.available_at > clock.now) == delayed)
        ]
        listed = queue.list_jobs(state, task=task, error_class=error, since=since, delayed=delayed)
        assert [job.id for job in listed] == expected, (state, task, error, since, delayed)
        found += bool(expected)
    assert found > 40
    dead = [job for job in jobs if job.state is JobState.DEAD]
    assert queue.dlq(error_class="KeyError") == [job for job in dead if error_class_of(job) == "KeyError"] != []
    assert queue.dlq(task="mail.send", limit=1) == [job for job in dead if task_of(job) == "mail.send"][:1] != []


def test_the_class_of_an_error_is_found_in_whatever_module(open_queue):
    queue = open_queue(max_attempts=1)
    names = ["Odd_", "a.Odd_", "a.b.Odd_", "a.b.OddX", "a.b.odd_", "NotOdd_", "Odd_.a", "a.Odd_Error", None]
    recorded = []
    for name in names:
        error = "none" if name is None else type(*_named(name))("x")
        queue.enqueue(1)
        queue.nack(queue.lease_one(), error=error)
        recorded.append(error_class_of(queue.dlq()[-1]))
    assert recorded == names
    for wanted, found in {
        "*.Odd_": ["Odd_", "a.Odd_", "a.b.Odd_"],
        "Odd_": ["Odd_"],
        "*.b.Odd_": ["a.b.Odd_"],
        "*.a": ["Odd_.a"],
        "*.%": [],
        "*.": [],
        "*": [],
    }.items():
        assert [error_class_of(job) for job in queue.dlq(error_class=wanted)] == found


def _named(path):
    module, _, name = path.rpartition(".")
    return name, (Exception,), {"__module__": module or "builtins"}


def test_what_is_delayed_changes_with_the_time(mixed, clock):
    delayed = [job.id for job in mixed.list_jobs(delayed=True)]
    assert len(delayed) == 5
    clock.advance(50)
    assert mixed.list_jobs(delayed=True) == []
    leased = mixed.lease_one()  # makes all of them due
    clock.advance(-70)
    # Those that were to run at once are not delayed, whatever the clock says now.
    delayed.remove(leased.id)
    assert [job.id for job in mixed.list_jobs("ready", delayed=True)] == delayed


def test_a_page_goes_on_behind_the_last_job_of_the_page_before(mixed):
    whole = mixed.list_jobs(task="mail.send")
    first = mixed.list_jobs(task="mail.send", limit=3)
    assert first == whole[:3]
    assert mixed.list_jobs(task="mail.send", after=first[-1].seq) == whole[3:]


def test_the_jobs_that_are_not_meant_are_not_read(open_queue):
    files = RecordingFiles()
    queue = open_queue(files=files)
    queue.enqueue_many([{"task": "mail.send", "args": ["x" * 2000]}] * 500)
    queue.enqueue({"task": "mail.rare"})
    queue.stats()
    files.record.clear()
    assert [job.payload for job in queue.list_jobs(task="mail.rare")] == [{"task": "mail.rare"}]
    assert queue.list_jobs(task="no.such") == queue.dlq(error_class="ValueError") == []
    assert queue.list_jobs(error_class="*.ValueError") == []
    assert files.record.bytes_read < 20_000


@pytest.mark.parametrize(
    ("wanted", "few", "steps"),
    [
        (Selection(task="a"), False, ["SEARCH jobs USING INDEX jobs_task (task=? AND seq>?)"]),
        (Selection(error_class="a"), False, ["SEARCH jobs USING INDEX jobs_failed (error_class=? AND seq>?)"]),
        (Selection((LEASED,), task="a", since=1.0), False, ["SEARCH jobs USING INDEX jobs_task (task=? AND seq>?)"]),
        (
            Selection((LEASED,)),
            True,
            ["SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)", "SCAN jobs USING INDEX jobs_leased"],
        ),
    ],
)
def test_a_selection_is_answered_by_an_index_without_sorting(open_queue, wanted, few, steps):
    with open_queue()._session.locked() as held, held.projection().unit() as look:
        condition, parameters = wanted.condition(1.0, few=few)
        query = f"EXPLAIN QUERY PLAN SELECT * FROM jobs WHERE {condition} AND seq > ? ORDER BY seq LIMIT ?"
        plan = [row[3] for row in look._connection.execute(query, [*parameters, 0, 1])]
    assert [step for step in plan if step.startswith(("SEARCH", "SCAN", "USE TEMP"))] == steps


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("task", ""),
        ("task", "x" * 201),
        ("task", 5),
        ("task", "\ud800"),
        ("error_class", b"ValueError"),
        ("since", float("nan")),
        ("since", "yesterday"),
        ("delayed", 1),
        ("state", "delayed"),
        ("limit", -1),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(queue, argument, value):
    with pytest.raises(InvalidOptionError) as refused:
        queue.list_jobs(**{argument: value})
    assert refused.value.option == argument
