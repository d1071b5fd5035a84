"""A small disk fills up under several writers, workers and readers, and gets space again.

Nobody is told that something is stored which is not there; what was refused is not there later; whoever reads goes on
reading; and nothing has to be repaired or started anew.
"""

import errno
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nobroker_django import CompactionError, Job, JobState, NobrokerError, Queue, StorageError
from nobroker_django.engine.verification import verify_queue
from tests.support.disks import Disk, ext4, needs_root, tmpfs
from tests.support.procs import Child, Diary, run_all, wait_until
from tests.support.storm import open_queue

pytestmark = [needs_root, pytest.mark.contract("ENQ-08", "COMP-04")]

WRITERS = 3
FILLER = "x" * 3000


@pytest.fixture(params=["tmpfs", "ext4", "small blocks"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system with some megabytes of space."""
    mount, image = tmp_path / "mount", tmp_path / "image"
    match request.param:
        case "tmpfs":
            made = tmpfs(mount, 12_000_000)
        case "ext4":
            made = ext4(mount, image, 17_000_000, block_bytes=4096)
        case _:
            made = ext4(mount, image, 14_000_000, block_bytes=1024)
    with made as disk:
        yield disk


def words(error: NobrokerError) -> str:
    return "full" if error.stored is False else "unknown"


def fill(directory: Path, diary: Diary, space: Path) -> None:
    """Enqueue until the disk is full, go on until somebody has made space; say what was stored."""
    full = False
    with open_queue(directory) as queue:
        for number in itertools.count():
            key = f"{os.getpid()}-{number}"
            try:
                queue.enqueue({"k": key, "filler": FILLER})
            except StorageError as error:
                diary.write(words(error), key)
                full = True
            else:
                diary.write("E", key)
                if full and space.exists():
                    return


def finish(directory: Path, diary: Diary, space: Path) -> None:
    """Lease and ack all the time; refusals are said, and tried again."""
    finished = 0
    with open_queue(directory) as queue:
        while not (space.exists() and finished >= 3):
            try:
                for job in queue.lease(1, timeout=0.01, visibility_timeout=1e6):
                    while not acked(queue, job, diary):
                        pass
                    diary.write("A", job.payload["k"])
                    finished += space.exists()
            except StorageError as error:
                check_not_stored(error)
                diary.write("no lease")


def check_not_stored(error: StorageError) -> None:
    if error.stored is not False or "Nothing of this call was stored" not in str(error):
        raise AssertionError(f"a full disk, and the caller cannot know what became of the call: {error}") from error


def acked(queue: Queue, job: Job, diary: Diary) -> bool:
    try:
        queue.ack(job)
    except StorageError as error:
        check_not_stored(error)
        diary.write("no ack")
        return False
    return True


def look(directory: Path, diary: Diary, space: Path) -> None:
    """Read all the time, as the admin does: no error is right."""
    with Queue(directory, read_only=True) as queue:
        for number in itertools.count():
            shown = queue.list_jobs(limit=10)
            assert queue.stats().total >= len(shown) > 0
            queue.get("first")
            if number == 0 or number % 50 == 49:
                diary.write("looked")
            if space.exists():
                return


def count(diary: Diary, word: str) -> Counter[str]:
    """How often each process said this word of a job."""
    return Counter(line[1].split("-")[0] for line in diary.lines() if line[0] == word)


def test_writers_workers_and_readers_on_a_disk_that_fills_up_and_gets_space_again(
    disk: Disk, tmp_path: Path, diary: Diary, errors: Diary
):
    """C64."""
    directory, ballast, space = disk.path / "queue", disk.path / "ballast", tmp_path / "space"
    with open_queue(directory) as queue:
        queue.enqueue({"k": "first"}, job_id="first", delay=1e6)
        diary.write("E", "first")
        queue.stats()
    space_now = os.statvfs(disk.path)
    ballast.write_bytes(bytes(space_now.f_bfree * space_now.f_frsize - 1_200_000))  # later on it is room for all
    children = [Child(fill, directory, diary, space, errors=errors) for _ in range(WRITERS)]
    children += [Child(role, directory, diary, space, errors=errors) for role in (finish, finish, look)]
    try:
        wait_until(
            lambda: sum(times >= 5 for times in count(diary, "full").values()) == WRITERS or errors.size() > 0,
            "writers on a full disk",
        )
        take_the_rest(ballast)
        with pytest.raises((CompactionError, StorageError)):
            compact_in_no_space(directory)
        looked = sum(line[0] == "looked" for line in diary.lines())
        wait_until(
            lambda: sum(line[0] == "looked" for line in diary.lines()) > looked or errors.size() > 0,
            "readers on a full disk",
        )
        space.touch()  # first: each writer ends at its first success from now on
        ballast.unlink()
        run_all(children)
    finally:
        for child in children:
            child.kill()
    lines = diary.lines()
    stored = {line[1] for line in lines if line[0] == "E"}
    refused = {line[1] for line in lines if line[0] == "full"}
    done = [line[1] for line in lines if line[0] == "A"]
    assert not [line for line in lines if line[0] == "unknown"]
    assert len(done) == len(set(done))
    with open_queue(directory) as queue:
        jobs = {job.payload["k"]: job for job in queue.list_jobs()}
        assert stored == jobs.keys()
        assert not refused & jobs.keys()
        assert {key for key, job in jobs.items() if job.state is JobState.DONE} == set(done)
        assert not [job for job in jobs.values() if job.state is JobState.LEASED]
        assert not queue.recovery.repaired
        assert verify_queue(directory, "default").whole
        queue.compact()
    assert not list(directory.glob("default.torn-*"))
    assert not list(directory.glob("*.tmp"))
    print(len(stored), len(refused), Counter(line[0] for line in lines))


def take_the_rest(ballast: Path) -> None:
    """Let the file grow until nothing is left of the disk."""
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
                os.fdatasync(file.fileno())
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def compact_in_no_space(directory: Path) -> None:
    """Fails cleanly: the next one may as well."""
    with open_queue(directory) as queue:
        generation = queue.path
        try:
            queue.compact()
        finally:
            assert queue.path == generation
            assert not list(directory.glob("*.tmp"))
