"""The soft limit: raised in the task, once, and never after it has ended."""

import asyncio
import os
import signal
import sys
import threading
import time

import pytest

from nobroker_django import SoftTimeLimitExceeded
from nobroker_django.worker import soft_limits
from nobroker_django.worker.soft_limits import SoftLimits, run_limited

PATIENCE = 60.0
SOON = 0.001


def spin(seconds=PATIENCE):
    """Run Python code, which can be interrupted anywhere."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def spin_until(event):
    """In a frame of its own: in some versions the jump at the end of a loop is not part of the try around it."""
    while not event.is_set():
        pass


def instructions():
    """Enough of Python for a pending exception to be raised."""
    for number in range(100):
        str(number)


class Gate:
    """A way to send that says when it is about to, and waits until it may; and the same afterwards."""

    def __init__(self):
        self.reached, self.may_send, self.sent, self.may_go_on = (threading.Event() for _ in range(4))

    def __call__(self, thread):
        self.reached.set()
        assert self.may_send.wait(PATIENCE)
        soft_limits.send(thread)
        self.sent.set()
        assert self.may_go_on.wait(PATIENCE)


def test_the_exception_is_raised_in_the_block_and_says_the_limit():
    limits = SoftLimits()
    with (
        pytest.raises(SoftTimeLimitExceeded, match=r"^soft time limit of 0\.001 s$") as raised,
        limits.running(SOON),
    ):
        spin()
    assert raised.value.seconds == SOON


def test_the_task_itself_sees_the_limit_in_the_exception():
    limits, seen = SoftLimits(), []
    with limits.running(SOON):
        try:
            spin()
        except SoftTimeLimitExceeded as error:
            seen.append((error.seconds, str(error)))
    assert seen == [(SOON, "soft time limit of 0.001 s")]


def test_except_exception_does_not_swallow_it():
    limits = SoftLimits()
    with pytest.raises(SoftTimeLimitExceeded), limits.running(SOON):
        while True:
            try:
                spin()
            except Exception:
                pytest.fail("swallowed")


def test_a_block_without_a_limit_starts_no_thread():
    limits = SoftLimits()
    with limits.running(None):
        instructions()
    assert not limits.alive


def test_a_block_that_ends_in_time_is_left_alone_and_so_is_the_thread():
    limits = SoftLimits()
    for _ in range(1000):
        with limits.running(PATIENCE):
            pass
    assert limits._blocks == {}
    with limits.running(SOON), pytest.raises(SoftTimeLimitExceeded):
        spin()


def test_an_earlier_deadline_than_that_which_is_waited_for_is_kept():
    limits = SoftLimits()
    with limits.running(PATIENCE):
        instructions()
    with pytest.raises(SoftTimeLimitExceeded), limits.running(0.01):
        spin()


def test_it_comes_once_to_a_task_that_catches_it_and_goes_on():
    limits = SoftLimits()
    caught: list[int] = []
    with limits.running(SOON):
        for _ in range(2):
            try:
                spin(PATIENCE if not caught else 0.2)
            except SoftTimeLimitExceeded:
                caught.append(1)
    assert caught == [1]


def test_another_exception_of_the_task_stays_what_it_is():
    limits = SoftLimits()
    with pytest.raises(ValueError, match="own"), limits.running(PATIENCE):
        raise ValueError("own")
    with pytest.raises(ValueError, match="cleaning"), limits.running(SOON):
        try:
            spin()
        finally:
            raise ValueError("cleaning")


def test_only_the_thread_whose_time_is_over_gets_it():
    limits = SoftLimits()
    outcomes: dict[str, float | None] = {}
    stop = threading.Event()

    def work(name, seconds):
        try:
            with limits.running(seconds):
                spin_until(stop)
            outcomes[name] = None
        except SoftTimeLimitExceeded as error:
            outcomes[name] = error.seconds

    threads = [threading.Thread(target=work, args=(f"{n}", seconds)) for n, seconds in enumerate((0.01, 0.02, 50.0))]
    for thread in threads:
        thread.start()
    threads[0].join(PATIENCE)
    threads[1].join(PATIENCE)
    stop.set()
    threads[2].join(PATIENCE)
    assert outcomes == {"0": 0.01, "1": 0.02, "2": None}


# -- one after the other, as a scheduler might do it


def test_decided_but_not_sent_when_the_task_ends_it_is_waited_for_and_taken_back():
    gate = Gate()
    limits, log = SoftLimits(gate), []

    def work():
        with limits.running(SOON):
            assert gate.reached.wait(PATIENCE)
            log.append("ends")
        log.append("after")
        instructions()
        log.append("next job")

    thread = threading.Thread(target=work)
    thread.start()
    assert gate.reached.wait(PATIENCE)
    while not log:
        time.sleep(0)
    for _ in range(100):
        time.sleep(0)
        assert log == ["ends"]  # the thread does not leave its block while the exception is on its way
    gate.may_send.set()
    assert gate.sent.wait(PATIENCE)
    gate.may_go_on.set()
    thread.join(PATIENCE)
    assert log == ["ends", "after", "next job"]


def test_sent_and_arrived_while_the_task_ends_it_is_raised_in_the_block_or_dropped():
    """The thread is in ``__exit__`` when the exception arrives, and the watchdog has not yet said that it was sent."""
    gate = Gate()
    gate.may_send.set()
    limits, log = SoftLimits(gate), []

    def work():
        try:
            with limits.running(SOON):
                # A lock's acquire() is C code: what is sent meanwhile is raised when it has returned.
                assert gate.sent.wait(PATIENCE)
                log.append("not interrupted")
        except SoftTimeLimitExceeded:
            log.append("exceeded")
        instructions()
        log.append("next job")

    thread = threading.Thread(target=work)
    thread.start()
    assert gate.sent.wait(PATIENCE)
    gate.may_go_on.set()
    thread.join(PATIENCE)
    assert log == ["exceeded", "next job"]


def test_a_task_that_ended_first_is_not_sent_anything():
    sent: list[int] = []
    limits = SoftLimits(sent.append)
    block = limits.running(PATIENCE)
    with block:
        pass
    block.exceeded(sent.append)
    assert sent == []


def test_a_process_that_the_task_forks_does_not_wait_for_the_watchdog():
    gate = Gate()
    block = SoftLimits(gate).running(SOON)
    with pytest.raises(SoftTimeLimitExceeded), block:
        assert gate.reached.wait(PATIENCE)
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            block.__exit__(None, None, None)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        gate.may_send.set()
        gate.may_go_on.set()
        spin()


@pytest.fixture
def busy_switching():
    """The threads take turns hundreds of times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("busy_switching")
def test_tasks_that_end_exactly_at_their_limit_leave_nothing_behind():
    """Ten thousand rounds: the exception comes inside of the block or not at all."""
    limits = SoftLimits()
    strays: list[BaseException] = []
    counts = {"ended": 0, "exceeded": 0}
    lock = threading.Lock()

    def work(rounds):
        ended = exceeded = 0
        try:
            for number in range(rounds):
                seconds = 0.00005 + number % 7 * 0.00001
                try:
                    with limits.running(seconds):
                        spin(seconds)
                    ended += 1
                except SoftTimeLimitExceeded:
                    exceeded += 1
                instructions()
        except BaseException as error:
            strays.append(error)
        with lock:
            counts["ended"] += ended
            counts["exceeded"] += exceeded

    threads = [threading.Thread(target=work, args=(2500,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert strays == []
    assert sum(counts.values()) == 10_000
    assert min(counts.values()) > 0, counts
    assert limits._blocks == {}


# -- coroutines


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


async def forever():
    await asyncio.Event().wait()


def test_a_coroutine_that_takes_too_long_is_cancelled_and_says_so():
    seen = []

    async def work():
        try:
            await forever()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main():
        with pytest.raises(SoftTimeLimitExceeded, match=r"soft time limit of 0\.001 s") as raised:
            await run_limited(work(), SOON)
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)

    run(main())
    assert seen == ["cancelled"]


def test_a_coroutine_in_time_gives_its_value_or_its_own_exception():
    async def work(value):
        await asyncio.sleep(0)
        if isinstance(value, BaseException):
            raise value
        return value

    async def main():
        assert await run_limited(work(3), None) == 3
        assert await run_limited(work(3), PATIENCE) == 3
        with pytest.raises(ValueError, match="own"):
            await run_limited(work(ValueError("own")), PATIENCE)
        with pytest.raises(asyncio.CancelledError):
            await run_limited(work(asyncio.CancelledError()), PATIENCE)

    run(main())


def test_a_coroutine_that_catches_the_cancellation_goes_on_and_is_not_cancelled_again():
    async def work():
        try:
            await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "cleaned up"

    async def main():
        assert await run_limited(work(), SOON) == "cleaned up"
        assert asyncio.current_task().cancelling() == 0
        async with asyncio.timeout(PATIENCE):
            await asyncio.sleep(0)

    run(main())


def test_who_cancels_for_another_reason_gets_a_cancellation():
    async def main():
        task = asyncio.create_task(run_limited(forever(), PATIENCE))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(main())


def test_cancelled_by_both_it_is_a_cancellation():
    async def main():
        cleaning = asyncio.Event()

        async def work():
            try:
                await forever()
            finally:
                cleaning.set()
                await forever()

        task = asyncio.create_task(run_limited(work(), SOON))
        await cleaning.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(main())


def test_a_time_limit_of_the_task_itself_keeps_its_own_error():
    async def work():
        async with asyncio.timeout(SOON):
            await forever()

    async def main():
        with pytest.raises(TimeoutError):
            await run_limited(work(), PATIENCE)

    run(main())
