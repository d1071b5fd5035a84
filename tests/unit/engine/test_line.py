"""Coroutines that wait for a job: their thread sleeps at the bell, and whoever has to wakes it."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from nobroker_django import Queue, QueueClosedError
from nobroker_django.engine import bell, line
from nobroker_django.engine.aio import AsyncQueue
from nobroker_django.engine.coroutines import Signal
from nobroker_django.engine.wake import Wake
from tests.support.loops import run
from tests.support.procs import PATIENCE

pytestmark = pytest.mark.contract("WORK-05")


class Sleeper(Wake):
    """Notes how the thread goes to sleep."""

    slept: list[tuple[int, float]]
    asleep: threading.Event
    woken = staticmethod(lambda ready: None)

    def wait(self, fds: Sequence[int], seconds: float) -> list[int]:
        self.slept.append((len(fds), seconds))
        self.asleep.set()
        ready = super().wait(fds, seconds)
        self.woken(ready)
        return ready


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> type[Sleeper]:
    """Nobody looks just because time has passed: who sleeps is woken, or the test fails."""

    class Noting(Sleeper):
        slept = []
        asleep = threading.Event()

    monkeypatch.setattr(line, "Wake", Noting)
    monkeypatch.setattr(line, "SAFETY_SECONDS", 1000.0)
    monkeypatch.setattr(bell, "LISTENING_SECONDS", 3000.0)
    monkeypatch.setattr(line, "LONGEST_WAIT_SECONDS", 3600.0)
    return Noting


async def until_asleep(sleeper: type[Sleeper]) -> None:
    assert await asyncio.to_thread(sleeper.asleep.wait, PATIENCE)
    sleeper.asleep.clear()


def test_a_job_of_another_process_wakes_who_waits_and_nothing_else_does(queue_dir, sleeper):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            for number in range(3):
                waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
                await until_asleep(sleeper)
                with Queue(queue_dir) as other:
                    other.enqueue(number)
                job = await waiting
                assert job.payload == number
                await queue.ack(job)

    run(main())
    assert {fds for fds, _ in sleeper.slept} == {2}
    assert {seconds for _, seconds in sleeper.slept} == {1000.0}
    assert len(sleeper.slept) <= 3 * 2  # a byte may have come from the opening


def test_a_delayed_job_is_waited_for_until_its_time_and_no_longer(queue_dir, sleeper, clock):
    async def main() -> None:
        async with AsyncQueue(queue_dir, clock=clock) as queue:
            await queue.enqueue("later", delay=50)
            waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
            await until_asleep(sleeper)
            assert sleeper.slept[-1] == (2, pytest.approx(50))
            clock.advance(50)
            await queue.enqueue("rings")
            assert (await waiting).payload == "later"

    run(main())


def test_closing_wakes_the_thread(queue_dir, sleeper):
    async def main() -> None:
        queue = await AsyncQueue.open(queue_dir)
        waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
        await until_asleep(sleeper)
        await queue.close()
        with pytest.raises(QueueClosedError):
            await waiting

    run(main())


def test_when_the_last_one_leaves_the_thread_leaves_the_bell(queue_dir, sleeper):
    """Else it would take the bytes that are meant for others."""
    woken = threading.Event()

    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
            await until_asleep(sleeper)
            sleeper.woken = staticmethod(lambda ready: woken.set())
            waiting.cancel()
            assert await asyncio.to_thread(woken.wait, PATIENCE)

    run(main())


def test_a_byte_that_nobody_here_can_use_is_put_back(queue_dir, sleeper):
    """The coroutine goes at the moment when the bell is rung for it: another process is woken instead."""

    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
            await until_asleep(sleeper)
            places = queue._threads.line._places

            def gone(ready: list[int]) -> None:
                if len(ready) == 1 and places:
                    queue._threads.line.leave(places[0])

            sleeper.woken = staticmethod(gone)
            other = await asyncio.to_thread(Queue, queue_dir)
            with other:
                await asyncio.to_thread(other.enqueue, "x")
                with other._session.listen() as listening:
                    assert await asyncio.to_thread(listening.wait, PATIENCE)
            waiting.cancel()

    run(main())


def test_who_cannot_take_a_job_does_not_listen(queue_dir, sleeper, monkeypatch):
    """The event loop of the only one who waits stands still: that is looked at again soon, and not at the bell."""

    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            monkeypatch.setattr(Signal, "is_awaited", False)
            waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
            await until_asleep(sleeper)
            assert sleeper.slept[-1] == (1, line.LOOK_SECONDS)
            await queue.enqueue("x")
            monkeypatch.setattr(Signal, "is_awaited", True)
            assert (await waiting).payload == "x"

    run(main())


def test_without_a_fifo_it_looks_often(queue_dir, sleeper):
    (queue_dir / "default.run").mkdir(parents=True)
    (queue_dir / "default.run" / "bell").write_text("no FIFO")

    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
            await until_asleep(sleeper)
            assert sleeper.slept[-1] == (1, line.LOOK_SECONDS)
            await queue.enqueue("x")
            assert (await waiting).payload == "x"

    run(main())


def test_waking_before_the_sleep_or_often_is_waking_once():
    wake = Wake()
    for _ in range(100_000):
        wake.set()
    assert wake.wait([wake.fd], PATIENCE) == [wake.fd]
    while wake.wait([wake.fd], 0):
        pass
    threading.Timer(0, wake.set).start()
    assert wake.wait([wake.fd], PATIENCE) == [wake.fd]
    wake.close()
    wake.set()
