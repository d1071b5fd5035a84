"""One delivery: whatever the task does becomes an outcome in the queue."""

import asyncio
import contextlib
import contextvars
import decimal
import sys
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone, translation
from django.utils.translation import gettext_lazy

from nobroker_django import (
    BackoffPolicy,
    JobState,
    SerializationError,
    SoftTimeLimitExceeded,
    registry,
)
from nobroker_django.execution import Outcome, execute
from nobroker_django.queues import get_queue
from nobroker_django.testing import run_jobs

from .sample import add


def deliver():
    job = get_queue().lease_one(timeout=60)
    assert job is not None
    return job, execute(get_queue(), job)


def test_a_returned_value_is_stored_with_the_success():
    result = add.enqueue(1)
    job, report = deliver()
    assert (report.outcome, report.task, report.attempt, report.error) == (Outcome.SUCCEEDED, add.name, 1, "")
    stored = get_queue().get(job.id)
    assert (stored.state, stored.result, stored.outcome) == (JobState.DONE, 2, "succeeded")
    result.refresh()
    assert result.return_value == 2


def test_a_coroutine_function_is_run_to_its_end(make):
    async def work(a):
        await asyncio.sleep(0)
        return a + 1

    make(work).enqueue(1)
    job, _ = deliver()
    assert get_queue().get(job.id).result == 2


def test_what_a_job_sets_for_itself_does_not_reach_the_next_one(make):
    """C48: language, time zone, context variables, the decimal context (which is one of them)."""
    variable = contextvars.ContextVar("variable", default="unset")

    def leak():
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        variable.set("set")
        decimal.getcontext().prec = 3
        raise ValueError

    def look():
        return [
            translation.get_language(), timezone.get_current_timezone_name(), variable.get(), decimal.getcontext().prec
        ]  # fmt: skip

    before = look()
    make(leak, name="leaking").enqueue()
    deliver()
    result = make(look, name="looking").using(priority=1).enqueue()
    deliver()
    result.refresh()
    assert result.return_value == before


def test_a_task_may_run_an_event_loop_of_its_own(make):
    """C50."""

    async def inner():
        return 3

    make(lambda: asyncio.run(inner())).enqueue()
    job, _ = deliver()
    assert get_queue().get(job.id).result == 3


class OwnBaseError(BaseException):
    pass


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitingText(Exception):
    def __str__(self):
        sys.exit(3)


class EndlessText(Exception):
    def __str__(self):
        return str(self)


class NumberText(Exception):
    def __str__(self):
        return 3


class LyingClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class UnreadableStr(str):
    def __getitem__(self, key: object) -> str:
        raise RuntimeError("no part of it")


class LyingText(Exception):
    def __str__(self):
        return UnreadableStr("the text")


class NamelessKind(type):
    def __getattribute__(cls, name: str) -> object:
        if name in ("__qualname__", "__module__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=NamelessKind):
    pass


def with_note():
    error = ValueError("noted")
    error.__notes__ = [3, NoText()]  # type: ignore[list-item]
    return error


@pytest.mark.parametrize(
    ("make_error", "name"),
    [
        (lambda: ValueError("wrong"), "ValueError"),
        (lambda: SystemExit(0), "SystemExit"),
        (lambda: SystemExit(3), "SystemExit"),
        (KeyboardInterrupt, "KeyboardInterrupt"),
        (GeneratorExit, "GeneratorExit"),
        (asyncio.CancelledError, "CancelledError"),
        (OwnBaseError, "OwnBaseError"),
        (MemoryError, "MemoryError"),
        (StopIteration, "StopIteration"),
        (NoText, "NoText"),
        (ExitingText, "ExitingText"),
        (EndlessText, "EndlessText"),
        (NumberText, "NumberText"),
        (LyingClass, "LyingClass"),
        (LyingText, "LyingText"),
        (Nameless, "Nameless"),
        (with_note, "ValueError"),
        (lambda: ValueError("x" * 1_000_000), "ValueError"),
        (lambda: ValueError("\x00\x1b[2J\r\n\u202e\ud800"), "ValueError"),
        (lambda: ExceptionGroup("several", [ValueError("a"), NoText()]), "ExceptionGroup"),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError"),
    ],
)
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_anything_raised_is_a_failed_attempt_that_is_recorded(make, make_error, name, kind):
    """C31, C32."""

    async def work_in_a_coroutine():
        raise make_error()

    def work():
        raise make_error()

    chosen = work if kind == "function" else work_in_a_coroutine
    make(chosen, max_attempts=2, backoff={"base": 0}).enqueue()
    job, report = deliver()
    assert report.outcome is Outcome.FAILED
    stored = get_queue().get(job.id)
    assert (stored.state, stored.attempts) == (JobState.READY, 1)
    # A coroutine that raises StopIteration ends with a RuntimeError (PEP 479).
    assert (stored.errors[-1].error_class or "").endswith((name, "RuntimeError" if name == "StopIteration" else name))
    get_queue().nack(get_queue().lease_one(timeout=60))
    assert get_queue().get(job.id).state is JobState.DEAD


def test_the_last_attempt_makes_a_dead_letter(make):
    def work():
        raise ValueError("wrong")

    make(work, max_attempts=1).enqueue()
    job, report = deliver()
    assert (report.outcome, report.retry_in) == (Outcome.DEAD, None)
    assert [dead.id for dead in get_queue().dlq()] == [job.id]
    assert "wrong" in report.error


def test_the_backoff_of_the_task_decides_about_the_pause(make):
    def work():
        raise ValueError

    make(work, backoff=BackoffPolicy(base=1000, factor=1, max_delay=5000, jitter=0)).enqueue()
    _, report = deliver()
    assert report.retry_in == pytest.approx(1000, abs=2)


def test_without_one_the_queue_decides(make, settings):
    settings.NOBROKER = {**settings.NOBROKER, "BACKOFF": {"BASE": 250, "JITTER": 0}}

    def work():
        raise ValueError

    make(work).enqueue()
    _, report = deliver()
    assert report.retry_in == pytest.approx(250, abs=2)


def test_an_unknown_task_is_tried_again_after_the_delay_for_it(settings):
    settings.NOBROKER = {**settings.NOBROKER, "UNKNOWN_TASK_DELAY": 77}
    get_queue().enqueue({"task": "gone.task", "args": [1], "kwargs": {"a": 2}})
    job, report = deliver()
    assert report.outcome is Outcome.FAILED
    assert report.retry_in == pytest.approx(77, abs=2)
    stored = get_queue().get(job.id)
    assert stored.errors[-1].error_class == "nobroker_django.execution.UnknownTaskError"
    assert "no task 'gone.task' is known here" in (stored.last_error or "")
    assert stored.payload == {"task": "gone.task", "args": [1], "kwargs": {"a": 2}}


def test_a_renamed_task_is_found_by_its_old_name_after_a_requeue(make):
    """C37."""
    get_queue().enqueue({"task": "old.name", "args": [4], "kwargs": {}}, max_attempts=1)
    job, report = deliver()
    assert report.outcome is Outcome.DEAD
    make(lambda a: a, aliases=["old.name"])
    get_queue().requeue_dead()
    _, report = deliver()
    assert report.outcome is Outcome.SUCCEEDED
    assert get_queue().get(job.id).result == 4


@pytest.mark.contract("DJ-05")
@pytest.mark.parametrize("now", ["gone", "no task any more"])
def test_jobs_of_a_task_that_is_gone_keep_nobody_up_and_run_when_it_is_back(make, monkeypatch, now):
    """C37: ten of them among a hundred others."""
    known = make(lambda a: a, name=f"{__name__}.a_task", max_attempts=2)
    jobs = [known.enqueue(number) for number in range(10)]
    others = add.enqueue_many(add.s(number) for number in range(100))
    registry.unregister(known)
    if now != "gone":
        monkeypatch.setattr(sys.modules[__name__], "a_task", lambda a: a, raising=False)
    assert [report.outcome for report in run_jobs()] == [Outcome.FAILED] * 10 + [Outcome.SUCCEEDED] * 100
    assert [report.outcome for report in run_jobs(delayed=True)] == [Outcome.DEAD] * 10
    assert {add.get_result(other.id).status for other in others} == {"SUCCESSFUL"}
    dead = {job.id: job for job in get_queue().dlq()}
    assert [dead[job.id].payload["args"] for job in jobs] == [[number] for number in range(10)]
    assert all("is known here" in (job.last_error or "") for job in dead.values())
    make(lambda a: a, name="b.renamed", aliases=[known.name])
    assert get_queue().requeue_dead() == 10
    assert [report.outcome for report in run_jobs()] == [Outcome.SUCCEEDED] * 10
    assert [get_queue().get(job.id).result for job in jobs] == list(range(10))


@pytest.mark.parametrize(
    ("args", "kwargs", "now"),
    [
        ([1], {"gone": 2}, lambda a: a),
        ([1, 2], {"flag": False}, lambda a, site, b, flag=False: a),
        ([1], {"b": 2}, lambda a, site, b: a),
        ([1, 2], {}, lambda: None),
    ],
)
def test_arguments_that_the_task_no_longer_takes_fail_and_stay_in_the_job(make, args, kwargs, now):
    """C38: the task does not begin, and after a mend the same arguments run."""
    get_queue().enqueue({"task": "the task", "args": args, "kwargs": kwargs}, max_attempts=1)
    changed = make(now)
    job, report = deliver()
    assert report.outcome is Outcome.DEAD
    dead = get_queue().get(job.id)
    assert dead.errors[-1].error_class == "nobroker_django.execution.ArgumentsChangedError"
    assert (dead.payload["args"], dead.payload["kwargs"]) == (args, kwargs)
    assert "requeue" in report.error
    registry.unregister(changed)
    make(lambda *args, **kwargs: [list(args), kwargs])
    get_queue().requeue_dead(job.id)
    deliver()
    assert get_queue().get(job.id).result == [args, kwargs]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_task_that_exceeds_its_soft_limit_has_failed_in_this_attempt(make, kind):
    def work():
        while True:
            str(1)

    async def work_in_a_coroutine():
        await asyncio.Event().wait()

    chosen = work if kind == "function" else work_in_a_coroutine
    make(chosen, max_attempts=2, backoff={"base": 0}, soft_time_limit=0.01).enqueue()
    _, report = deliver()
    assert report.outcome is Outcome.FAILED
    job, report = deliver()
    assert (report.outcome, report.error) == (
        Outcome.DEAD,
        "nobroker_django.SoftTimeLimitExceeded: soft time limit of 0.01 s",
    )
    error = get_queue().get(job.id).errors[-1]
    assert (error.error_class, error.message) == (
        "nobroker_django.SoftTimeLimitExceeded",
        "soft time limit of 0.01 s",
    )
    assert chosen.__name__ in (error.traceback or "")


def test_the_soft_limit_of_the_queue_holds_for_tasks_without_one(make, settings):
    settings.NOBROKER = {**settings.NOBROKER, "QUEUES": {"default": {"SOFT_TIME_LIMIT": 0.01}}}

    def work():
        while True:
            str(1)

    make(work).enqueue()
    _, report = deliver()
    assert "soft time limit of 0.01 s" in report.error


def test_a_task_that_catches_the_end_of_its_soft_limit_may_return(make):
    def work():
        try:
            while True:
                str(1)
        except SoftTimeLimitExceeded as error:
            return error.seconds

    make(work, soft_time_limit=0.01).enqueue()
    job, report = deliver()
    assert report.outcome is Outcome.SUCCEEDED
    assert get_queue().get(job.id).result == 0.01


@pytest.mark.parametrize("payload", [None, "hello", [1], {"task": "x"}, {"task": 1, "args": [], "kwargs": {}}])
def test_a_payload_that_is_no_task_is_a_dead_letter_at_once(payload):
    get_queue().enqueue(payload)
    job, report = deliver()
    assert report.outcome is Outcome.DEAD
    assert "not a task" in report.error
    dead = get_queue().get(job.id)
    assert (dead.state, dead.attempts, dead.payload) == (JobState.DEAD, 1, payload)


class Changing(dict[str, int]):
    def __iter__(self):
        raise RuntimeError("no iteration")

    items = keys = values = __iter__


@pytest.mark.parametrize(
    "value",
    [{1}, object(), (n for n in "ab"), "x" * 2_000_000, Changing(), {1: 2}, gettext_lazy("x"), float("nan"), "\ud800"],
    ids=["set", "object", "generator", "too large", "odd dict", "keys", "lazy", "nan", "surrogate"],
)
def test_a_return_value_that_cannot_be_stored_is_a_failed_attempt_that_says_so(make, value):
    make(lambda: value, max_attempts=1).enqueue()
    job, report = deliver()
    assert report.outcome is Outcome.DEAD
    error = get_queue().get(job.id).errors[-1]
    assert error.error_class == "nobroker_django.execution.ReturnValueError"
    assert error.message is not None
    assert "ran, but its return value cannot be stored" in error.message


def test_a_return_value_with_tuples_is_stored_as_lists(make):
    make(lambda: (1, (2,))).enqueue()
    job, _ = deliver()
    assert get_queue().get(job.id).result == [1, [2]]


def test_an_outcome_after_the_lease_was_lost_does_not_count(make):
    def work():
        get_queue().release([held[0]])

    make(work).enqueue()
    held = [get_queue().lease_one()]
    report = execute(get_queue(), held[0])
    assert report.outcome is Outcome.LOST
    assert get_queue().get(held[0].id).state is JobState.READY


def test_a_failure_after_the_lease_was_lost_does_not_count_either(make):
    def work():
        get_queue().release([held[0]])
        raise ValueError

    make(work).enqueue()
    held = [get_queue().lease_one()]
    assert execute(get_queue(), held[0]).outcome is Outcome.LOST
    assert get_queue().get(held[0].id).errors == []


def test_the_outcome_of_a_job_that_was_purged_meanwhile_does_not_count(make):
    make(lambda: get_queue().purge() and None).enqueue()
    assert execute(get_queue(), get_queue().lease_one()).outcome is Outcome.LOST


@pytest.mark.django_db(transaction=True)
def test_a_broken_database_connection_fails_at_most_the_job_during_which_it_broke(make, monkeypatch):
    def work():
        connections["default"].cursor()
        return 1

    def refuse():
        raise RuntimeError("cannot even be closed")

    make(work).enqueue()
    connections["default"].ensure_connection()
    with monkeypatch.context() as patch:
        patch.setattr(connections["default"], "close_if_unusable_or_obsolete", refuse)
        _, report = deliver()
    assert report.outcome is Outcome.SUCCEEDED


def test_the_traceback_of_the_task_is_kept(make):
    def deep():
        raise ValueError("from the depth")

    def work():
        deep()

    make(work).enqueue()
    job, _ = deliver()
    text = get_queue().get(job.id).errors[-1].traceback or ""
    assert "in deep" in text
    assert "from the depth" in text


def test_a_serialization_error_of_the_task_itself_is_its_own_failure(make):
    def work():
        add.enqueue({1})  # type: ignore[arg-type]

    make(work).enqueue()
    job, _ = deliver()
    assert get_queue().get(job.id).errors[-1].error_class == "nobroker_django.arguments.ArgumentError"
    with contextlib.suppress(SerializationError):
        work()
