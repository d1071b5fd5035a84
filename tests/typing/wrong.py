"""Calls that the type checker has to refuse. Never run: checked by ``test_typing``.

Each is marked with the error that mypy has to find. With ``warn_unused_ignores`` a call that is accepted is an
error of its own, so this file is clean only if every one is refused.
"""

from datetime import date, datetime
from uuid import UUID

from nobroker_django import JobResult, TaskContext, task
from tests.typing.right import with_options


@task
def bare(order_id: int, *, notify: bool = True) -> str:
    return str(order_id)


@task(queue_name="emails")
def send(address: str) -> None:
    return None


@task(unique=True)
async def typed(when: datetime, *who: UUID, day: date | None = None) -> date:
    return when.date()


@task(takes_context=True)
def in_context(context: TaskContext, number: int) -> str:
    return str(number)


@task(takes_context=True)
async def later_in_context(context: TaskContext, number: int) -> str:
    return str(number)


async def caller_without_context(context: TaskContext) -> None:
    in_context.enqueue(context, 1)  # type: ignore[call-arg, arg-type]
    in_context.enqueue(1, context=context)  # type: ignore[call-arg]
    in_context.enqueue("1")  # type: ignore[arg-type]
    in_context.s(context)  # type: ignore[arg-type]
    in_context(1)  # type: ignore[call-arg]
    later_in_context.enqueue()  # type: ignore[call-arg]
    number: int = await later_in_context(context, 1)  # type: ignore[assignment]
    del number


@task(takes_context=True)  # type: ignore[arg-type]
def nothing_to_take() -> None: ...


@task(takes_context=True)  # type: ignore[arg-type]
def only_by_name(*, context: TaskContext) -> None: ...


def caller_with_options(day: date) -> None:
    with_options.enqueue(1)  # type: ignore[call-arg]
    with_options.enqueue(1, day="2030-01-01")  # type: ignore[arg-type]
    with_options.s(1, day=day, other=1)  # type: ignore[call-arg]


async def typed_caller(when: datetime, who: UUID) -> None:
    typed.enqueue("2030-01-01")  # type: ignore[arg-type]
    typed.enqueue(when.timestamp())  # type: ignore[arg-type]
    typed.enqueue(when, "who")  # type: ignore[arg-type]
    typed.enqueue(when, who, day="2030-01-01")  # type: ignore[arg-type]
    typed.enqueue(when, who, days=None)  # type: ignore[call-arg]
    typed.s(who)  # type: ignore[arg-type]
    await typed.aenqueue(3)  # type: ignore[arg-type]
    typed.enqueue_many([bare.s(1)])  # type: ignore[list-item]
    text: str = typed.enqueue(when).return_value  # type: ignore[assignment]
    other: JobResult[str] = typed.get_result("id")  # type: ignore[assignment]
    waited: JobResult[int] = typed.enqueue(when).wait()  # type: ignore[assignment]
    task(unique=1)  # type: ignore[call-overload]
    task(unique=[1])  # type: ignore[list-item]
    task(unique=lambda day: 3)  # type: ignore[arg-type, return-value]
    number: int = await typed(when)  # type: ignore[assignment]
    year: int = typed(when).year  # type: ignore[attr-defined]
    typed.using(unique=True)  # type: ignore[call-arg]
    del text, other, waited, number, year


async def caller() -> None:
    bare.enqueue("one")  # type: ignore[arg-type]
    bare.enqueue()  # type: ignore[call-arg]
    bare.enqueue(1, True)  # type: ignore[call-arg]
    bare.enqueue(1, notfy=True)  # type: ignore[call-arg]
    bare.enqueue(1, notify="yes")  # type: ignore[arg-type]
    bare("one")  # type: ignore[arg-type]
    bare.s("one")  # type: ignore[arg-type]
    await bare.aenqueue("one")  # type: ignore[arg-type]
    bare.using(priority="high")  # type: ignore[arg-type]
    bare.using(prioriti=1)  # type: ignore[call-arg]
    bare.using(priority=1).enqueue("one")  # type: ignore[arg-type]
    bare.enqueue_many([send.s("a")])  # type: ignore[list-item]
    number: int = bare.enqueue(1).return_value  # type: ignore[assignment]
    send.enqueue(b"bytes")  # type: ignore[arg-type]
    task(priority="high")  # type: ignore[call-overload]
    task(takes_context=1)  # type: ignore[call-overload]
    task(time_limit="5m")  # type: ignore[call-overload]
    task(soft_time_limit=[5])  # type: ignore[call-overload]
    bare.using(time_limit=5)  # type: ignore[call-arg]
    task(queue="emails")  # type: ignore[call-overload]
    del number
