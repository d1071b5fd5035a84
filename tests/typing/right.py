"""Calls that the type checker has to accept, with the types it has to see. Never run: checked by ``test_typing``."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NotRequired, TypedDict, Unpack, assert_type
from uuid import UUID

from nobroker_django import BackoffPolicy, JobResult, TaskContext, task
from nobroker_django.decorators import Call, Task


@task
def bare(order_id: int, *, notify: bool = True) -> str:
    return str(order_id)


@task(
    queue_name="emails",
    priority=5,
    max_attempts=3,
    backoff=BackoffPolicy(base=2.0),
    visibility_timeout=60,
    soft_time_limit=timedelta(minutes=5),
    time_limit=400.0,
    name="send",
    aliases=["old.send"],
)
def send(address: str, copies: int = 1) -> None:
    return None


@task(backoff={"base": 1.0})
def some_options(*numbers: int) -> list[int]:
    return list(numbers)


@task(unique=True)
async def typed(when: datetime, *who: UUID, amount: Decimal = Decimal(0), **pauses: timedelta) -> dict[UUID, date]:
    return {}


@task
async def coroutine(number: int) -> int:
    return number


@task(unique=["day"])
def by_name(day: date, note: str = "") -> None: ...


@task(unique=lambda day, note="": f"{day:%Y-%m}")
def by_function(day: date, note: str = "") -> Iterable[date]:
    return [day]


@task(takes_context=True, queue_name="emails", unique=["number"])
def in_context(context: TaskContext, number: int, *, note: str = "") -> str:
    assert_type(context.attempt, int)
    assert_type(context.task_result, JobResult[Any])
    return note


@task(takes_context=True)
def of_any_kind(context: Any, number: int) -> int:
    return number


@task(takes_context=True)
async def later_in_context(context: TaskContext, day: date) -> date:
    return day


async def caller_without_context(context: TaskContext, day: date) -> None:
    assert_type(in_context.enqueue(1, note="x"), JobResult[str])
    assert_type(await in_context.using(delay=1).aenqueue(number=1), JobResult[str])
    assert_type(in_context.enqueue_many([in_context.s(1)]), list[JobResult[str]])
    assert_type(in_context(context, 1, note="x"), str)
    assert_type(in_context.get_result("id").return_value, str)
    assert_type(of_any_kind.enqueue(1), JobResult[int])
    assert_type(later_in_context.enqueue(day), JobResult[date])
    assert_type(await later_in_context(context, day), date)
    in_context.call(context, 1)
    await later_in_context.acall(context, day)


class Options(TypedDict):
    day: date
    note: NotRequired[str]


@task
def with_options(number: int, **options: Unpack[Options]) -> None: ...


def caller_with_options(day: date) -> None:
    with_options.enqueue(1, day=day)
    with_options.enqueue_many([with_options.s(1, day=day, note="x")])


async def typed_caller(when: datetime, who: UUID, days: Sequence[date]) -> None:
    result = typed.enqueue(when, who, who, amount=Decimal("1.5"), first=timedelta(1))
    assert_type(by_name.enqueue_many([by_name.s(day) for day in days]), list[JobResult[None]])
    assert_type(by_function.using(queue_name="emails").enqueue(days[0]).return_value, Iterable[date])
    assert_type(by_function.enqueue(day=days[0]).created, bool | None)
    assert_type(result, JobResult[dict[UUID, date]])
    assert_type(await typed(when), dict[UUID, date])
    assert_type(await typed.aenqueue(when, first=timedelta(1)), JobResult[dict[UUID, date]])
    assert_type(typed.using(delay=5).get_result("id").return_value, dict[UUID, date])
    assert_type(await typed.using(delay=5)(when), dict[UUID, date])
    assert_type(typed.enqueue_many([typed.s(when, who)]), list[JobResult[dict[UUID, date]]])
    assert_type(await coroutine.aget_result("id"), JobResult[int])
    assert_type(await coroutine(1), int)


async def caller() -> None:
    assert_type(bare(1), str)
    assert_type(bare.enqueue(1), JobResult[str])
    assert_type(bare.enqueue(order_id=1, notify=False), JobResult[str])
    assert_type(await bare.aenqueue(1, notify=False), JobResult[str])
    assert_type(bare.enqueue(1).wait(timeout=5).return_value, str)
    assert_type(bare.get_result("id").return_value, str)
    assert_type(await bare.aget_result("id"), JobResult[str])
    assert_type(send.using(delay=timedelta(hours=1), priority=0, job_id="x").enqueue("a", 2), JobResult[None])
    assert_type(some_options.enqueue_many(some_options.s(1, 2) for _ in range(3)), list[JobResult[list[int]]])
    assert_type(some_options.enqueue(1, 2, 3).return_value, list[int])
    first: Call[[str, int], None] | None = None
    also: Task[[str, int], None] | None = None
    del first, also
