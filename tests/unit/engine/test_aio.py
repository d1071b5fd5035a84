"""``AsyncQueue``: the same verbs, no event loop blocked, and cancellation at every point."""

import asyncio
import inspect
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import (
    BackoffPolicy,
    InvalidOptionError,
    Job,
    JobConflictError,
    JobState,
    NotLeasedError,
    Queue,
    QueueClosedError,
    StorageError,
)
from nobroker_django.engine import line, offloop
from nobroker_django.engine.aio import AsyncQueue, QueueOptions
from tests.contract.helpers import RELEASE, Call, FailingFiles, RecordingFiles, in_child, read_log
from tests.support.loops import run
from tests.support.procs import PATIENCE


def appends(call: Call) -> bool:
    """Whether the call writes a record."""
    return call.name == "pwrite" and call.path.endswith(".log")


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every test runs its loops in debug mode; asyncio must not have complained about anything."""
    yield
    records = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    assert [record.getMessage() for record in records if record.name in {"asyncio", "concurrent.futures"}] == []


strangers: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _threads_of_earlier_tests():
    """Workers that other tests of this process ran may have left threads behind."""
    strangers.clear()
    strangers.update(threading.enumerate())


def own_threads() -> list[str]:
    """The threads of this test's queues. The one that closes a queue ends on its own, just after telling so."""
    own = [thread for thread in threading.enumerate() if thread not in strangers]
    for thread in own:
        if thread.name == "nobroker-closing":
            thread.join(PATIENCE)
    return [thread.name for thread in own if thread.is_alive() and thread.name.startswith("nobroker-")]


class Gate:
    """Stops the threads of a queue before certain system calls, until it is opened."""

    def __init__(self, matches: Callable[[Call], bool]) -> None:
        self.matches = matches
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.armed = False

    def __call__(self, call: Call) -> None:
        if self.armed and not self.opened.is_set() and self.matches(call):
            self.reached.set()
            assert self.opened.wait(PATIENCE)

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, PATIENCE)


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- the same verbs

NOT_VERBS = {"close", "now", "path", "recovery", "read_only", "dir", "processing"}


def verbs_of(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in NOT_VERBS
    }


def test_every_verb_of_a_queue_is_a_coroutine_with_the_same_parameters():
    verbs = verbs_of(Queue)
    assert {"enqueue", "enqueue_many", "lease", "ack", "nack", "stats", "compact"} <= set(verbs)
    for name, signature in verbs.items():
        twin = getattr(AsyncQueue, name)
        assert inspect.iscoroutinefunction(twin), name
        assert inspect.signature(twin).parameters == signature.parameters, name
    assert inspect.signature(AsyncQueue.processing).parameters == inspect.signature(Queue.processing).parameters


def test_the_options_are_those_of_a_queue():
    parameters = inspect.signature(Queue).parameters
    assert set(QueueOptions.__annotations__) == set(parameters) - {"path", "name"}


def test_every_verb_does_what_its_twin_does(queue_dir, clock):
    async def main() -> None:
        options: QueueOptions = {"clock": clock, "retention": 100, "backoff": BackoffPolicy(base=0)}
        async with AsyncQueue(queue_dir, "jobs", **options) as queue:
            one = await queue.enqueue({"n": 1}, priority=3, meta={"a": 1}, visibility_timeout=7)
            assert (one.payload, one.priority, one.meta, one.visibility_timeout) == ({"n": 1}, 3, {"a": 1}, 7)
            many = await queue.enqueue_many((n for n in range(2, 5)), delay=5, job_ids=["a", "b", "c"])
            assert [job.id for job in many] == ["a", "b", "c"]
            assert (await queue.enqueue(2, job_id="a")).created is False
            with pytest.raises(JobConflictError):
                await queue.enqueue("other", job_id="a")
            leased = await queue.lease_one()
            assert leased.id == one.id
            assert await queue.lease(5) == []
            assert (await queue.extend(leased, 10)).lease_deadline == leased.lease_deadline + 10
            await queue.ack(leased, result=[1])
            assert (await queue.get(one.id)).result == [1]
            clock.advance(5)
            a, b, c = await queue.lease(3)
            assert (await queue.nack(a, error=ValueError("no"), delay=50)).last_error == "ValueError: no"
            assert (await queue.bury(b, error="never")).state is JobState.DEAD
            assert await queue.release([c]) == []
            assert [job.id for job in await queue.dlq()] == ["b"]
            assert await queue.requeue_dead("b") == 1
            jobs = await queue.lease(5, visibility_timeout=3)
            assert [job.id for job in jobs] == ["b", "c"]
            assert await queue.ack_many([*jobs, a]) == [a]
            stats = await queue.stats()
            assert (stats.delayed, stats.done, stats.total) == (1, 3, 4)
            assert [job.id for job in await queue.list_jobs("ready", limit=5)] == ["a"]
            assert (await queue.compact()).jobs_kept == 4
            assert (await queue.path()).name == "jobs.000002.log"
            assert await queue.discard_dead(["a"]) == ["a"]
            assert await queue.purge() == 4
            assert queue.recovery.repaired is False

    run(main())


# --- opening and closing


def test_creating_one_opens_nothing_and_the_first_verb_opens(queue_dir):
    async def main() -> None:
        queue = AsyncQueue(queue_dir)
        await ticks(10)
        assert not queue_dir.exists()
        assert own_threads() == []
        stats, dead, jobs = await asyncio.gather(queue.stats(), queue.dlq(), queue.list_jobs())
        assert (stats.total, dead, jobs) == (0, [], [])
        await queue.close()

    run(main())


def test_an_option_that_queue_does_not_have_is_refused_at_once_and_a_bad_value_when_it_is_opened(queue_dir):
    with pytest.raises(TypeError, match="retentoin"):
        AsyncQueue(queue_dir, retentoin=5)  # type: ignore[call-arg]

    async def main() -> None:
        with pytest.raises(InvalidOptionError, match="max_attempts"):
            await AsyncQueue.open(queue_dir, max_attempts=0)
        with pytest.raises(InvalidOptionError, match="max_attempts"):
            async with AsyncQueue(queue_dir, max_attempts=0):
                pass
        assert own_threads() == []
        queue = await AsyncQueue.open(queue_dir)
        assert queue_dir.exists()
        await queue.close()

    run(main())


def test_opening_that_failed_is_tried_again_by_the_next_verb(queue_dir):
    files = FailingFiles(lambda call: call.name == "make_directory", PermissionError(13, "no"))

    async def main() -> None:
        queue = AsyncQueue(queue_dir, files=files)
        with pytest.raises(StorageError):
            await queue.stats()
        assert (await queue.stats()).total == 0
        await queue.close()

    run(main())


def test_closing_waits_for_the_calls_under_way(queue_dir):
    gate = Gate(lambda call: call.name == "datasync")

    async def main() -> None:
        queue = await AsyncQueue.open(queue_dir, files=RecordingFiles(gate))
        gate.armed = True
        adding = asyncio.create_task(queue.enqueue("x"))
        await gate.until_reached()
        closing = asyncio.create_task(queue.close())
        await ticks(200)
        assert not closing.done()
        for verb in (queue.stats(), queue.enqueue("y"), queue.lease(timeout=9)):
            with pytest.raises(QueueClosedError):
                await verb
        gate.opened.set()
        await closing
        assert adding.done()
        assert (await adding).payload == "x"
        await queue.close()
        with pytest.raises(QueueClosedError):
            await queue.stats()
        assert own_threads() == []

    run(main())
    with Queue(queue_dir) as reopened:
        assert [job.payload for job in reopened.list_jobs()] == ["x"]


def test_closing_waits_for_calls_that_were_made_but_have_no_thread_yet(queue_dir):
    async def main() -> None:
        queue = await AsyncQueue.open(queue_dir)
        end = threading.Event()
        for _ in range(offloop.POOL_THREADS):
            queue._threads.submit(end.wait, adding=True)
        adding = asyncio.create_task(queue.enqueue("x"))
        await ticks(5)
        closing = asyncio.create_task(queue.close())
        asyncio.get_running_loop().call_later(0.2, end.set)
        assert (await adding).payload == "x"
        await closing

    run(main())


def test_closing_ends_the_waiting_of_those_who_wait_for_a_job(queue_dir):
    async def main() -> None:
        queue = await AsyncQueue.open(queue_dir)
        waiting = [asyncio.create_task(queue.lease(timeout=PATIENCE)) for _ in range(5)]
        await ticks(50)
        await queue.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {QueueClosedError}
        assert own_threads() == []

    run(main())


# --- no event loop is blocked


async def every_verb(queue: AsyncQueue) -> None:
    """Each verb at least once, in an order that makes sense."""
    await queue.enqueue_many(range(6))
    await queue.enqueue("x", job_id="x")
    jobs = await queue.lease(6, timeout=1)
    await queue.ack(jobs[0], result={})
    await queue.ack_many(jobs[1:2])
    await queue.nack(jobs[2], error=ValueError("x"), delay=0)
    await queue.bury(jobs[3])
    await queue.extend(jobs[4], 5)
    await queue.release(jobs[4:])
    async with queue.processing(timeout=1) as job:
        assert job is not None
    await queue.lease(50, timeout=0.02)
    assert await queue.lease(timeout=0.02) == []
    await queue.get("x")
    await queue.list_jobs()
    await queue.dlq()
    await queue.stats()
    await queue.requeue_dead()
    await queue.path()
    await queue.compact()
    await queue.purge()


def test_no_system_call_is_made_in_the_thread_of_the_event_loop(queue_dir):
    callers: dict[int, str] = {}

    def note(call: Call) -> None:
        callers.setdefault(threading.get_ident(), str(call))

    files = RecordingFiles(note)

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=files) as queue:
            await every_verb(queue)

    run(main())
    assert len(files.record.calls) > 100
    assert threading.get_ident() not in callers, callers[threading.get_ident()]


class Watchdog:
    """Every system call of a kind waits until the event loop has gone round three times, which no blocked one does."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.rounds = 0
        self.calls = 0
        self.blocked = 0
        self._turn = threading.Condition()

    def __call__(self, call: Call) -> None:
        if call.name not in self.names or self.blocked:
            return
        with self._turn:
            self.calls += 1
            aim = self.rounds + 3
            if not self._turn.wait_for(lambda: self.rounds >= aim, PATIENCE / 2):
                self.blocked += 1

    async def watch(self) -> None:
        while True:
            with self._turn:
                self.rounds += 1
                self._turn.notify_all()
            await asyncio.sleep(0)


async def watched(dog: Watchdog, work: Awaitable[Any]) -> Any:
    watching = asyncio.create_task(dog.watch())
    try:
        return await work
    finally:
        watching.cancel()


def test_the_loop_goes_round_during_every_sync_of_a_thousand_durable_enqueues(queue_dir):
    dog = Watchdog("datasync")

    async def add(queue: AsyncQueue, numbers: range) -> None:
        for number in numbers:
            await queue.enqueue(number)

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=RecordingFiles(dog)) as queue:
            await asyncio.gather(*(add(queue, range(at, at + 20)) for at in range(0, 1000, 20)))
            assert (await queue.stats()).ready == 1000

    run(watched(dog, main()), debug=False)
    assert dog.blocked == 0
    assert dog.calls >= 20
    assert dog.rounds >= 3 * dog.calls / offloop.POOL_THREADS


def test_the_loop_goes_round_during_every_read_of_the_fold_of_a_backlog(queue_dir):
    with Queue(queue_dir, fsync=False) as backlog:
        for _ in range(10):
            backlog.enqueue_many([{"text": "x" * 300}] * 1000)
    dog = Watchdog("pread")

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=RecordingFiles(dog)) as queue:
            dog.calls = 0
            assert (await queue.stats()).ready == 10_000

    run(watched(dog, main()), debug=False)
    assert dog.blocked == 0
    assert dog.calls >= 5
    assert dog.rounds >= 3 * dog.calls


def test_the_watchdog_notices_a_blocked_loop(queue_dir, monkeypatch):
    dog = Watchdog("datasync")
    monkeypatch.setattr(dog, "_turn", Impatient())

    async def main() -> None:
        await ticks(5)
        with Queue(queue_dir, files=RecordingFiles(dog)) as queue:
            queue.enqueue("x")

    run(watched(dog, main()), debug=False)
    assert dog.blocked == 1


class Impatient(threading.Condition):
    """Waits hundredths of the time, for a wait that is known to be in vain."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        return super().wait_for(predicate, 0.1)


def test_while_another_process_holds_the_lock_every_verb_waits_and_the_loop_does_not(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue, AsyncQueue(queue_dir) as other:
            jobs = [await queue.enqueue(n) for n in range(9)]
            leased = await queue.lease(4)
            verbs = [
                queue.enqueue("x"), queue.enqueue("y", job_id="y"), queue.enqueue_many([1, 2]), queue.lease(),
                queue.lease(timeout=9), queue.ack(leased[0]), queue.nack(leased[1]), queue.release([leased[2]]),
                queue.extend(leased[3], 1), queue.get(jobs[5].id), queue.stats(), queue.list_jobs(), queue.path(),
            ]  # fmt: skip
            assert other._queue is not None
            with other._queue._session.locked():
                tasks = [asyncio.create_task(verb) for verb in verbs]
                for _ in range(200):
                    await asyncio.sleep(0.001)
                assert [task for task in tasks if task.done()] == []
            await asyncio.gather(*tasks)

    run(main())


def test_those_who_wait_for_a_job_keep_nobody_else_from_the_threads(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            waiting = [asyncio.create_task(queue.lease(timeout=PATIENCE)) for _ in range(300)]
            await ticks(50)
            for _ in range(20):
                assert (await queue.stats()).leased == 0
            assert len(own_threads()) <= 2 * offloop.POOL_THREADS + 1
            assert [task for task in waiting if task.done()] == []
            for task in waiting:
                task.cancel()
            assert len(await asyncio.gather(*waiting, return_exceptions=True)) == 300
            assert (await queue.enqueue("x")).created
            assert (await queue.lease_one()).attempts == 1

    run(main())


def test_adding_work_never_waits_behind_verbs_that_decide(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            end = threading.Event()
            busy = [queue._threads.submit(end.wait) for _ in range(3 * offloop.POOL_THREADS)]
            asyncio.get_running_loop().call_later(PATIENCE / 2, end.set)
            await queue.enqueue("x")
            await queue.enqueue_many(["y", "z"])
            assert not end.is_set()
            end.set()
            assert all(call.result() for call in busy)
            assert (await queue.stats()).ready == 3

    run(main())


# --- waiting for a job


@pytest.fixture
def only_news(monkeypatch):
    """Nobody looks again just because a second has passed: what is noticed was noticed by what has changed."""
    monkeypatch.setattr(line, "LONGEST_WAIT_SECONDS", 3600.0)


def test_those_who_wait_are_served_in_the_order_in_which_they_came(queue_dir, only_news):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            served: list[tuple[int, Any]] = []

            async def wait(number: int) -> None:
                served.append((number, (await queue.lease_one(timeout=PATIENCE)).payload))

            waiting = []
            for number in range(20):
                waiting.append(asyncio.create_task(wait(number)))
                await ticks(2)
            for number in range(20):
                await queue.enqueue(number)
            await asyncio.gather(*waiting)
            assert sorted(served) == [(number, number) for number in range(20)]

    run(main())


def test_one_write_of_many_jobs_serves_all_who_wait(queue_dir, only_news):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            waiting = [asyncio.create_task(queue.lease(2, timeout=PATIENCE)) for _ in range(10)]
            await ticks(20)
            await queue.enqueue_many(range(20))
            leased = await asyncio.gather(*waiting)
            assert sorted(job.payload for jobs in leased for job in jobs) == list(range(20))

    run(main())


def test_a_waiting_call_gets_a_delayed_job_when_its_time_comes_and_one_whose_lease_ran_out(
    queue_dir, clock, only_news
):
    async def main() -> None:
        async with AsyncQueue(queue_dir, clock=clock, backoff=BackoffPolicy(base=0)) as queue:
            await queue.enqueue("later", delay=50)
            for attempt in (1, 2):
                waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE, visibility_timeout=50))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                clock.advance(50)
                assert (await waiting).attempts == attempt

    run(main())


def test_waiting_ends_with_nothing_when_the_time_is_over_and_looks_once_more(queue_dir, monkeypatch):
    monkeypatch.setattr(line.Line, "_may_find_something", lambda self: False)

    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            assert await queue.lease(timeout=0.01) == []
            await queue.enqueue("x")
            assert [job.payload for job in await queue.lease(timeout=0.01)] == ["x"]

    run(main())


def test_a_failure_reaches_the_one_who_is_served_and_the_next_is_served_well(queue_dir, only_news):
    files = FailingFiles(appends, OSError(5, "I/O error"))
    files.armed = False

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=files) as queue:
            first = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
            await ticks(2)
            second = asyncio.create_task(queue.lease_one(timeout=PATIENCE))
            await asyncio.sleep(0.05)
            async with AsyncQueue(queue_dir) as other:
                files.armed = True
                await other.enqueue("x")
            with pytest.raises(StorageError):
                await first
            assert (await second).attempts == 1

    run(main())


def test_nobody_in_an_event_loop_that_was_closed_or_stands_still_is_given_a_job(queue_dir):
    queue = AsyncQueue(queue_dir)
    closed, still = asyncio.new_event_loop(), asyncio.new_event_loop()
    tasks = []
    for loop in (closed, still):
        tasks.append(loop.create_task(queue.lease(timeout=PATIENCE)))
        loop.run_until_complete(asyncio.sleep(0.02))
    tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]  # what asyncio would say is right
    closed.close()

    async def main() -> None:
        await queue.enqueue("x")
        assert (await queue.lease_one(timeout=PATIENCE)).attempts == 1
        await queue.enqueue("y")

    run(main())
    assert [job.payload for job in still.run_until_complete(tasks[1])] == ["y"]
    still.close()
    tasks[0].get_coro().close()
    run(queue.close())


# --- cancellation


class CancelAt:
    """Awaits a coroutine, and cancels the task at some of its suspension points (0 is the first)."""

    def __init__(self, work: Coroutine[Any, Any, Any], points: set[int]) -> None:
        self.work = work
        self.points = points
        self.seen = 0

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self.work.__await__()
        go_on: Callable[[], Any] = partial(steps.send, None)
        while True:
            try:
                future = go_on()
            except StopIteration as end:
                return end.value
            if self.seen in self.points:
                asyncio.current_task().cancel()
            self.seen += 1
            try:
                yield future
            except BaseException as error:
                go_on = partial(steps.throw, error)
            else:
                go_on = partial(steps.send, None)


async def cancelled_at(work: Coroutine[Any, Any, Any], points: set[int]) -> tuple[int, asyncio.CancelledError | None]:
    """Run ``work`` in a task of its own; at how many points it was suspended, and the cancellation that left it."""
    caught: list[asyncio.CancelledError] = []
    driver = CancelAt(work, points)

    async def drive() -> None:
        try:
            await driver
        except asyncio.CancelledError as error:
            caught.append(error)
            raise

    await asyncio.gather(asyncio.create_task(drive()), return_exceptions=True)
    return driver.seen, caught[0] if caught else None


POINTS = [set(), {0}, {1}, {2}, {3}, {0, 1}, {1, 2}, {0, 1, 2, 3}]


@pytest.mark.parametrize("points", POINTS, ids=str)
@pytest.mark.parametrize("timeout", [0, PATIENCE])
def test_a_lease_cancelled_at_any_point_is_given_back(queue_dir, points, timeout):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            await queue.enqueue_many(["x", "y"])
            seen, error = await cancelled_at(queue.lease(2, timeout=timeout), points)
            assert seen >= 1
            states = {(job.state, job.attempts) for job in await queue.list_jobs()}
            if error is None:
                assert not points & set(range(seen))
                assert states == {(JobState.LEASED, 1)}
            else:
                assert states == {(JobState.READY, 0)}
                assert [job.attempts for job in await queue.lease(5)] == [1, 1]

    run(main())


@pytest.mark.parametrize("points", POINTS, ids=str)
def test_an_enqueue_cancelled_at_any_point_has_happened_or_not_and_says_so(queue_dir, points):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            _, error = await cancelled_at(queue.enqueue("x"), points)
            jobs = await queue.list_jobs()
            if error is None:
                assert len(jobs) == 1
            else:
                (note,) = error.__notes__
                assert note.endswith(f"stored: {jobs[0].id}" if jobs else "nothing was stored")
            await asyncio.sleep(0.02)
            assert await queue.list_jobs() == jobs

    run(main())


@pytest.mark.parametrize("points", POINTS, ids=str)
def test_processing_cancelled_at_any_point_finishes_the_job_or_gives_it_back(queue_dir, points):
    async def main() -> None:
        async with AsyncQueue(queue_dir, retention=50) as queue:
            job_id = (await queue.enqueue("x")).id
            finished = []

            async def work() -> None:
                async with queue.processing(timeout=PATIENCE) as job:
                    assert job.id == job_id
                    await asyncio.sleep(0)
                    finished.append(job)

            await cancelled_at(work(), points)
            job = await queue.get(job_id)
            assert (job.state, job.attempts) == ((JobState.DONE, 1) if finished else (JobState.READY, 0))

    run(main())


ENDINGS: dict[str, tuple[Callable[[AsyncQueue, Job], Coroutine[Any, Any, Any]], JobState]] = {
    "ack": (lambda queue, job: queue.ack(job), JobState.DONE),
    "ack_many": (lambda queue, job: queue.ack_many([job]), JobState.DONE),
    "nack": (lambda queue, job: queue.nack(job), JobState.READY),
    "bury": (lambda queue, job: queue.bury(job), JobState.DEAD),
    "release": (lambda queue, job: queue.release([job]), JobState.READY),
}


@pytest.mark.parametrize("verb", ENDINGS)
@pytest.mark.parametrize("points", [{0}, {1}, {0, 1, 2}], ids=str)
def test_what_ends_a_lease_is_carried_out_although_it_is_cancelled_before_it_began(queue_dir, verb, points):
    call, state = ENDINGS[verb]

    async def main() -> None:
        async with AsyncQueue(queue_dir, retention=50) as queue:
            await queue.enqueue("x")
            job = await queue.lease_one()
            end = threading.Event()
            busy = [queue._threads.submit(end.wait) for _ in range(offloop.POOL_THREADS)]
            asyncio.get_running_loop().call_later(0.02, end.set)
            _, error = await cancelled_at(call(queue, job), points)
            end.set()
            assert (error is None) == (0 not in points)
            assert all(one.result() for one in busy)
            assert (await queue.get(job.id)).state is state

    run(main())


def test_a_call_that_has_not_begun_never_begins_when_it_is_cancelled(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            await queue.enqueue("x")
            end = threading.Event()
            for adding in (False, True):
                for _ in range(offloop.POOL_THREADS):
                    queue._threads.submit(end.wait, adding=adding)
            tasks = [asyncio.create_task(verb) for verb in (queue.lease(), queue.enqueue("y"), queue.purge())]
            await ticks(5)
            for task in tasks:
                task.cancel()
            asyncio.get_running_loop().call_later(0.5, end.set)  # for calls that were not dropped: they must not hang
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
            end.set()
            assert [(job.payload, job.state) for job in await queue.list_jobs()] == [("x", JobState.READY)]

    run(main())


def steps_of(work: Callable[[AsyncQueue], Coroutine[Any, Any, Any]], directory: Path) -> int:
    """How many system calls a verb makes."""

    async def main() -> int:
        files = RecordingFiles()
        async with AsyncQueue(directory, files=files) as queue:
            await queue.enqueue("x")
            await queue.stats()
            files.record.clear()
            await work(queue)
            return len(files.record.calls)

    return int(run(main()))


VERBS: dict[str, Callable[[AsyncQueue], Coroutine[Any, Any, Any]]] = {
    "lease": lambda queue: queue.lease(),
    "waiting lease": lambda queue: queue.lease(timeout=PATIENCE),
    "enqueue": lambda queue: queue.enqueue("y", job_id="y"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_cancelled_at_any_of_its_system_calls_is_settled_when_the_cancellation_comes(memory_dir, verb):
    work = VERBS[verb]
    count = steps_of(work, memory_dir / "counted")
    assert count >= 5
    for stop, twice in itertools.product(range(count), (False, True)):
        run(cancelled_at_system_call(memory_dir / f"{stop}-{twice}", work, stop, twice=twice))


async def cancelled_at_system_call(
    directory: Path, work: Callable[[AsyncQueue], Coroutine[Any, Any, Any]], stop: int, *, twice: bool
) -> None:
    calls = itertools.count()
    gate = Gate(lambda call: next(calls) == stop)
    async with AsyncQueue(directory, files=RecordingFiles(gate)) as queue:
        await queue.enqueue("x")
        await queue.stats()
        gate.armed = True
        task = asyncio.create_task(work(queue))
        await gate.until_reached()
        for _ in range(1 + twice):
            task.cancel()
            await ticks(5)
        assert not task.done(), "the cancellation did not wait for the call that was under way"
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.armed = False
        jobs = await queue.list_jobs()
        assert [(job.state, job.attempts) for job in jobs if job.payload == "x"] == [(JobState.READY, 0)]
        assert len(jobs) == (2 if work is VERBS["enqueue"] else 1)


def test_a_lease_that_is_over_when_the_cancellation_comes_is_given_back(queue_dir, monkeypatch):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            await queue.enqueue("x")
            calls: list[Future[Any]] = []
            submit = offloop.Threads.submit

            def noted(self: Any, call: Callable[[], Any], *, adding: bool = False) -> Future[Any]:
                calls.append(submit(self, call, adding=adding))
                return calls[-1]

            monkeypatch.setattr(offloop.Threads, "submit", noted)
            task = asyncio.create_task(queue.lease())
            await asyncio.sleep(0)
            assert len(calls[0].result(PATIENCE)) == 1  # the loop stands still meanwhile: the task cannot know it yet
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [(job.state, job.attempts) for job in await queue.list_jobs()] == [(JobState.READY, 0)]

    run(main())


@pytest.mark.parametrize("timeout", [0, PATIENCE])
def test_the_lease_of_a_coroutine_that_is_thrown_away_is_given_back(queue_dir, timeout):
    gate = Gate(appends)

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=RecordingFiles(gate)) as queue:
            await queue.enqueue("x")
            gate.armed = True
            forsaken = queue.lease(timeout=timeout)
            forsaken.send(None)
            await gate.until_reached()
            forsaken.close()
            gate.opened.set()
            while RELEASE not in {record.type for record in read_log(await queue.path())}:
                await ticks(5)
            assert (await queue.lease_one()).attempts == 1

    run(main())


def test_a_failed_call_that_was_cancelled_tells_its_error_as_the_cause(queue_dir):
    gate = Gate(appends)

    class Files(FailingFiles):
        def _fail(self, call: Call) -> None:
            gate(call)
            super()._fail(call)

    files = Files(appends, OSError(28, "No space left on device"))
    files.armed = False

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=files) as queue:
            gate.armed = files.armed = True
            task = asyncio.create_task(queue.enqueue("x"))
            await gate.until_reached()
            task.cancel()
            await ticks(3)
            gate.opened.set()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert isinstance(caught.value.__cause__, StorageError)
            assert "No space left" in caught.value.__notes__[0]
            assert await queue.list_jobs() == []

    run(main())


# --- processing


def test_a_block_that_ends_acks_its_job_and_none_stands_for_no_job(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir, retention=50) as queue:
            async with queue.processing() as job:
                assert job is None
            job_id = (await queue.enqueue("x")).id
            async with queue.processing(visibility_timeout=5) as job:
                assert job.lease_deadline < queue._queue.now() + 6
            assert (await queue.get(job_id)).state is JobState.DONE

    run(main())


async def own_failure() -> None:
    raise ValueError("broken")


async def too_slow() -> None:
    async with asyncio.timeout(0):
        await asyncio.sleep(PATIENCE)


async def own_cancellation() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("body", "error"),
    [(own_failure, ValueError), (too_slow, TimeoutError), (own_cancellation, asyncio.CancelledError)],
)
def test_a_block_that_raises_is_a_failed_attempt_and_the_exception_goes_on(queue_dir, body, error):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            job_id = (await queue.enqueue("x")).id
            with pytest.raises(error):
                async with queue.processing():
                    await body()
            job = await queue.get(job_id)
            assert (job.state, job.attempts) == (JobState.READY, 1)
            assert job.errors[0].error_class.split(".")[-1] == error.__name__

    run(main())


def test_a_task_that_is_cancelled_in_its_block_gives_the_lease_back(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            job_id = (await queue.enqueue("x")).id
            begun = asyncio.Event()

            async def work() -> None:
                async with queue.processing():
                    begun.set()
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            job = await queue.get(job_id)
            assert (job.state, job.attempts, job.errors) == (JobState.READY, 0, [])
            assert (await queue.lease_one()).id == job_id

    run(main())


def test_a_lease_lost_in_the_block_is_told_after_success_and_does_not_hide_an_exception(queue_dir, clock, caplog):
    async def main() -> None:
        async with AsyncQueue(queue_dir, clock=clock, backoff=BackoffPolicy(base=0)) as queue:
            await queue.enqueue("x")
            with pytest.raises(NotLeasedError):
                async with queue.processing(visibility_timeout=5):
                    clock.advance(6)
                    other = await queue.lease_one()
            await queue.release([other])
            with pytest.raises(ValueError, match="own"):
                async with queue.processing(visibility_timeout=5):
                    clock.advance(6)
                    assert await queue.lease_one() is not None
                    raise ValueError("own")

    run(main())
    assert "failed too late" in caplog.text


def test_a_block_that_is_thrown_away_gives_the_lease_back(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            job = await queue.enqueue("x")

            async def work() -> None:
                async with queue.processing():
                    await forever()

            coroutine = work()
            steps = coroutine.__await__()
            future = steps.send(None)
            while future != "in the block":
                await asyncio.wait([future])
                future = steps.send(None)
            assert (await queue.get(job.id)).state is JobState.LEASED
            coroutine.close()
            while (await queue.get(job.id)).state is JobState.LEASED:
                await ticks(5)
            assert (await queue.get(job.id)).attempts == 0

    class forever:  # noqa: N801  (a point that only the test resumes)
        def __await__(self) -> Generator[Any, None, None]:
            yield "in the block"

    run(main())


# --- several loops, forks


def test_one_queue_serves_one_event_loop_after_the_other(queue_dir):
    queue = AsyncQueue(queue_dir)
    for number in range(4):
        assert run(queue.enqueue(number)).payload == number
        assert run(queue.lease_one(timeout=5)).payload == number
    run(queue.close())
    assert own_threads() == []


def test_one_queue_serves_event_loops_in_several_threads_at_once(queue_dir):
    queue = AsyncQueue(queue_dir)
    got: list[str] = []
    added: list[str] = []

    async def take(count: int) -> None:
        for _ in range(count):
            async with queue.processing(timeout=PATIENCE) as job:
                got.append(job.id)

    async def main() -> None:
        takers = [asyncio.create_task(take(10)) for _ in range(5)]
        added.extend([(await queue.enqueue(number)).id for number in range(50)])
        await asyncio.gather(*takers)

    threads = [threading.Thread(target=run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(got) == sorted(added)
    assert len(set(got)) == 200
    run(queue.close())


def test_a_forked_child_uses_threads_of_its_own(queue_dir):
    queue = AsyncQueue(queue_dir)
    run(queue.enqueue("parent's"))
    end = threading.Event()
    for adding in (False, True):
        for _ in range(offloop.POOL_THREADS):
            queue._threads.submit(end.wait, adding=adding)
    queue._opening.acquire()

    async def in_the_child() -> None:
        async with asyncio.timeout(PATIENCE):
            await queue.enqueue("child's")
            await queue.lease_one(timeout=5)
            await queue.close()

    try:
        assert in_child(lambda: asyncio.run(in_the_child())) == 0
    finally:
        queue._opening.release()
        end.set()

    async def in_the_parent() -> None:
        assert [(job.payload, job.state.value) for job in await queue.list_jobs()] == [
            ("parent's", "leased"),
            ("child's", "ready"),
        ]
        await queue.close()

    run(in_the_parent())
