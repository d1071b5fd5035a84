"""Calls that the type checker has to refuse. Never run: checked by ``test_typing``.

Each is marked with the error that mypy has to find. With ``warn_unused_ignores`` a call that is accepted is an
error of its own, so this file is clean only if every one is refused.
"""

from nobroker_django import task


@task
def bare(order_id: int, *, notify: bool = True) -> str:
    return str(order_id)


@task(queue_name="emails")
def send(address: str) -> None:
    return None


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
    task(time_limit="5m")  # type: ignore[call-overload]
    task(soft_time_limit=[5])  # type: ignore[call-overload]
    bare.using(time_limit=5)  # type: ignore[call-arg]
    task(queue="emails")  # type: ignore[call-overload]
    del number
