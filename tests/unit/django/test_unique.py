"""``@task(unique=...)``: the same work is not in the queue twice at a time."""

import asyncio
import os
import subprocess
import sys
import uuid
from contextlib import nullcontext
from datetime import date
from decimal import Decimal
from typing import Any

import django
import pytest
from django.db import transaction

from nobroker_django import (
    InvalidOptionError,
    JobConflictError,
    SerializationError,
    TaskArgumentError,
    compat,
    registry,
    task,
)
from nobroker_django.execution import Outcome, execute
from nobroker_django.outbox.models import OutboxRow
from nobroker_django.outbox.sweeping import sweep
from nobroker_django.queues import close_queues, get_queue
from tests.support.procs import Child, Diary, run_all


def deliver():
    return execute(get_queue(), get_queue().lease_one()).outcome


def sync(account: int, since: date = date(2030, 1, 1), *more: int, full: bool = False, **notes: str) -> int:
    return account


DAY = date(2030, 1, 1)


@pytest.mark.contract("ENQ-04")
def test_equal_calls_are_one_job_however_they_are_written(make):
    made = make(sync, unique=True)
    first = made.enqueue(1)
    assert first.created is True
    assert first.id.startswith("unique:the task:")
    assert len(first.id) == len("unique:the task:") + 32
    for again in (
        made.enqueue(account=1),
        made.enqueue(1, DAY),
        made.enqueue(1, since=DAY, full=False),
        asyncio.run(made.aenqueue(1)),
        made.using(priority=5).enqueue(1),
    ):
        assert (again.id, again.created) == (first.id, False)
    others = [made.enqueue(2), made.enqueue(1, date(2030, 1, 2)), made.enqueue(1, full=True), made.enqueue(1, DAY, 5)]
    others += [made.enqueue(1, note="x"), made.enqueue(1, note="y")]
    assert [other.created for other in others] == [True] * 6
    assert get_queue().stats().total == 7


def test_the_id_is_the_same_in_every_process_and_release(make):
    assert make(sync, unique=True).enqueue(1).id == "unique:the task:" + KNOWN_DIGEST


KNOWN_DIGEST = "3719b0ca80aa99d1d9227fdaf3e85bf2"


@pytest.mark.contract("ENQ-04")
def test_the_key_is_free_when_the_job_has_succeeded(make):
    """C89."""
    made = make(sync, unique=True)
    first = made.enqueue(1)
    job = get_queue().lease_one()
    assert made.enqueue(1).status == "RUNNING"
    assert execute(get_queue(), job).outcome is Outcome.SUCCEEDED
    again = made.enqueue(1)
    assert (again.created, again.id, again.status) == (True, first.id, "READY")
    assert deliver() is Outcome.SUCCEEDED


@pytest.mark.contract("ENQ-04")
def test_a_dead_letter_keeps_its_key(make):
    def work(n: int) -> None:
        raise ValueError

    made = make(work, unique=True, max_attempts=1)
    made.enqueue(1)
    assert deliver() is Outcome.DEAD
    again = made.enqueue(1)
    assert (again.created, again.status) == (False, "FAILED")
    assert get_queue().requeue_dead(again.id) == 1
    assert made.enqueue(1).status == "READY"


@pytest.mark.contract("ENQ-04")
def test_some_parameters_are_the_key_and_the_others_are_those_of_the_first_call(make):
    made = make(sync, unique=["account", "full"])
    first = made.enqueue(1, date(2030, 5, 5))
    again = made.enqueue(1, date(2031, 6, 6), note="other")
    assert (again.created, again.id) == (False, first.id)
    assert get_queue().get(first.id).payload["args"] == [1, "2030-05-05"]
    assert made.enqueue(1, full=True).created is True


@pytest.mark.contract("ENQ-04")
def test_a_function_says_the_key_from_the_arguments_as_they_were_given(make):
    seen = []

    def key(account, since=DAY, **others):
        seen.append((account, since, others))
        return f"{account}-{since.year}"

    made = make(sync, unique=key)
    first = made.enqueue(1, since=date(2030, 5, 5))
    assert made.enqueue(1, date(2030, 6, 6), full=True).id == first.id
    assert made.enqueue(1, date(2031, 6, 6)).created is True
    assert seen[:2] == [(1, date(2030, 5, 5), {}), (1, date(2030, 6, 6), {"full": True})]


def test_it_is_no_option_of_a_call(make):
    made: Any = make(sync, unique=True)
    with pytest.raises(TypeError, match="'unique'"):
        made.using(unique=False)


@pytest.mark.parametrize("answer", [None, 3, "", b"x"])
def test_a_function_that_says_no_text_is_an_error_of_the_call(make, answer):
    made = make(sync, unique=lambda account: answer)
    with pytest.raises(TaskArgumentError, match="unique returned"):
        made.enqueue(1)
    with pytest.raises(SerializationError, match="surrogate"):
        make(sync, name="other", unique=lambda account: "\ud800").enqueue(1)
    assert get_queue().stats().total == 0


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: "x", "TypeError: .* takes 0 positional arguments"),
        (lambda account: {}[account], "KeyError: 1"),
    ],
)
def test_a_function_that_fails_is_an_error_of_the_call_that_names_the_task(make, function, text):
    made = make(sync, name="the syncing", unique=function)
    with pytest.raises(TaskArgumentError, match=f"^the syncing: the function of unique failed with {text}") as raised:
        made.enqueue(1)
    assert raised.value.task == "the syncing"
    assert raised.value.__cause__ is not None
    assert get_queue().stats().total == 0


@pytest.mark.contract("ENQ-04", "ENQ-05")
def test_enqueue_many_stores_each_key_once(make):
    made = make(sync, unique=["account"])
    made.enqueue(3)
    results = made.enqueue_many([made.s(1), made.s(2), made.s(1, full=True), made.s(3)])
    assert [result.created for result in results] == [True, True, False, False]
    assert results[0].id == results[2].id
    assert get_queue().stats().total == 3


@pytest.mark.contract("ENQ-04", "ENQ-05")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outbox", [False, True])
@pytest.mark.parametrize("block", [nullcontext, transaction.atomic])
def test_a_job_id_of_one_call_of_several_goes_before_its_key(make, settings, outbox, block):
    settings.NOBROKER = {**settings.NOBROKER, "OUTBOX": outbox}
    made = make(sync, unique=["account"])
    with block():
        results = made.enqueue_many([made.s(1), made.using(job_id="mine").s(1), made.s(1, full=True)])
    assert [result.created for result in results] == [True, True, False]
    assert results[1].id == "mine"
    assert [deliver() for _ in range(2)] == [Outcome.SUCCEEDED] * 2
    with block():
        again = made.enqueue_many([made.s(1), made.using(job_id="mine").s(1)])
    assert [result.created for result in again] == [True, False]  # a key is free when its job is done, an id is not


@pytest.mark.contract("ENQ-04", "DJ-02")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outbox", [False, True])
def test_after_a_commit_the_caller_is_told_too(make, settings, outbox):
    settings.NOBROKER = {**settings.NOBROKER, "OUTBOX": outbox}
    made = make(sync, unique=["account"])
    before = made.using(on_commit=False).enqueue(1)
    with transaction.atomic():
        known, new, twice = made.enqueue(1, DAY), made.enqueue(2), made.enqueue(2, full=True)
        many = made.enqueue_many([made.s(2), made.s(4)])
        assert known.id == before.id
        assert known.created is None
    assert [result.created for result in (known, new, twice, *many)] == [False, True, False, False, True]
    assert [deliver() for _ in range(3)] == [Outcome.SUCCEEDED] * 3
    with transaction.atomic():
        again = made.enqueue(1)
    assert again.created is True


@pytest.mark.contract("ENQ-04", "DJ-02")
@pytest.mark.django_db(transaction=True)
def test_what_a_worker_sweeps_finds_the_key_taken_or_free_too(make, settings, monkeypatch):
    settings.NOBROKER = {**settings.NOBROKER, "OUTBOX": True}
    made = make(sync, unique=["account"])

    def enqueue_and_die(*args, **kwargs):
        with monkeypatch.context() as patch, transaction.atomic():
            patch.setattr(transaction, "on_commit", lambda *args, **kwargs: None)
            return made.enqueue(*args, **kwargs)

    before = made.enqueue(1)
    for full in (True, False):
        assert enqueue_and_die(1, full=full).id == before.id
    enqueue_and_die(2)
    assert sweep("default").jobs == 3
    assert get_queue().stats().total == 2
    assert not OutboxRow.objects.exists()
    assert [deliver(), deliver()] == [Outcome.SUCCEEDED] * 2
    enqueue_and_die(1, full=True)
    sweep("default")
    assert get_queue().get(before.id).payload["kwargs"] == {"full": True}
    assert deliver() is Outcome.SUCCEEDED


def test_the_id_of_a_call_goes_before_the_key(make):
    made = make(sync, unique=True)
    made.enqueue(1)
    own = made.using(job_id="mine").enqueue(1)
    assert (own.id, own.created) == ("mine", True)
    with pytest.raises(JobConflictError):
        made.using(job_id="mine").enqueue(2)
    with pytest.raises(InvalidOptionError, match="job_id"):
        made.using(job_id="mine").enqueue_many([made.s(1)])


def test_a_wrong_call_is_refused_as_ever(make):
    def work(anything) -> None: ...

    made = make(work, unique=True)
    for value in (object(), float("nan"), {1: 2}):
        with pytest.raises(SerializationError, match="the task: parameter 'anything'"):
            made.enqueue(value)
        with pytest.raises(SerializationError, match="the task: parameter 'anything'"):
            made.enqueue_many([made.s(value)])
    assert get_queue().stats().total == 0


def test_equal_numbers_and_sets_are_equal_keys(make):
    def work(ratio: float, tags: set[str], amount: Decimal, who: uuid.UUID | None = None) -> None: ...

    made = make(work, unique=True)
    words = [f"word {n}" for n in range(50)]
    first = made.enqueue(1, set(words), Decimal("1.5"))
    assert made.enqueue(1.0, set(words[25:] + words[:25]), Decimal("1.5"), None).id == first.id
    assert made.enqueue(1.0, set(words), Decimal("1.50")).created is True


@pytest.mark.parametrize(
    ("unique", "text"),
    [
        (["acount"], "has no parameter 'acount'; it has 'account', 'since', 'more', 'full', 'notes'"),
        ([3], "has no parameter 3"),
        ("account", "a list of parameters or a function is needed, not 'account'"),
        ([], "True, a list of parameters or a function is needed"),
        (3, "True, a list of parameters or a function is needed"),
        (None, "True, a list of parameters or a function is needed"),
    ],
)
def test_a_wrong_option_is_refused_at_the_decoration(make, unique, text):
    with pytest.raises(InvalidOptionError, match=f"unique: .*{text}"):
        make(sync, unique=unique)


def test_a_default_that_is_no_json_cannot_be_part_of_a_key(make):
    nothing: Any = object()

    def work(number: int, other=nothing) -> None: ...

    with pytest.raises(InvalidOptionError, match="the default of 'other' cannot be part of a key"):
        make(work, unique=True)
    assert make(work, unique=["number"]).enqueue(1).created is True


def test_a_long_name_gives_an_id_that_is_short_enough(make):
    made = make(sync, name="x" * 500, unique=True)
    other = make(sync, name="x" * 499, unique=True)
    assert len(made.enqueue(1).id) <= 200
    assert made.enqueue(1).id != other.enqueue(1).id


@pytest.fixture
def diary(tmp_path):
    diary = Diary(tmp_path / "diary")
    yield diary
    diary.close()


@pytest.mark.contract("ENQ-04", "PROC-01")
def test_ten_processes_at_once_give_one_job(make, tmp_path, diary):
    made = make(sync, unique=["account"])
    close_queues()
    errors = Diary(tmp_path / "errors")

    def enqueue():
        for number in range(5):
            diary.write(made.enqueue(7, full=bool(number % 2), pid=str(os.getpid())).created)

    run_all([Child(enqueue, errors=errors) for _ in range(10)])
    words = [line[0] for line in diary.lines()]
    assert (words.count("True"), words.count("False")) == (1, 49)
    assert get_queue().stats().total == 1
    errors.close()


def test_the_order_of_a_set_in_another_process_does_not_matter(make, tmp_path):
    program = "import django; django.setup(); from tests.unit.django.test_unique import digest; print(digest())"
    ids = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "DJANGO_SETTINGS_MODULE": "tests.settings"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in range(3)
    }
    assert len(ids) == 1
    assert ids == {f"{digest()}\n"}


def digest() -> str:
    """The key of a call with a set in it; also called in processes whose sets have another order."""

    def work(tags: set[str], table: dict[str, frozenset[str]]) -> None: ...

    made = task(name=f"digest {uuid.uuid4()}")(work)

    from nobroker_django.unique import UniqueKey

    registry.unregister(made)
    words = [f"word {n}" for n in range(100)]
    args = (set(words), {"a": frozenset(words)})
    payload = made.s(*args).payload
    return UniqueKey("digest", True, made.arguments).job_id(args, {}, payload)


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django's own decorator takes no options of a backend before 6.1")
def test_djangos_decorator_takes_it_too(settings):
    from django import tasks

    decorate: Any = tasks.task

    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.NobrokerBackend"}}
    made = decorate(unique=["account"], name="for django")(sync)
    try:
        first, again = made.enqueue(1), made.enqueue(1, full=True)
        assert (first.created, again.created, again.id) == (True, False, first.id)
        assert first.id.startswith("unique:for django:")
        with pytest.raises(compat.InvalidTask, match="has no parameter 'x'"):
            decorate(unique=["x"], name="wrong")(sync)
    finally:
        known = registry.find("for django")
        assert known is not None
        registry.unregister(known)
