"""Processes that meet: at creation, at one id, while forking, while opening and closing, around a compaction."""

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nobroker_django import CorruptLogError, Queue
from tests.support.crashing import drawn
from tests.support.faulty import OPENING, WRITING, Call, Dying, Hooked
from tests.support.procs import Child, Diary, run_all, wait_until
from tests.support.storm import check, open_queue, producer, worker


def more(diary: Diary, errors: Diary) -> None:
    """Wait until more was written into the diary."""
    size = diary.size()
    wait_until(lambda: diary.size() > size + 100 or errors.size() > 0, "events")


def add(directory: Path, diary: Diary, count: int, job_id: str | None = None) -> None:
    """Enqueue ``count`` jobs, or the one with the id; say which were created."""
    with open_queue(directory) as queue:
        for number in range(count):
            key = f"{os.getpid()}-{number}"
            job = queue.enqueue({"k": key if job_id is None else "same"}, job_id=job_id)
            diary.write(
                "E" if job_id is None else ("created" if job.created else "found"), key if job_id is None else job.id
            )


@pytest.mark.contract("ENQ-04", "ENQ-05", "PROC-01")
def test_ten_processes_enqueue_the_same_id(queue_dir: Path, diary: Diary, errors: Diary):
    run_all([Child(add, queue_dir, diary, 5, "the id", errors=errors) for _ in range(10)])
    words = [line[0] for line in diary.lines()]
    assert words.count("created") == 1
    assert words.count("found") == 49
    with open_queue(queue_dir) as queue:
        assert [job.id for job in queue.list_jobs()] == ["the id"]


@pytest.mark.contract("PROC-01", "LOG-10")
@pytest.mark.parametrize("round_", range(6))
def test_eight_processes_create_a_queue_at_once(queue_dir: Path, diary: Diary, errors: Diary, round_: int):
    run_all([Child(add, queue_dir, diary, 3, errors=errors) for _ in range(8)])
    assert check(queue_dir, diary)["jobs"] == 24
    assert [path.name for path in queue_dir.glob("*.log")] == ["default.000001.log"]


@pytest.mark.contract("PROC-01", "LOG-10")
def test_creating_beside_another_process_that_has_just_done_it(queue_dir: Path):
    """Whoever finds no pointer looks once more before it says that the pointer is missing."""
    files = Hooked()
    met: list[Call] = []

    def hook(call: Call) -> None:
        if call.kind == "listdir" and call.path == str(queue_dir) and not met and queue_dir.exists():
            met.append(call)
            with Queue(queue_dir) as other:
                other.enqueue({"k": "other"})

    files.hook = hook
    with Queue(queue_dir, files=files) as queue:
        queue.enqueue({"k": "mine"})
        assert [job.payload["k"] for job in queue.list_jobs()] == ["other", "mine"]
    assert met


@pytest.mark.contract("COMP-03", "LOG-10")
def test_opening_beside_a_compaction(queue_dir: Path):
    """The pointer moves at every look of the opener: it follows."""
    with Queue(queue_dir) as queue:
        queue.enqueue({"k": "first"})
        files, left = Hooked(), [6]

        def hook(call: Call) -> None:
            if call.path.endswith(".log") and call.kind in ("path_identity", "open") and left[0]:
                left[0] -= 1
                queue.compact()

        files.hook = hook
        with Queue(queue_dir, files=files) as opener:
            assert [job.payload["k"] for job in opener.list_jobs()] == ["first"]
        assert left == [0]


def come_and_go(directory: Path, diary: Diary, seed: str, rounds: int) -> None:
    """Open, do little, close: with what was leased given back."""
    rng = drawn(seed)
    for number in range(rounds):
        with open_queue(directory) as queue:
            key = f"{os.getpid()}-{number}"
            queue.enqueue({"k": key})
            diary.write("E", key)
            if rng.random() < 0.3:
                queue.stats()
            for job in queue.lease(1) if rng.random() < 0.5 else []:
                diary.write("L", job.payload["k"], job.lease_token, job.attempts, os.getpid())
                queue.ack(job)
                diary.write("A", job.payload["k"], job.lease_token)


@pytest.mark.contract("PROC-01", "LEASE-03")
def test_first_openers_and_last_closers(queue_dir: Path, diary: Diary, errors: Diary):
    run_all([Child(come_and_go, queue_dir, diary, f"come {n}", 25, errors=errors) for n in range(4)])
    assert check(queue_dir, diary)["jobs"] == 100


@pytest.mark.contract("PROC-01")
def test_the_last_of_two_that_close_at_once_leaves_a_clean_projection(queue_dir: Path):
    """Nobody rebuilds it afterwards: the file is the same."""
    one, two = Queue(queue_dir), Queue(queue_dir)
    one.enqueue({"k": 1})
    one.stats()
    two.stats()
    both = threading.Barrier(2)

    def close(queue: Queue) -> None:
        both.wait()
        queue.close()

    threads = [threading.Thread(target=close, args=[queue]) for queue in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = sorted(path.name for path in (queue_dir / "default.run").glob("*.index"))
    assert len(before) == 1
    with Queue(queue_dir) as again:
        assert again.stats().total == 1
        assert sorted(path.name for path in (queue_dir / "default.run").glob("*.index")) == before


def _in_a_child(directory: Path, diary: Diary, queue: Queue, way: int) -> None:
    key = f"child-{os.getpid()}"
    queue.enqueue({"k": key})
    diary.write("E", key)
    if way == 1:
        queue.close()
    if way == 2:
        sys.exit(0)


def _exit_code(process: multiprocessing.process.BaseProcess) -> int | None:
    """``start()`` in one thread reaps the children of all: then ``join()`` may return before the code is known."""
    end = time.monotonic() + 60
    while process.exitcode is None and time.monotonic() < end:
        process.join(0.05)
    return process.exitcode


@pytest.mark.contract("PROC-02")
def test_forks_while_threads_enqueue(queue_dir: Path, diary: Diary, errors: Diary):
    """Several threads fork while others use the same object; the children use it too, and leave in different ways."""
    queue, stop = open_queue(queue_dir), threading.Event()
    context = multiprocessing.get_context("fork")
    failures: list[BaseException] = []

    def enqueues(name: int) -> None:
        try:
            for number in itertools.count():
                if stop.is_set():
                    return
                key = f"thread-{name}-{number}"
                queue.enqueue({"k": key})
                diary.write("E", key)
                if number % 10 == 0:
                    queue.stats()
        except BaseException as error:
            failures.append(error)

    def forks() -> None:
        try:
            for number in range(12):
                process = context.Process(target=_in_a_child, args=(queue_dir, diary, queue, number % 3))
                process.start()
                assert _exit_code(process) == 0
        except BaseException as error:
            failures.append(error)

    busy = [threading.Thread(target=enqueues, args=[n], daemon=True) for n in range(2)]
    forking = [threading.Thread(target=forks, daemon=True) for _ in range(3)]
    for thread in busy + forking:
        thread.start()
    for thread in forking:
        thread.join(60)
        assert not thread.is_alive(), "a fork waits for ever"
    stop.set()
    for thread in busy:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures
    queue.enqueue({"k": "last"})
    queue.close()
    counts = check(queue_dir, diary)
    assert sum(line[1].startswith("child") for line in diary.lines()) == 36
    assert counts["jobs"] == counts["enqueued"] + 1


@pytest.mark.contract("PROC-02")
def test_a_child_that_only_ends_does_no_harm(queue_dir: Path):
    """It never used the queue; its finalisers and exit handlers run all the same."""
    script = (
        "import os, sys\n"
        "from nobroker_django import Queue\n"
        f"queue = Queue({str(queue_dir)!r})\n"
        "queue.enqueue(1); job = queue.lease_one(); queue.stats()\n"
        "for _ in range(3):\n"
        "    child = os.fork()\n"
        "    if child == 0: sys.exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "other = Queue(queue.dir)\n"
        "assert other.lease_one() is None\n"
        "queue.ack(job); queue.enqueue(2)\n"
        "assert (other.stats().done, other.stats().ready) == (1, 1)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2], timeout=60)


@pytest.mark.contract("PROC-01")
def test_the_pointer_replaced_by_itself_under_load(queue_dir: Path, diary: Diary, errors: Diary):
    with open_queue(queue_dir):
        pass
    children = [
        Child(role, queue_dir, diary, f"{n}", errors=errors) for n, role in enumerate((producer, producer, worker))
    ]
    try:
        for number in range(30):
            more(diary, errors)
            copy = queue_dir / f"copy-{number}"
            shutil.copy(queue_dir / "default.current", copy)
            copy.rename(queue_dir / "default.current")
    finally:
        for child in children:
            child.kill()
    check(queue_dir, diary)


@pytest.mark.contract("LOG-10")
def test_a_pointer_that_is_gone_under_load_stops_everybody(queue_dir: Path):
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "1"})
        pointer = queue_dir / "default.current"
        pointer.rename(queue_dir / "aside")
        for act in (lambda: queue.enqueue({"k": "2"}), queue.stats, lambda: open_queue(queue_dir)):
            with pytest.raises(CorruptLogError, match=r"default\.current"):
                act()
        assert not pointer.exists()
        (queue_dir / "aside").rename(pointer)
        queue.enqueue({"k": "3"})
        assert [job.payload["k"] for job in queue.list_jobs()] == ["1", "3"]


@pytest.mark.contract("PROC-03")
def test_a_directory_that_is_swapped(queue_dir: Path):
    """The path decides: whoever has the old directory open goes on in the one that stands there now."""
    other = queue_dir.with_name("other")
    with open_queue(other) as queue:
        queue.enqueue({"k": "there"})
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "old"})
        queue.stats()
        queue_dir.rename(queue_dir.with_name("moved"))
        other.rename(queue_dir)
        queue.enqueue({"k": "new"})
        assert [job.payload["k"] for job in queue.list_jobs()] == ["there", "new"]
    with open_queue(queue_dir.with_name("moved")) as queue:
        assert [job.payload["k"] for job in queue.list_jobs()] == ["old"]


def compact_and_die(directory: Path, at: int) -> None:
    with Queue(directory, files=Dying(at, kinds=WRITING | OPENING), retention=1e6) as queue:
        queue.compact()


@pytest.mark.contract("COMP-02", "COMP-03")
@pytest.mark.parametrize("share", range(2))
def test_compactions_killed_at_a_call_while_others_work(queue_dir: Path, diary: Diary, errors: Diary, share: int):
    step = 2
    with open_queue(queue_dir):
        pass
    others = [Child(role, queue_dir, diary, f"{n}", errors=errors) for n, role in enumerate((producer, worker))]
    at = share
    try:
        while True:
            more(diary, errors)
            if Child(compact_and_die, queue_dir, at, errors=errors).wait() == 0:
                break
            at += step
    finally:
        for child in others:
            child.kill()
    assert at > 25
    check(queue_dir, diary)
    with open_queue(queue_dir) as queue:
        queue.compact()
        assert list(queue_dir.glob("default.*.log")) == [queue.path]
    assert not list(queue_dir.glob("*.tmp"))
    check(queue_dir, diary)


@pytest.mark.long
@pytest.mark.contract("COMP-02")
def test_compactions_killed_at_every_call(queue_dir: Path, diary: Diary, errors: Diary):
    others = [Child(role, queue_dir, diary, f"{n}", errors=errors) for n, role in enumerate((producer, worker))]
    try:
        wait_until(lambda: diary.size() > 500, "events")
        for at in itertools.count():
            if Child(compact_and_die, queue_dir, at, errors=errors).wait() == 0:
                break
    finally:
        for child in others:
            child.kill()
    check(queue_dir, diary)
