"""``nobroker_work`` compacts beside its work."""

import os
import signal

import pytest

from . import jobs
from .conftest import state_of, until

pytestmark = [pytest.mark.contract("COMP-05")]

AT_ONCE = {"MIN_BYTES": 1000, "DEAD_RATIO": 0.5}


def finished(place, count: int = 50, name: str = "default") -> None:
    """Jobs that are done, and past their retention."""
    queue = place.queue(name)
    queue.enqueue_many([{"task": "x", "args": [], "kwargs": {}}] * count)
    queue.ack_many(queue.lease(count))


def generations(place, name: str = "default") -> list[str]:
    return sorted(path.name for path in (place / "queues").glob(f"{name}.*.log"))


def test_a_worker_compacts_where_it_pays_and_says_so(place, configure):
    configure(RETENTION=0.0, COMPACT=AT_ONCE, QUEUES={"default": {}, "second": {"COMPACT": None}})
    for name in ("default", "second"):
        finished(place, name=name)
    jobs.hold.enqueue(str(place), "held")
    work = place.work("--queue", "default", "--queue", "second")
    place.until_started("held")
    said = work.until_says(r"upkeep \(pid (\d+)\): default: compacted .* dropped 50 finished")
    assert int(said[1]) not in work.children()
    assert generations(place) == ["default.000002.log"]
    assert generations(place, "second") == ["second.000001.log"]
    place.let_go("held")  # a lease that was taken before, or on the way
    work.until_says("job .* succeeded")
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert place.queue().stats().total == 1
    assert generations(place, "second") == ["second.000001.log"]
    assert not list((place / "queues").glob("*.tmp"))


def test_nothing_is_compacted_below_the_thresholds(place, configure):
    configure(RETENTION=0.0)
    finished(place)
    work = place.work("--drain")
    assert work.end() == 0
    assert "upkeep" not in work.text()
    assert generations(place) == ["default.000001.log"]


def test_a_worker_that_drains_the_queue_ends_after_its_compaction(place, configure):
    configure(RETENTION=0.0, COMPACT=AT_ONCE)
    finished(place, 2000)
    work = place.work("--drain")
    assert work.end() == 0
    assert "dropped 2000 finished" in work.text()
    assert generations(place) == ["default.000002.log"]


def test_a_stopped_worker_gives_its_compaction_up(place, configure):
    """It is held still, as long as the test wants, by one who never lets go of the log's lock."""
    configure(RETENTION=0.0, COMPACT=AT_ONCE)
    finished(place)
    queue = place.queue()
    with queue._session.locked():
        work = place.work("--verbosity", 2)
        pid = int(work.until_says(r"upkeep \(pid (\d+)\): default: looks")[1])
        work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert state_of(pid) is None
    assert generations(place) in (["default.000001.log"], ["default.000002.log"])
    assert len(queue) in (0, 50)


def test_an_upkeep_whose_supervisor_is_killed_ends_by_itself(place, configure):
    configure(RETENTION=0.0, COMPACT=AT_ONCE)
    finished(place)
    queue = place.queue()
    with queue._session.locked():
        work = place.work("--verbosity", 2)
        pid = int(work.until_says(r"upkeep \(pid (\d+)\): default: looks")[1])
        os.kill(work.pid, signal.SIGKILL)
    until(lambda: state_of(pid) in (None, "Z"), "the end of the upkeep")
    queue.enqueue({"task": "x", "args": [], "kwargs": {}})
    assert queue.compact().jobs_kept == 1


def test_an_upkeep_that_is_killed_is_no_trouble(place, configure):
    configure(RETENTION=0.0, COMPACT=AT_ONCE)
    finished(place)
    queue = place.queue()
    with queue._session.locked():
        work = place.work("--verbosity", 2)
        pid = int(work.until_says(r"upkeep \(pid (\d+)\): default: looks")[1])
        os.kill(pid, signal.SIGKILL)
        until(lambda: state_of(pid) in (None, "Z"), "the end of the upkeep")
    assert jobs.note.enqueue(str(place / "trace"), "x").wait(timeout=60).return_value == "x"
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    queue.compact()
    assert not list((place / "queues").glob("*.tmp"))
