"""The projection is a cache: whatever is wrong with it, the log counts, and is not called damaged for it."""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import CompactionError, CorruptLogError, OutcomeUnknownError, Queue
from nobroker_django.engine.verification import verify_queue
from tests.support.mutations import spoil_index
from tests.support.scripts import open_queue
from tests.support.wreck import everything

pytestmark = pytest.mark.contract("LOG-04", "LOG-08")


@pytest.fixture
def directory(fast_path: Path) -> Path:
    """A queue with jobs in every state, closed in order."""
    everything(fast_path / "queue")
    with open_queue(fast_path / "queue", retention=1e6) as queue:
        queue.enqueue_many([{"k": number} for number in range(3)], priority=50)
        queue.ack(queue.lease_one(), result={"a": 1})
        queue.stats()
    return fast_path / "queue"


def index(directory: Path) -> Path:
    [path] = (directory / "default.run").glob("*.index")
    return path


def sql(directory: Path, statement: str) -> None:
    connection = sqlite3.connect(index(directory))
    connection.execute(statement)
    connection.commit()
    connection.close()


def shown(directory: Path, **options: Any) -> list[dict[str, Any]]:
    with open_queue(directory, **options) as queue:
        return [job.to_dict() for job in queue.list_jobs()]


WRONG = {
    "another record": "UPDATE jobs SET payload_offset = (SELECT min(payload_offset) FROM jobs)",
    "no record": "UPDATE jobs SET payload_offset = payload_offset + 5",
    "behind the end": "UPDATE jobs SET payload_offset = 1 << 50",
    "negative": "UPDATE jobs SET payload_offset = -5",
    "another result": "UPDATE jobs SET result_offset = payload_offset WHERE state = 3",
    "another failure": "UPDATE failures SET at_offset = at_offset + 3",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("read_only", [False, True])
def test_rows_that_point_to_what_is_not_theirs_are_made_anew(directory: Path, wrong: str, read_only: bool):
    expected = shown(directory)
    sql(directory, WRONG[wrong])
    assert shown(directory, read_only=read_only) == expected
    with open_queue(directory, read_only=read_only) as queue:
        assert [queue.get(job["id"]).to_dict() for job in expected] == expected
    with open_queue(directory) as queue:
        assert queue.enqueue({"k": "goes on"}).created


@pytest.mark.parametrize("wrong", ["another record", "no record", "behind the end", "negative"])
def test_a_lease_gives_the_job_that_it_says(directory: Path, wrong: str):
    with open_queue(directory) as queue:
        expected = {job.id: job.payload for job in queue.list_jobs()}
    sql(directory, WRONG[wrong])
    with open_queue(directory) as queue:
        jobs = queue.lease(5)
        assert len(jobs) == 5
        assert all(job.payload == expected[job.id] for job in jobs)
    assert verify_queue(directory, "default").whole


@pytest.mark.parametrize("wrong", ["another record", "no record", "another failure"])
def test_a_compaction_copies_nothing_by_wrong_rows(directory: Path, wrong: str):
    expected = shown(directory)
    sql(directory, WRONG[wrong])
    with open_queue(directory) as queue:
        with pytest.raises(CompactionError, match="the log is sound and unchanged"):
            queue.compact()
        queue.compact()
    kept = [job["id"] for job in expected if job["state"] != "done" or job["payload"] == {"k": 0}]
    assert [job["id"] for job in shown(directory)] == kept


def test_real_damage_is_still_damage_and_stops_everybody(directory: Path):
    with open_queue(directory) as queue, open_queue(directory) as other:
        job = next(job for job in queue.list_jobs() if job.payload == {"k": 1})
        data = bytearray(queue.path.read_bytes())
        data[data.index(job.id.encode()) + 4] ^= 1
        queue.path.write_bytes(data)
        with pytest.raises(CorruptLogError):
            queue.list_jobs()
        for one in (queue, other):
            with pytest.raises(CorruptLogError):
                one.enqueue({"k": "no"})


@pytest.mark.parametrize("seed", range(40))
def test_a_garbled_file_stops_nobody(directory: Path, seed: int):
    rng = random.Random(f"garbled {seed}")
    count = len(shown(directory))
    path = index(directory)
    path.write_bytes(spoil_index(path.read_bytes(), rng))
    with Queue(directory, read_only=True) as queue:
        queue.stats()
        queue.list_jobs()
    with open_queue(directory) as queue:
        acts: list[Callable[[], Any]] = [
            queue.stats, queue.list_jobs, lambda: queue.enqueue({"k": "new"}, job_id="new"), lambda: queue.lease(2),
            queue.requeue_dead, queue.list_jobs,
        ]  # fmt: skip
        for act in acts:
            try:
                act()
            except OutcomeUnknownError:
                pass  # it had been written when the projection failed
        assert queue.get("new").payload == {"k": "new"}
    (directory / "default.run").rename(directory / "garbled")
    assert len(shown(directory)) == count + 1
    assert verify_queue(directory, "default").whole
