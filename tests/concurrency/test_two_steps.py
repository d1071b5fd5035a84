"""A compaction beside everybody's work: what is written while it runs, how little of it needs the lock, giving up."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import BackoffPolicy, CompactionError, Job, JobState, LockTimeoutError, NotLeasedError, Queue
from nobroker_django.engine import passage
from nobroker_django.engine.compaction import compact
from nobroker_django.engine.projection import Projection
from nobroker_django.engine.schema import COLUMNS
from nobroker_django.engine.verification import verify_queue
from tests.support.faulty import WRITING, Call, Hooked, Recorder
from tests.support.procs import Child, Diary
from tests.support.scripts import clock

pytestmark = [pytest.mark.contract("COMP-02", "COMP-03")]


@pytest.fixture
def both(queue_dir: Path) -> Iterator[tuple[Queue, Queue, Hooked]]:
    """A queue that compacts, with its files; and another object on the same directory, which waits for nothing."""
    files = Hooked()
    with open_(queue_dir, files=files) as compactor, open_(queue_dir, lock_timeout=0.1) as other:
        yield compactor, other, files
        files.hook = None


def open_(directory: Path, **options: Any) -> Queue:
    options = {"retention": 1e6, "visibility_timeout": 1e6, "backoff": BackoffPolicy(base=0.0), **options}
    return Queue(directory, clock=clock, **options)


def contents(queue: Queue) -> list[dict[str, Any]]:
    return [job.to_dict() for job in queue.list_jobs()]


def every_state(queue: Queue, mark: str = "") -> None:
    """Jobs in every state, with and without failures; ``mark`` is in their payloads."""
    queue.enqueue(f"done{mark}", max_attempts=9)
    job = lease(queue)
    queue.nack(job, error=f"before{mark}")
    queue.ack(lease(queue), result={"r": mark})
    queue.enqueue(f"dead{mark}", max_attempts=1, meta={"m": 1})
    queue.nack(lease(queue), error=ValueError(f"why{mark}"))
    queue.enqueue(f"leased{mark}", priority=3)
    lease(queue)
    queue.enqueue(f"delayed{mark}", delay=1e5)
    queue.enqueue(f"waits{mark}", priority=-1, job_id=f"id{mark}")
    queue.enqueue_many([f"{mark}{number}" for number in range(3)], priority=-2)


def lease(queue: Queue) -> Job:
    return queue.lease()[0]


def verbs(queue: Queue) -> Iterator[Callable[[], Any]]:
    """One verb after the other, for ever, on jobs that were there and on new ones."""
    held: list[Job] = []
    number = itertools.count()

    def dead(act: Callable[[list[str]], Any]) -> None:
        act([queue.dlq(limit=1)[0].id])
        queue.bury(lease(queue), error="for ever")

    yield from itertools.cycle(
        [
            lambda: queue.enqueue("new", priority=next(number) % 3, job_id=f"new {next(number)}"),
            lambda: queue.enqueue("later", delay=7.5, meta={"later": True}),
            lambda: held.append(lease(queue)),
            lambda: queue.extend(held[-1], 5.0),
            lambda: queue.release(held[-1:]),
            lambda: queue.nack(lease(queue), error="while it was compacted"),
            lambda: queue.ack(lease(queue), result=[1.5]),
            lambda: queue.ack(queue.list_jobs(JobState.LEASED)[0]),
            lambda: dead(queue.requeue_dead),
            lambda: dead(queue.discard_dead),
            lambda: queue.enqueue_many([f"many {next(number)}" for _ in range(5)]),
        ]
    )


@pytest.mark.contract("ORD-01", "LEASE-01", "RETRY-02")
@pytest.mark.parametrize("share", range(3))
def test_what_others_write_at_any_step_is_there_afterwards_as_if_nothing_had_happened(
    both: tuple[Queue, Queue, Hooked], share: int
):
    """At every system call at which the log's lock is free, one more verb of another process."""
    compactor, other, files = both
    every_state(other)
    todo = verbs(other)
    calls = itertools.count()
    seen: list[list[dict[str, Any]]] = []
    done, locked = 0, 0

    def hook(call: Call) -> None:
        nonlocal done, locked
        files.hook = None
        if call.kind == "rename" and call.path.startswith(f"{other.dir}/default.current."):
            return  # from here on it is the new log that they write to
        if next(calls) % 3 != share:
            files.hook = hook
            return
        try:
            act = next(todo)
            try:
                act()
            except (IndexError, NotLeasedError):  # there is no job for this verb now
                other.enqueue_many(range(5))
            seen.append(contents(other))
            done += 1
        except LockTimeoutError:
            locked += 1
        finally:
            files.hook = hook

    files.hook = hook
    compactor.compact()
    assert files.hook is None
    assert done >= 9  # it was tried indeed
    assert locked > 5  # the steps under the lock were met as well
    assert contents(other) == contents(compactor) == seen[-1]
    assert verify_queue(compactor.dir, "default").findings == []
    assert compactor.stats() == other.stats()
    before = compactor.stats()
    compactor.compact()
    assert contents(other) == seen[-1]
    assert other.stats() == before
    tokens = [job["lease_token"] for jobs in seen for job in jobs if job["lease_token"]]
    other.enqueue("last", priority=100)
    assert (lease(other).lease_token or "") > max(tokens)


@pytest.mark.contract("ORD-01")
def test_a_clock_that_is_set_back_while_it_runs_puts_nobody_before_others(queue_dir: Path):
    now = [clock()]
    files = Hooked()
    with Queue(queue_dir, clock=lambda: now[0], files=files) as queue, Queue(queue_dir, clock=lambda: now[0]) as other:
        queue.enqueue("first")

        def hook(call: Call) -> None:
            if call.kind == "datasync" and ".compact." in call.path:
                files.hook = None
                now[0] -= 1000
                other.enqueue("second")

        files.hook = hook
        queue.compact()
        assert [job.payload for job in other.lease(2)] == ["first", "second"]


def rows(projection: Projection) -> list[tuple[Any, ...]]:
    return projection.connection.execute(f"SELECT {', '.join(COLUMNS)} FROM jobs ORDER BY seq").fetchall()


@pytest.mark.contract("LOG-04")
def test_the_projection_that_was_built_beside_is_the_one_that_replaying_the_new_log_makes(
    both: tuple[Queue, Queue, Hooked],
):
    """Nobody has to build another one, also where somebody had to build one of the old log meanwhile."""
    compactor, other, files = both
    every_state(other)
    created: list[str] = []
    steps: list[str] = []

    def hook(call: Call) -> None:
        if call.kind == "open" and call.path.endswith(".index"):
            created.append(call.path)
            steps.append("built")
            every_state(other, " meanwhile")
        elif call.kind == "write" and ".current." in call.path:
            steps.append("named")
            with other._session.locked() as held:
                held.discard_projection()
            every_state(other, " late")

    files.hook = hook
    compactor.compact()
    jobs = contents(compactor)
    files.hook = None
    assert steps == ["built", "named"]
    with compactor._session.locked() as held:
        shared = held.projection()
        assert str(shared.path) == created[0]
        replayed = Projection.private(held.log)
        with replayed.unit() as unit, shared.unit() as other_unit:
            unit.fold(held.end, float("inf"))
            assert unit.counts == other_unit.counts
            assert (unit.enqueued_total, unit.clock, unit.open_seq) == (
                other_unit.enqueued_total, other_unit.clock, other_unit.open_seq,
            )  # fmt: skip
        assert rows(replayed) == rows(shared)
        replayed.close()
    assert contents(other) == jobs
    assert verify_queue(compactor.dir, "default").findings == []


@contextmanager
def counted_under_the_lock(recorder: Recorder, log: Path) -> Iterator[list[Call]]:
    """The calls that a queue makes while it holds the lock of that log."""
    held: list[Call] = []
    inside = False

    def after(call: Call, result: Any) -> None:
        nonlocal inside
        if call.path == str(log) and call.kind in ("flock", "funlock"):
            inside = call.kind == "flock" and bool(result)
        elif inside:
            held.append(call)

    recorder.after = after  # type: ignore[method-assign]
    yield held


def test_what_is_done_under_the_lock_does_not_grow_with_the_queue(queue_dir: Path):
    calls, written = [], []
    for number in (100, 10_000):
        recorder = Recorder()
        with open_(queue_dir / str(number), files=recorder) as queue:
            for _ in range(0, number, 100):
                queue.enqueue_many([{"text": "x" * 100}] * 100)
            queue.stats()
            with counted_under_the_lock(recorder, queue.path) as held:
                queue.compact()
            assert queue.path.stat().st_size > 100 * number
        calls.append(len(held))
        written.append(sum(len(call.arguments[0]) for call in held if call.kind in ("write", "pwrite")))
    assert calls[0] == calls[1]
    assert written[0] == written[1] < 2000


def test_a_flood_of_new_jobs_does_not_keep_the_compaction_from_its_end(
    both: tuple[Queue, Queue, Hooked], monkeypatch: pytest.MonkeyPatch
):
    """At every sync more is there than may be left for the lock: in the end the rest is taken as it is."""
    compactor, other, files = both
    monkeypatch.setattr(passage, "_BRAKE_SECONDS", 0.0)
    other.enqueue("first")
    batches = 0

    def hook(call: Call) -> None:
        nonlocal batches
        if call.kind == "datasync" and "000001" not in call.path:
            files.hook = None
            try:
                other.enqueue_many([{"text": "x" * 1000}] * 100)
                batches += 1
            except LockTimeoutError:
                pass
            files.hook = hook

    files.hook = hook
    compactor.compact()
    assert batches >= 3
    assert len(other) == 1 + 100 * batches


def test_a_compaction_that_is_not_wanted_any_more_is_given_up_and_leaves_nothing(
    both: tuple[Queue, Queue, Hooked], queue_dir: Path
):
    compactor, other, _ = both
    every_state(other)
    before = contents(other)
    for at in itertools.count():
        looks = iter([False] * at + [True])
        try:
            compact(compactor._session, give_up=lambda looks=looks: next(looks))  # type: ignore[misc]
        except CompactionError:
            pass
        else:
            break
        assert contents(other) == before
        assert sorted(entry.name for entry in queue_dir.iterdir()) == [
            "default.000001.log", "default.current", "default.lock", "default.run",
        ]  # fmt: skip
        assert not list((queue_dir / "default.run").glob("000002-*"))
    assert at > 4
    assert contents(other) == before


@pytest.mark.contract("PROC-03")
@pytest.mark.parametrize("step", ["write", "datasync", "sync"])
@pytest.mark.parametrize("rivals", [0, 1])
def test_a_compaction_whose_lock_file_is_replaced_gives_up(
    both: tuple[Queue, Queue, Hooked], queue_dir: Path, step: str, rivals: int
):
    """Another one may be at it by then, under the new lock file, and be faster."""
    compactor, other, files = both
    every_state(other)
    before = contents(other)

    def hook(call: Call) -> None:
        if call.kind == step and (".compact." in call.path or ".current." in call.path):
            files.hook = None
            (queue_dir / "default.lock").rename(queue_dir / "moved")
            with open_(queue_dir) as rival:
                rival.enqueue("behind", job_id="behind")
                for _ in range(rivals):
                    rival.compact()

    files.hook = hook
    with pytest.raises(CompactionError):
        compactor.compact()
    assert [job["id"] for job in contents(other)] == [*(job["id"] for job in before), "behind"]
    assert len(list(queue_dir.glob("default.*.log"))) == 1
    compactor.compact()
    assert not list(queue_dir.glob("*.tmp"))
    assert len(other) == len(before) + 1


def open_files() -> list[str]:
    """What the descriptors of this process name."""
    paths = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists
            paths.append(os.readlink(f"/proc/self/fd/{fd}"))
    return paths


@pytest.mark.contract("PROC-02")
def test_a_process_that_compacts_may_fork(queue_dir: Path, diary: Diary, errors: Diary):
    """The child has a queue object that works; the parent's compaction goes on, and so does its other thread."""

    def child() -> None:
        queue.enqueue("from the child", job_id="child")
        queue.close()
        diary.write("child")

    files = Hooked()
    with open_(queue_dir, files=files) as queue:
        every_state(queue)
        before = contents(queue)
        inside, forked = threading.Event(), threading.Event()

        def hook(call: Call) -> None:
            if call.kind in WRITING and ".compact." in call.path and threading.current_thread() is thread:
                files.hook = None
                inside.set()
                forked.wait()

        files.hook = hook
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(queue.compact()))
        thread.start()
        try:
            inside.wait()
            assert Child(child, errors=errors).wait() == 0
        finally:
            forked.set()
            thread.join()
        assert results[0].jobs_dropped == 0
        assert [line[0] for line in diary.lines()] == ["child"]
        assert [job["id"] for job in contents(queue)] == [*(job["id"] for job in before), "child"]
        assert not [path for path in open_files() if path.startswith(f"{queue_dir}/default.0") and "2.log" not in path]
