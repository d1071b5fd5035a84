"""When a compaction pays, and the thread that sees to it."""

import itertools
import random
import threading

import pytest

from nobroker_django import CompactionPolicy, InvalidOptionError, Queue, Worker
from nobroker_django.engine import upkeep
from nobroker_django.engine.compaction import compact
from nobroker_django.engine.control import COMPACTION_BYTE
from nobroker_django.engine.generations import Layout
from nobroker_django.engine.upkeep import Upkeep, compact_if_it_pays, dead_share, may_pay
from tests.contract.helpers import flip, live_log, read_log
from tests.support.procs import wait_until

pytestmark = [pytest.mark.contract("COMP-05")]

SMALL = CompactionPolicy(min_bytes=1000, dead_ratio=0.5)
TEXT = {"text": "x" * 100}


def share(queue: Queue) -> float:
    return dead_share(Layout.of(queue.dir, queue.name), queue.now())


def finish(queue: Queue, count: int) -> None:
    queue.enqueue_many([TEXT] * count)
    queue.ack_many(queue.lease(count))


def generation(queue: Queue) -> int:
    return int(live_log(queue.dir).suffixes[0][1:])


@pytest.mark.parametrize(
    "values",
    [
        {"min_bytes": -1},
        {"min_bytes": 1.5},
        {"min_bytes": True},
        {"min_bytes": 1 << 50},
        {"dead_ratio": 0},
        {"dead_ratio": 1.1},
        {"dead_ratio": "0.5"},
        {"dead_ratio": True},
        {"dead_ratio": float("nan")},
    ],
)
def test_thresholds_that_are_none_are_refused(values):
    with pytest.raises(InvalidOptionError, match=next(iter(values))):
        CompactionPolicy(**values)


def test_a_log_has_to_be_large_enough(queue):
    layout = Layout.of(queue.dir, queue.name)
    queue.close()  # without room behind the last record
    size = live_log(queue.dir).stat().st_size
    assert may_pay(layout, CompactionPolicy(min_bytes=size))
    assert not may_pay(layout, CompactionPolicy(min_bytes=size + 1))


def test_where_there_is_no_queue_or_a_broken_one_nothing_pays_and_nothing_is_made(tmp_path):
    policy = CompactionPolicy(min_bytes=0)
    assert not may_pay(Layout.of(tmp_path / "none", "a"), policy)
    assert not (tmp_path / "none").exists()
    for text in ("7", "x"):
        (tmp_path / "a.current").write_text(text)
        assert not may_pay(Layout.of(tmp_path, "a"), policy)


def test_what_waits_or_runs_or_is_dead_or_within_its_retention_is_needed(open_queue, clock):
    queue = open_queue(retention=100)
    queue.enqueue_many([TEXT] * 30)
    queue.enqueue_many([TEXT] * 10, delay=1000)
    for job in queue.lease(10):
        queue.bury(job, error="x" * 200)
    assert share(queue) < 0.2
    queue.ack_many(queue.lease(20))
    before = share(queue)
    clock.advance(101)
    assert before < 0.35 < 0.5 < share(queue)


def test_an_empty_queue_and_one_that_nobody_has_leased_from_have_nothing_dead(queue):
    assert share(queue) == 0.0
    queue.enqueue_many([TEXT] * 100)
    assert share(queue) == 0.0


def test_what_is_not_folded_yet_counts_as_needed(open_queue):
    queue = open_queue(retention=0)
    finish(queue, 50)
    assert share(queue) == 1.0
    queue.enqueue_many([TEXT] * 150)
    assert share(queue) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_a_sample_tells_about_what_a_compaction_would_find(open_queue, monkeypatch, keep):
    """A quarter of the jobs, of very different sizes; the seed of SQLite's numbers is nobody's to choose."""
    rng = random.Random(keep)
    queue = open_queue(retention=0, fsync=False)
    for number in range(8):
        queue.enqueue_many([{"text": "x" * rng.choice((10, 100, 1000))} for _ in range(500)], priority=number)
        jobs = queue.lease(500)
        queue.ack_many([job for job in jobs if rng.random() >= keep])
        for job in queue.list_jobs("leased", limit=20):
            queue.nack(job, error="y" * 1000, delay=1000)
    exact = share(queue)
    monkeypatch.setattr(upkeep, "_SAMPLED_JOBS", 1000)
    estimate = share(queue)
    result = queue.compact()
    assert exact == pytest.approx(1 - result.bytes_after / result.bytes_before, abs=0.2)  # copies hold some more
    assert estimate == pytest.approx(exact, abs=0.2)


def test_it_compacts_where_that_pays_and_not_elsewhere(open_queue):
    queue = open_queue(retention=0)
    queue.enqueue_many([TEXT] * 10)
    finish(queue, 10)
    assert compact_if_it_pays(queue, CompactionPolicy(min_bytes=1 << 30)) is None
    assert compact_if_it_pays(queue, CompactionPolicy(min_bytes=0, dead_ratio=0.95)) is None
    result = compact_if_it_pays(queue, SMALL)
    assert result is not None
    assert (result.jobs_kept, result.jobs_dropped) == (10, 10)
    assert compact_if_it_pays(queue, SMALL) is None
    assert generation(queue) == 2


def test_beside_another_compaction_it_does_nothing(open_queue):
    queue, other = open_queue(retention=0), open_queue()
    finish(queue, 20)
    with other._session.locked() as held:
        lock_file = held.lock_file.retain()
    with other._session.long_work.try_lock(lock_file, COMPACTION_BYTE) as had:
        assert had
        assert compact_if_it_pays(queue, SMALL) is None
    lock_file.release()
    assert compact_if_it_pays(queue, SMALL) is not None


def test_looking_whether_it_pays_writes_nothing_and_takes_no_lock(open_queue, queue_dir):
    queue = open_queue(retention=0, lock_timeout=0.2)
    finish(queue, 10)
    queue.enqueue_many([TEXT] * 50)
    before = {path: path.read_bytes() for path in queue_dir.rglob("*") if path.is_file() and "-shm" not in path.name}
    with open_queue()._session.locked():
        assert compact_if_it_pays(queue, SMALL) is None
    assert {path: path.read_bytes() for path in before} == before


def test_the_thread_looks_at_once_and_again_and_again(open_queue):
    queue = open_queue(retention=0)
    finish(queue, 20)
    thread = Upkeep(queue, SMALL, look_seconds=0.001)
    thread.start()
    expected = [2, 3, 4]
    while expected:
        wait_until(lambda: generation(queue) == expected[0], "a compaction")
        del expected[0]
        finish(queue, 20)
    thread.stop()


def test_after_trouble_it_tries_again_later(open_queue, monkeypatch, caplog):
    """Damage is said, marked for all writers, and ends nothing but the compaction."""
    queue = open_queue(retention=0)
    finish(queue, 20)
    asked = []
    monkeypatch.setattr(upkeep, "_LONGEST_PAUSE_SECONDS", 0.005)

    def failing(session, *, give_up):
        asked.append(True)
        if len(asked) < 3:
            raise OSError(28, "no space left on device")
        return compact(session, give_up=give_up)

    monkeypatch.setattr(upkeep, "compact", failing)
    thread = Upkeep(queue, SMALL, look_seconds=0.001)
    thread.start()
    wait_until(lambda: generation(queue) == 2, "the third attempt")
    thread.stop()
    assert len(asked) >= 3
    assert sum("no space left" in record.getMessage() for record in caplog.records) == 2


def test_damage_that_it_meets_is_marked_for_all_writers(open_queue, queue_dir):
    queue, other = open_queue(retention=0), open_queue()
    finish(queue, 20)
    log = live_log(queue_dir)
    record = read_log(log)[5]
    thread = Upkeep(queue, SMALL, look_seconds=0.001)
    flip(log, record.offset + 20)
    thread.start()

    def refused() -> bool:
        try:
            other.enqueue(1)
        except Exception as error:
            return "damage was met" in str(error)
        return False

    wait_until(refused, "the mark")
    thread.stop()


def test_it_ends_with_its_queue(open_queue):
    queue = open_queue()
    thread = Upkeep(queue, CompactionPolicy(min_bytes=0, dead_ratio=0.01), look_seconds=0.001)
    finish(queue, 5)
    queue.close()
    thread.start()
    wait_until(lambda: not thread._thread.is_alive(), "the end of the thread")
    thread.stop()


def test_a_worker_compacts_while_it_works(open_queue):
    """The handler waits for the compaction: neither waits for the other."""
    queue = open_queue(retention=0)
    finish(queue, 20)
    queue.enqueue("x")
    flipped = threading.Event()

    def handler(job):
        wait_until(lambda: generation(queue) == 2, "the compaction")
        flipped.set()

    stats = Worker(queue, handler, max_jobs=1, compaction=SMALL).run()
    assert flipped.is_set()
    assert stats.succeeded == 1


def test_a_worker_that_is_told_not_to_never_compacts(open_queue, monkeypatch):
    monkeypatch.setattr(upkeep, "compact_if_it_pays", lambda *args, **kwargs: pytest.fail("asked"))
    queue = open_queue(retention=0)
    finish(queue, 20)
    queue.enqueue("x")
    Worker(queue, lambda job: None, max_jobs=1, compaction=None).run()
    assert generation(queue) == 1
    with pytest.raises(InvalidOptionError, match="compaction"):
        Worker(queue, lambda job: None, compaction=True)  # type: ignore[arg-type]


def test_a_worker_that_ends_gives_the_compaction_up(open_queue):
    """It is stopped at a look of the compaction's own, and nothing is left."""
    queue = open_queue(retention=0)
    finish(queue, 20)
    looks = itertools.count()
    thread = Upkeep(queue, SMALL)
    asked = thread._stopped.is_set

    def is_set() -> bool:
        if next(looks) == 3:
            thread._stopped.set()
        return asked()

    thread._stopped.is_set = is_set  # type: ignore[method-assign]
    thread.start()
    wait_until(lambda: not thread._thread.is_alive(), "the end of the thread")
    assert generation(queue) == 1
    assert sorted(path.name for path in queue.dir.iterdir()) == [
        "default.000001.log", "default.current", "default.lock", "default.run",
    ]  # fmt: skip
