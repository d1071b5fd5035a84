"""Processes that wait for jobs at the bell: all that is rung for comes, and nobody needs to look for it.

Where nothing is to be found but by the bell, the look once in a while is put off for an hour.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from nobroker_django import Queue
from nobroker_django.engine import bell
from nobroker_django.engine.files import Files
from tests.support.procs import PATIENCE, Child, Diary, wait_until

LISTENERS = 16


class Waiting(Files):
    """Tells the diary when it waits, and counts how often."""

    def __init__(self, diary: Diary, name: str, upon: Callable[[], object] = lambda: None) -> None:
        self.diary = diary
        self.name = name
        self.waits = 0
        self.upon = upon

    def wait_readable(self, fds: Sequence[int], seconds: float) -> list[int]:
        self.waits += 1
        self.diary.write("waits", self.name)
        return super().wait_readable(fds, seconds)

    def read(self, fd: int, count: int) -> bytes:
        data = super().read(fd, count)
        self.upon()
        return data


@pytest.fixture
def no_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "SAFETY_SECONDS", 3600.0)
    monkeypatch.setattr(bell, "LISTENING_SECONDS", 7200.0)
    monkeypatch.setattr("nobroker_django.engine.leasing._LONGEST_WAIT_SECONDS", 3600.0)


@pytest.fixture
def children(diary: Diary, errors: Diary, queue_dir: Path) -> Iterator[Callable[..., Child]]:
    """Starts processes that wait for one job each; they are killed at the end."""
    started: list[Child] = []

    def start(name: str, **options: object) -> Child:
        started.append(Child(wait_for_one, queue_dir, diary, name, options, errors=errors))
        return started[-1]

    yield start
    for child in started:
        child.kill()


def wait_for_one(directory: Path, diary: Diary, name: str, options: dict) -> None:
    files = Waiting(diary, name, **options)
    queue = Queue(directory, files=files, visibility_timeout=1000)
    job = queue.lease_one(timeout=1000)
    diary.write("took", name, job.payload if job else "nothing", files.waits)


def said(diary: Diary, what: str) -> list[list[str]]:
    return [words for words in diary.lines() if words[0] == what]


def those_who_wait(diary: Diary) -> set[str]:
    return {words[1] for words in said(diary, "waits")}


@pytest.mark.usefixtures("no_looking")
def test_a_process_that_waits_gets_a_job_without_looking_for_it(queue_dir, diary, children):
    child = children("a")
    with Queue(queue_dir) as queue:
        wait_until(lambda: those_who_wait(diary) == {"a"}, "the listener")
        queue.enqueue("x")
        assert child.wait() == 0
    [(_, _, payload, waits)] = said(diary, "took")
    assert (payload, int(waits)) == ("x", 1)


@pytest.mark.usefixtures("no_looking")
@pytest.mark.parametrize("together", [True, False])
def test_sixteen_wait_and_each_job_wakes_who_gets_it(queue_dir, diary, children, together):
    for number in range(LISTENERS):
        children(f"w{number}")
    with Queue(queue_dir) as queue:
        wait_until(lambda: len(those_who_wait(diary)) == LISTENERS, "the listeners")
        queue.enqueue("first")
        wait_until(lambda: len(said(diary, "took")) == 1, "the one who gets it")
        rest = [f"job{number}" for number in range(1, LISTENERS)]
        if together:
            queue.enqueue_many(rest)
        else:
            for payload in rest:
                queue.enqueue(payload)
        wait_until(lambda: len(said(diary, "took")) == LISTENERS, "all of them")
    taken = said(diary, "took")
    assert sorted(words[2] for words in taken) == sorted(["first", *rest])
    assert {words[1] for words in taken} == {f"w{number}" for number in range(LISTENERS)}


@pytest.mark.usefixtures("no_looking")
def test_one_job_is_no_reason_for_the_others_to_stop_waiting(queue_dir, diary, children):
    for number in range(4):
        children(f"w{number}")
    with Queue(queue_dir) as queue:
        wait_until(lambda: len(those_who_wait(diary)) == 4, "the listeners")
        for number in range(1, 4):
            queue.enqueue(f"job{number}")
            wait_until(partial(took, diary, number), "the one who gets it")
        assert queue.stats().ready == 0
        assert len(said(diary, "took")) == 3


@pytest.mark.usefixtures("no_looking")
def test_a_listener_that_was_killed_takes_no_byte_along(queue_dir, diary, children):
    first = children("first")
    wait_until(lambda: those_who_wait(diary) == {"first"}, "the first listener")
    children("second")
    with Queue(queue_dir) as queue:
        wait_until(lambda: those_who_wait(diary) == {"first", "second"}, "the second listener")
        first.kill()
        queue.enqueue("x")
        wait_until(lambda: said(diary, "took") != [], "the job")
    assert [words[1:3] for words in said(diary, "took")] == [["second", "x"]]


def test_what_a_killed_listener_was_woken_for_is_found_by_the_next_look(queue_dir, diary, children):
    children("dies", upon=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with Queue(queue_dir) as queue:
        wait_until(lambda: those_who_wait(diary) == {"dies"}, "the one who dies")
        queue.enqueue("x")
        children("looks")
        wait_until(lambda: said(diary, "took") != [], "the job")
    assert [words[1:3] for words in said(diary, "took")] == [["looks", "x"]]


def test_the_fifo_is_removed_again_and_again_under_load(queue_dir, diary, errors):
    jobs = 60
    takers = [Child(take_all, queue_dir, diary, f"w{number}", errors=errors) for number in range(3)]
    path = queue_dir / "default.run" / "bell"
    try:
        with Queue(queue_dir) as queue:
            wait_until(path.exists, "the FIFO")
            for number in range(jobs):
                if number % 3 == 0:
                    path.unlink(missing_ok=True)
                if number % 6 == 0:
                    try_to(lambda: path.write_bytes(b"not a FIFO"))
                queue.enqueue(number)
                if number % 10 == 0:  # time for them to wait again
                    wait_until(partial(took, diary, number + 1), "the jobs so far")
            wait_until(lambda: queue.stats().ready == queue.stats().leased == 0, "the last job")
            queue.enqueue_many(["end"] * len(takers))
            for taker in takers:
                assert taker.wait() == 0
    finally:
        for taker in takers:
            taker.kill()
    taken = sorted(int(words[2]) for words in said(diary, "took"))
    assert taken == list(range(jobs))


def took(diary: Diary, count: int) -> bool:
    return len(said(diary, "took")) >= count


def try_to(act: Callable[[], object]) -> None:
    try:
        act()
    except OSError:
        pass


def take_all(directory: Path, diary: Diary, name: str) -> None:
    with Queue(directory, retention=1000) as queue:
        while True:
            [job] = queue.lease(timeout=PATIENCE)
            queue.ack(job)
            if job.payload == "end":
                return
            diary.write("took", name, job.payload)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="nobroker-tests-"))
    directory.chmod(0o755)
    yield directory / "queues"
    shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_where_no_fifo_can_be_made_waiting_is_polling(open_to_all, diary, errors):
    """The run directory belongs to somebody else, and the caches are there already."""
    queue_dir = open_to_all

    def polls() -> None:
        os.setegid(65534)
        os.seteuid(65534)
        with Queue(queue_dir) as queue:
            queue.lease()
            with queue._session.listen() as listening:
                diary.write("fd", listening.fd)
            diary.write("waits", "a")
            [job] = queue.lease(timeout=PATIENCE)
            diary.write("took", "a", job.payload)

    with Queue(queue_dir, file_mode=0o666, dir_mode=0o777) as queue:
        queue.lease()
        (queue_dir / "default.run").chmod(0o755)
        child = Child(polls, errors=errors)
        try:
            wait_until(lambda: those_who_wait(diary) == {"a"} or not child.running(), "the listener")
            queue.enqueue("x")
            assert child.wait() == 0
        finally:
            child.kill()
    assert diary.lines()[0] == ["fd", "None"]
    assert [words[2] for words in said(diary, "took")] == ["x"]


@pytest.mark.usefixtures("no_looking")
@pytest.mark.contract("LOG-08")
def test_a_reader_neither_listens_nor_is_in_the_way(queue_dir, diary, children):
    children("a")
    wait_until(lambda: those_who_wait(diary) == {"a"}, "the listener")
    path = queue_dir / "default.run" / "bell"
    before = [file.stat().st_mtime_ns for file in (path, queue_dir / "default.lock")]
    with Queue(queue_dir, read_only=True) as queue:
        assert queue.stats().ready == 0
        assert queue.list_jobs() == []
    assert [file.stat().st_mtime_ns for file in (path, queue_dir / "default.lock")] == before


@pytest.mark.long
def test_twenty_that_wait_use_next_to_no_time(queue_dir, diary, children):
    listeners = [children(f"w{number}") for number in range(20)]
    wait_until(lambda: len(those_who_wait(diary)) == 20, "the listeners")
    before = sum(cpu_seconds(child.pid) for child in listeners)
    time.sleep(20)
    used = sum(cpu_seconds(child.pid) for child in listeners) - before
    print(f"{used:.2f} s of 20 s")
    assert used < 1.0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
