"""``@task``: the function as before, and its enqueueing form."""

import asyncio
import functools
import inspect
import itertools
import math
import pickle
import time
from contextlib import closing, contextmanager, nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import transaction

from nobroker_django import (
    BackoffPolicy,
    InvalidOptionError,
    JobConflictError,
    JobNotFoundError,
    JobResult,
    JobState,
    conf,
    registry,
    task,
)
from nobroker_django import TaskArgumentError as ArgumentsError
from nobroker_django.queues import get_queue, open_queue
from nobroker_django.testing import run_jobs

from .sample import add, keep, send


@pytest.fixture
def fresh():
    """``task`` for functions that are forgotten after the test."""
    made = []

    @functools.wraps(task)
    def decorate(*args, **options):
        def remember(function):
            made.append(task(**options)(function))
            return made[-1]

        return remember(args[0]) if args else remember

    yield decorate
    for one in made:
        registry.unregister(one)


def stored():
    return get_queue().list_jobs()


@pytest.mark.contract("DJ-01")
def test_a_plain_call_runs_here_and_stores_nothing():
    assert add(1, b=2) == 3
    assert add(5) == 6
    assert send("a@example.org") == "a@example.org"
    assert stored() == []


def test_the_task_keeps_name_docstring_and_signature_of_the_function(fresh):
    @fresh(name="documented")
    def documented(a: int, *, b: str = "x") -> None:
        """Says what it does."""

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "Says what it does."
    assert str(inspect.signature(documented)) == "(a: int, *, b: str = 'x') -> None"


@pytest.mark.contract("DJ-01")
def test_enqueue_stores_the_call_and_its_options():
    result = add.enqueue(1, b=2)
    assert result.created is True
    assert result.status == "READY"
    job = get_queue().get(result.id)
    assert job.payload == {"task": "tests.unit.django.sample.add", "args": [1], "kwargs": {"b": 2}}
    assert (job.priority, job.max_attempts, job.visibility_timeout) == (0, 5, None)
    sent = send.enqueue("a@example.org")
    job = get_queue("emails").get(sent.id)
    assert (job.priority, job.max_attempts, job.visibility_timeout) == (5, 2, 7)


@pytest.mark.contract("DJ-01")
def test_using_changes_the_next_calls_and_not_the_task():
    changed = add.using(priority=-3, queue_name="emails", max_attempts=1, visibility_timeout=90, job_id="one")
    job = get_queue("emails").get(changed.enqueue(1).id)
    assert (job.id, job.priority, job.max_attempts, job.visibility_timeout) == ("one", -3, 1, 90)
    assert get_queue().get(add.enqueue(1).id).priority == 0
    assert changed(1) == 2


def test_an_explicit_zero_is_not_replaced_by_the_default():
    assert send.using(priority=0).options.priority == 0
    job = get_queue("emails").get(send.using(priority=0, delay=0).enqueue("x").id)
    assert job.priority == 0


def numbers():
    yield 1


async def later_numbers():
    yield 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (numbers, r"^function: tests\.unit\.django\.test_decorators\.numbers is a generator function"),
        (later_numbers, r"^function: tests\.unit\.django\.test_decorators\.later_numbers is a generator function"),
        (len, r"^function: builtins\.len is built in or compiled"),
        ([].append, r"^function: list\.append is built in or compiled"),
        (str.upper, r"^function: str\.upper is built in or compiled"),
    ],
)
def test_what_no_worker_could_run_is_refused_by_name(function, text):
    with pytest.raises(InvalidOptionError, match=text):
        task(name="no task")(function)
    with pytest.raises(InvalidOptionError, match=text):
        task(function)
    assert registry.find("no task") is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: task(priority=1000),
        lambda: task(backoff={"jiter": 1}),
        lambda: task(soft_time_limit=5, time_limit=5),
        lambda: task(name="a\nb")(numbers_of),
        lambda: task(takes_context=True)(numbers_of),
        lambda: task(unique=["no"])(numbers_of),
        lambda: task(name=add.name)(numbers_of),
        lambda: task(lambda: None),
        lambda: task(3),  # type: ignore[call-overload]
        lambda: add.get_result(3),  # type: ignore[arg-type]
        lambda: add.using(queue_name="nowhere").get_result("x"),
        lambda: run_jobs("nowhere"),
        lambda: get_queue().get(""),
        lambda: get_queue().list_jobs("no"),
        lambda: get_queue().dlq(limit=-1),
    ],
)
def test_where_nothing_was_to_be_stored_no_message_speaks_of_it(call):
    with pytest.raises(InvalidOptionError) as raised:
        call()
    assert "tored" not in str(raised.value)
    assert not str(raised.value).endswith(".")


def test_a_wrong_option_of_a_call_says_that_nothing_was_stored():
    for call in (
        lambda: add.using(queue_name="nowhere").enqueue(1),
        lambda: add.using(run_after=5),  # type: ignore[arg-type]
        lambda: add.using(delay=1, run_after=timedelta(1)),
        lambda: get_queue().enqueue(1, delay=-1),
    ):
        with pytest.raises(InvalidOptionError, match=r"[^.]\. Nothing was stored\.$"):
            call()
    with pytest.raises(InvalidOptionError, match=r"^run_after: a datetime or a timedelta is needed, not 5"):
        add.using(run_after=5)  # type: ignore[arg-type]


def numbers_of(a):
    return [a]


@pytest.mark.contract("DJ-01")
def test_enqueue_many_stores_all_calls_in_order():
    results = add.enqueue_many(add.s(n, b=n) for n in range(5))
    assert [get_queue().get(result.id).payload["args"] for result in results] == [[n] for n in range(5)]
    assert [job.payload["args"] for job in get_queue().lease(10)] == [[n] for n in range(5)]
    assert add.enqueue_many([]) == []


def test_enqueue_many_stores_nothing_when_one_call_is_wrong():
    with pytest.raises(ArgumentsError):
        add.enqueue_many([add.s(1), add.s(1, 2, 3)])  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="parameter 'a'"):
        add.enqueue_many([add.s(1), add.s({1, 2})])  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="no call of"):
        add.enqueue_many([add.s(1), keep.s(1)])
    with pytest.raises(InvalidOptionError, match="job_id"):
        add.using(job_id="x").enqueue_many([add.s(1)])
    assert stored() == []


def job_of(result):
    return get_queue(result.queue_name).get(result.id) if result._memory is None else result._job


def options_of(result):
    job = job_of(result)
    return job.payload["args"], job.priority, job.max_attempts, job.visibility_timeout


@contextmanager
def due_within(delays):
    """The jobs of the results that the block puts into the list become due so long after a moment of the block (s)."""
    results: list[JobResult[int]] = []
    before = time.time()
    yield results
    after = time.time()
    for result, delay in zip(results, delays, strict=True):
        assert before + delay - 1e-3 <= job_of(result).available_at <= after + delay + 1e-3


@pytest.mark.contract("DJ-01")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize("outbox", [False, True])
@pytest.mark.parametrize("block", [nullcontext, transaction.atomic])
def test_enqueue_many_honours_what_was_chosen_for_each_call(settings, immediate, outbox, block):
    settings.NOBROKER = {**settings.NOBROKER, "OUTBOX": outbox, "IMMEDIATE": immediate}
    task = add.using(priority=1, max_attempts=9)
    with due_within([0, 0, 3600, 7200]) as results, block():
        results += task.enqueue_many(
            [
                add.s(0),
                add.using(job_id="mine").s(1),
                add.using(delay=3600, priority=0).s(2),
                add.using(run_after=timedelta(hours=2), max_attempts=2).using(visibility_timeout=77).s(3),
            ]
        )
    attempts = [1] * 4 if immediate else [9, 9, 9, 2]  # there is but one where jobs are run at once
    assert [options_of(result) for result in results] == [
        ([0], 1, attempts[0], None),
        ([1], 1, attempts[1], None),
        ([2], 0, attempts[2], None),
        ([3], 1, attempts[3], 77),
    ]
    assert results[1].id == "mine"
    assert add.using(job_id="mine").enqueue(1).created is False


@pytest.mark.contract("DJ-01")
def test_calls_of_the_same_delay_become_due_together_and_run_in_their_order(monkeypatch):
    ticks = itertools.count(time.time(), 0.01)
    monkeypatch.setattr("nobroker_django.enqueueing.time", SimpleNamespace(time=lambda: next(ticks)))
    results = add.enqueue_many([add.s(0), *(add.using(delay=3600).s(number) for number in (1, 2))])
    first, second = (job_of(result).available_at for result in results[1:])
    assert first == second


@pytest.mark.contract("DJ-01")
def test_the_calls_of_one_enqueue_many_go_to_the_queue_that_was_chosen_for_them():
    results = add.enqueue_many([add.using(queue_name="emails").s(number) for number in range(2)])
    assert [result.queue_name for result in results] == ["emails", "emails"]
    assert get_queue("emails").stats().ready == 2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"queue_name": "emails"}, r"^queue_name: calls\[1\] has 'emails' and calls\[0\] has 'default'"),
        ({"database": "other"}, r"^database: calls\[1\] has 'other' and calls\[0\] has None"),
        ({"on_commit": False}, r"^on_commit: calls\[1\] has False and calls\[0\] has None"),
    ],
)
def test_calls_that_cannot_be_one_write_are_refused(other, text):
    with pytest.raises(InvalidOptionError, match=text) as caught:
        add.enqueue_many([add.s(0), add.using(**other).s(1)])
    assert f"Call enqueue_many once for each {next(iter(other))}" in str(caught.value)
    assert stored() == []


@pytest.mark.contract("DJ-01")
def test_a_task_that_was_pickled_knows_what_was_chosen_for_it():
    later = pickle.loads(pickle.dumps(add.using(delay=3600)))
    with due_within([3600]) as results:
        results += add.enqueue_many([later.s(0)])


@pytest.mark.contract("DJ-01", "ENQ-05")
def test_aenqueue_many_stores_all_calls():
    results = asyncio.run(add.aenqueue_many(add.s(n) for n in range(3)))
    assert [get_queue().get(result.id).payload["args"] for result in results] == [[0], [1], [2]]


@pytest.mark.contract("DJ-01")
def test_aenqueue_stores_without_running_on_the_event_loop():
    async def call():
        return await add.aenqueue(4, b=1)

    result = asyncio.run(call())
    assert get_queue().get(result.id).payload["args"] == [4]


def test_enqueue_works_on_an_event_loop_too():
    async def call():
        return add.enqueue(4)

    assert asyncio.run(call()).created


@pytest.mark.contract("DJ-01")
def test_get_result_finds_the_job_again():
    result = add.enqueue(1)
    assert add.get_result(result.id).id == result.id
    assert asyncio.run(add.aget_result(result.id)).status == "READY"
    with pytest.raises(JobNotFoundError, match=r"^queues 'emails', 'default' know no job 'nothing': ") as raised:
        add.using(queue_name="emails").get_result("nothing")
    assert (raised.value.job_id, raised.value.queue) == ("nothing", "emails")
    with pytest.raises(JobNotFoundError, match=r"^queue 'default' knows no job 'nothing': "):
        get_queue().get("nothing")
    with pytest.raises(InvalidOptionError, match="no call of keep"):
        keep.get_result(result.id)


@pytest.mark.parametrize("immediate", [False, True])
def test_a_result_is_found_in_whatever_queue_it_is_the_tasks_own_first(settings, immediate):
    settings.NOBROKER = {**settings.NOBROKER, "IMMEDIATE": immediate}
    elsewhere = add.using(queue_name="emails").enqueue(3)
    found = add.get_result(elsewhere.id)
    assert (found.id, found.queue_name, found.args) == (elsewhere.id, "emails", [3])
    found.refresh()
    for queue in ("default", "emails"):
        add.using(queue_name=queue, job_id="in both").enqueue(1)
        assert add.using(queue_name=queue).get_result("in both").queue_name == queue
    keep.using(job_id="of two tasks").enqueue(1)
    add.using(job_id="of two tasks", queue_name="emails").enqueue(1)
    assert add.get_result("of two tasks").queue_name == "emails"
    with pytest.raises(InvalidOptionError, match=r"job 'in both' of queue 'default' is no call of .*keep"):
        keep.get_result("in both")


def test_looking_for_a_result_makes_no_queue(settings):
    with pytest.raises(JobNotFoundError):
        add.get_result("nothing")
    assert not settings.NOBROKER["DIR"].exists()
    with pytest.raises(InvalidOptionError, match="there is no queue 'nowhere'"):
        add.using(queue_name="nowhere").get_result("nothing")


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"c": 1}), ((1,), {"a": 1}), ((), {"b": 1})]
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_stored(args, kwargs):
    with pytest.raises(ArgumentsError, match=r"tests.unit.django.sample.add\(a: int, b: int = 1\)") as raised:
        add.enqueue(*args, **kwargs)
    assert isinstance(raised.value, TypeError)
    assert raised.value.stored is False
    assert stored() == []


def test_a_parameter_may_have_any_name(fresh):
    @fresh(name="odd names")
    def odd(self, args, kwargs, task):
        return [self, args, kwargs, task]

    result = odd.enqueue(self=1, args=2, kwargs=3, task=4)
    assert get_queue().get(result.id).payload["kwargs"] == {"self": 1, "args": 2, "kwargs": 3, "task": 4}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 101),
        ("priority", -101),
        ("priority", 1.5),
        ("priority", "10"),
        ("priority", True),
        ("priority", math.nan),
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 1.5),
        ("max_attempts", True),
        ("max_attempts", math.inf),
        ("visibility_timeout", 0),
        ("visibility_timeout", math.nan),
        ("visibility_timeout", "30"),
        ("queue_name", ""),
        ("queue_name", "a.b"),
        ("queue_name", 3),
    ],
)
def test_a_wrong_option_is_refused_by_name_in_the_decorator_and_in_using(option, value):
    with pytest.raises(InvalidOptionError, match=option) as raised:
        add.using(**{option: value})
    assert raised.value.option == option
    with pytest.raises(InvalidOptionError, match=option):
        task(**{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("job_id", ""),
        ("job_id", "x" * 201),
        ("job_id", 7),
        ("job_id", "\ud800"),
        ("on_commit", 1),
        ("database", ""),
        ("database", 3),
    ],
)
def test_a_wrong_option_of_one_call_is_refused_by_name(option, value):
    with pytest.raises(InvalidOptionError, match=option):
        add.using(**{option: value})


def test_an_unknown_queue_fails_at_the_enqueue_with_the_known_ones():
    """C87."""
    with pytest.raises(InvalidOptionError, match=r"'emial'.*known queues: default, emails"):
        add.using(queue_name="emial").enqueue(1)


def test_an_unknown_database_fails_at_the_enqueue():
    with pytest.raises(InvalidOptionError, match="DATABASES has no 'archive'"):
        add.using(database="archive").enqueue(1)
    assert stored() == []


def test_the_same_job_id_gives_the_existing_job_and_other_arguments_are_reported():
    first = add.using(job_id="invoice 1").enqueue(1)
    again = add.using(job_id="invoice 1").enqueue(1)
    assert (first.created, again.created, first.id) == (True, False, again.id)
    with pytest.raises(JobConflictError):
        add.using(job_id="invoice 1").enqueue(2)
    with pytest.raises(JobConflictError):
        keep.using(job_id="invoice 1").enqueue(1)
    assert len(stored()) == 1


@pytest.mark.contract("ENQ-04")
def test_the_id_of_a_finished_job_is_known_for_the_retention(settings):
    """C89: whatever compaction does; other arguments and another task are a conflict, another queue is another job."""
    settings.NOBROKER = {**settings.NOBROKER, "RETENTION": 100}
    invoice = add.using(job_id="invoice 1")
    first = invoice.enqueue(1)
    assert [report.error for report in run_jobs()] == [""]
    for compact in (False, True):
        if compact:
            get_queue().compact()
        again = invoice.enqueue(1)
        assert (again.created, again.id, again.status, again.return_value) == (False, first.id, "SUCCESSFUL", 2)
        for other in (lambda: invoice.enqueue(2), lambda: keep.using(job_id="invoice 1").enqueue(1)):
            with pytest.raises(JobConflictError):
                other()
    assert invoice.using(queue_name="emails").enqueue(2).created is True
    late = open_queue("default", conf.queue_settings("default"), clock=lambda: time.time() + 101)
    with closing(late):
        late.compact()
    assert invoice.enqueue(2).created is True


def test_without_retention_the_id_is_free_when_the_job_is_done(settings):
    """C89."""
    settings.NOBROKER = {**settings.NOBROKER, "RETENTION": 0}
    invoice = add.using(job_id="invoice 1")
    assert invoice.enqueue(1).created is True
    assert invoice.enqueue(1).created is False
    run_jobs()
    assert invoice.enqueue(2).created is True


def test_a_backoff_may_be_a_policy_or_some_of_its_values(fresh):
    assert fresh(name="b1", backoff=BackoffPolicy(base=3))(lambda: None).backoff == BackoffPolicy(base=3)
    assert fresh(name="b2", backoff={"factor": 4, "jitter": 0})(lambda: None).backoff == BackoffPolicy(
        factor=4, jitter=0
    )
    with pytest.raises(InvalidOptionError, match="unknown key 'BASE'"):
        task(backoff={"BASE": 3})
    with pytest.raises(InvalidOptionError, match=r"backoff\.factor"):
        task(backoff={"factor": 0})
    with pytest.raises(InvalidOptionError, match="backoff"):
        task(backoff=3)  # type: ignore[call-overload]


def test_names_default_to_where_the_function_is_and_aliases_find_it_too(fresh):
    @fresh(name="new.name", aliases=["old.name", "older.name"])
    def renamed():
        return None

    assert add.name == "tests.unit.django.sample.add"
    assert registry.find("old.name") is renamed
    assert registry.find("new.name") is renamed
    assert registry.find("nobody") is None


def test_a_function_that_no_worker_could_find_needs_a_name():
    def inner():
        return None

    with pytest.raises(InvalidOptionError, match="not at the top of a module"):
        task(inner)
    with pytest.raises(InvalidOptionError, match="not at the top of a module"):
        task(lambda: None)


def test_a_name_stands_for_one_function(fresh):
    @fresh(name="taken", aliases=["also taken"])
    def one():
        return None

    with pytest.raises(InvalidOptionError, match=r"'also taken'.*already belongs to .*one"):

        @task(name="also taken")
        def two():
            return None

    assert registry.find("also taken") is one


@pytest.mark.parametrize("names", ["one", [""], [3], ["a\nb"]])
def test_aliases_are_a_list_of_printable_names(names):
    with pytest.raises(InvalidOptionError, match="aliases"):
        task(aliases=names)


@pytest.mark.parametrize("thing", [3, "add", object(), type("Thing", (), {})])
def test_only_functions_become_tasks(thing):
    with pytest.raises(InvalidOptionError, match="decorates functions"):
        task(thing)


def test_the_job_is_ready_for_a_worker_when_enqueue_returns():
    result = add.enqueue(1)
    job = get_queue().lease_one()
    assert job is not None
    assert job.id == result.id
    assert job.state is JobState.LEASED
