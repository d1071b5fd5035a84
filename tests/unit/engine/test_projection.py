"""The projection is a cache: thrown away, damaged, behind or of another format, the answers stay the same."""

import os
import sqlite3
import threading

import pytest

from nobroker_django import BackoffPolicy, Queue, StorageError
from nobroker_django.engine import bell, deciding, leasing
from nobroker_django.engine.files import Files
from nobroker_django.engine.unit import Unit
from tests.contract.helpers import RecordingFiles


def builds(queue_dir):
    return sorted((queue_dir / "default.run").glob("*.index"))


@pytest.fixture
def busy(open_queue, queue_dir):
    """A queue with jobs in every state, and what it answers."""
    queue = open_queue(retention=1000, backoff=BackoffPolicy(base=5, jitter=0))
    queue.enqueue_many([{"n": n} for n in range(30)], priority=[n % 3 for n in range(30)])
    jobs = queue.lease(6)
    queue.ack(jobs[0], result=1)
    queue.nack(jobs[1], error="x")
    queue.bury(jobs[2], error="y")
    return queue, [job.to_dict() for job in queue.list_jobs()], queue.stats()


def same(queue, busy):
    assert [job.to_dict() for job in queue.list_jobs()] == busy[1]
    assert queue.stats() == busy[2]


@pytest.mark.contract("LOG-01")
@pytest.mark.parametrize("alive", [True, False])
def test_a_projection_that_was_removed_is_built_anew_under_a_new_name(open_queue, queue_dir, busy, alive):
    before = builds(queue_dir)
    if not alive:
        busy[0].close()
    for entry in (queue_dir / "default.run").iterdir():
        entry.unlink()
    queue = busy[0] if alive else open_queue(retention=1000)
    same(queue, busy)
    same(open_queue(retention=1000), busy)
    assert len(builds(queue_dir)) == 1
    assert builds(queue_dir) != before


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda path: path.write_bytes(b"no database at all" * 100), id="garbage"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: os.truncate(path, 5000), id="truncated"),
        pytest.param(lambda path: _sql(path, "UPDATE meta SET format = 99"), id="another format"),
        pytest.param(lambda path: _sql(path, "UPDATE meta SET log_id = 5"), id="another log"),
        pytest.param(lambda path: _sql(path, "UPDATE meta SET head = x'00'"), id="another last record"),
        pytest.param(lambda path: _sql(path, "DELETE FROM meta"), id="no meta"),
    ],
)
def test_a_clean_projection_that_does_not_fit_is_built_anew(open_queue, queue_dir, busy, harm):
    busy[0].close()
    [path] = builds(queue_dir)
    harm(path)
    queue = open_queue(retention=1000)
    same(queue, busy)
    assert builds(queue_dir) != [path]
    queue.enqueue("goes on")


def _sql(path, statement):
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_clean_projection_is_used_again_without_reading_the_log(open_queue, queue_dir, busy):
    busy[0].enqueue_many(["x" * 1000] * 500)
    busy[0].stats()
    busy[0].close()
    before = builds(queue_dir)
    assert [entry.suffix for entry in (queue_dir / "default.run").iterdir()] == [".index"]  # no -wal is left
    files = RecordingFiles()
    queue = open_queue(files=files)
    queue.stats()
    assert builds(queue_dir) == before
    # The last write is read again when the queue is opened: of it alone, the rest stays unread.
    assert files.record.bytes_read < 1_200_000
    files.record.clear()
    queue.stats()
    assert files.record.bytes_read < 10_000


def test_after_a_kill_the_projection_is_not_trusted(open_queue, queue_dir, busy, tmp_path):
    import shutil

    copy = tmp_path / "as it was when everybody was killed"
    shutil.copytree(queue_dir, copy)
    _sql(next(copy.glob("default.run/*.index")), "UPDATE jobs SET priority = 77")
    same(open_queue(copy, retention=1000), busy)


def test_a_plain_enqueue_leaves_the_projection_behind_and_the_next_look_catches_up(open_queue, queue_dir, busy):
    files = RecordingFiles()
    producer = open_queue(files=files)
    files.record.clear()
    producer.enqueue_many(range(100))
    assert not [call for call in files.record.calls if ".index" in call.path]
    assert busy[0].stats().ready == busy[2].ready + 100


def test_a_long_backlog_is_folded_in_pieces_between_which_a_producer_gets_the_lock(open_queue, monkeypatch):
    monkeypatch.setattr(deciding, "PIECE_SECONDS", 0.0)
    monkeypatch.setattr(deciding, "BACKLOG_BYTES", 1000)
    pauses = []
    producer = open_queue(fsync=False)
    reader = open_queue(fsync=False)
    producer.enqueue_many(range(2000))

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) < 4:
            producer.enqueue("in between")

    monkeypatch.setattr(deciding, "sleep", pause)
    stats = reader.stats()
    assert len(pauses) >= 3
    assert stats.ready == 2003


@pytest.mark.parametrize("appends", [True, False])
def test_pieces_of_a_backlog_are_longer_while_nobody_appends(open_queue, monkeypatch, appends):
    monkeypatch.setattr(deciding, "BACKLOG_BYTES", 1000)
    producer, reader = open_queue(fsync=False), open_queue(fsync=False)
    producer.enqueue_many(range(20 * 250))
    pieces = []
    fold = Unit.fold

    def piece(unit, stop, seconds):
        pieces.append(seconds)
        return fold(unit, stop, 0.0)

    monkeypatch.setattr(Unit, "fold", piece)
    monkeypatch.setattr(deciding, "sleep", lambda seconds: producer.enqueue("x") if appends else None)
    reader.stats()
    assert len(pieces) > 10
    assert max(pieces) == (deciding.PIECE_SECONDS if appends else deciding.QUIET_PIECE_SECONDS)
    assert pieces[: deciding.QUIET_PIECES] == [deciding.PIECE_SECONDS] * deciding.QUIET_PIECES


def test_jobs_become_due_in_bounded_batches(open_queue, clock, monkeypatch):
    monkeypatch.setattr(deciding, "PROMOTE_ROWS", 10)
    queue = open_queue()
    queue.enqueue_many(range(35), delay=50)
    assert queue.stats().delayed == 35
    clock.advance(50)
    assert [job.payload for job in queue.lease(35)] == list(range(35))


def test_many_expired_leases_are_taken_back_in_pieces(open_queue, clock, monkeypatch):
    monkeypatch.setattr(leasing, "_RECLAIM_ROWS", 4)
    queue = open_queue(visibility_timeout=10, backoff=BackoffPolicy(base=0))
    queue.enqueue_many(range(10), max_attempts=2)
    queue.lease(10)
    clock.advance(10)
    assert [job.attempts for job in queue.lease(20)] == [2] * 10
    clock.advance(10)
    assert queue.lease(20) == []
    assert queue.stats().dead == 10


def test_a_lease_with_a_timeout_notices_at_once_what_came_between_the_look_and_the_wait(open_queue, monkeypatch):
    queue, producer = open_queue(), open_queue()
    look = type(queue)._lease_now
    waits = []

    def late(self, *args):
        answer = look(self, *args)
        if not producer.stats().total:
            producer.enqueue("just now")
        return answer

    monkeypatch.setattr(type(queue), "_lease_now", late)
    monkeypatch.setattr(bell.Listening, "wait", lambda self, seconds: waits.append(seconds))
    assert queue.lease_one(timeout=60).payload == "just now"
    assert waits == []


def test_a_lease_with_a_timeout_wakes_up_for_an_enqueue_of_another_object(open_queue):
    queue, producer = open_queue(), open_queue()
    found = []
    thread = threading.Thread(target=lambda: found.append(queue.lease_one(timeout=60)))
    thread.start()
    producer.enqueue("x")
    thread.join(60)
    assert found[0].payload == "x"


def test_lists_are_paged_and_limited(open_queue, monkeypatch):
    from nobroker_django.engine import looking

    monkeypatch.setattr(looking, "_PAGE_ROWS", 7)
    queue = open_queue()
    queue.enqueue_many(range(30))
    assert [job.payload for job in queue.list_jobs()] == list(range(30))
    assert [job.payload for job in queue.list_jobs("ready", limit=16)] == list(range(16))
    assert queue.list_jobs("dead") == []


class Space(Files):
    """A disk that says how much space it has, in blocks of which size."""

    def __init__(self, *space):
        self.space = space

    def free_space(self, path):
        return self.space


@pytest.mark.contract("ENQ-08")
@pytest.mark.parametrize("built", [True, False])
def test_where_sqlite_would_be_killed_for_lack_of_space_an_error_is_raised_before(
    open_queue, queue_dir, busy, built, monkeypatch
):
    """Blocks smaller than a page of the memory: SQLite maps a file that the disk has no room for."""
    busy[0].close()
    if not built:
        builds(queue_dir)[0].unlink()
    connected = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **options: connected.append(path) or connect(path, **options))
    files = Space(100_000, 1024)
    queue = open_queue(files=files)
    queue.enqueue("x")
    for verb in (queue.lease, queue.stats):
        with pytest.raises(StorageError, match="No space left on device") as refused:
            verb()
        assert refused.value.stored is False
    assert not connected
    files.space = (200_000, 1024)
    assert queue.stats().total == 31
    assert connected


@pytest.mark.parametrize("space", [(100_000, 4096), (None, 1024)])
def test_other_disks_are_not_asked_for_space(open_queue, space):
    assert open_queue(files=Space(*space)).stats().total == 0


def test_who_looks_on_such_a_disk_replays_the_log_for_itself(queue_dir, busy, clock, monkeypatch):
    connected = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **options: connected.append(path) or connect(path, **options))
    with Queue(queue_dir, read_only=True, files=Space(0, 1024), clock=clock) as looking:
        same(looking, busy)
    assert connected == [""]


def test_space_is_told_as_the_system_tells_it(tmp_path, monkeypatch):
    kept_back = os.statvfs_result((1024, 1024, 14_000, 280, 0, 0, 0, 0, 0, 255))  # ext4: free, and for nobody
    monkeypatch.setattr(os, "statvfs", lambda path: kept_back)
    assert Files().free_space(tmp_path) == (0, 1024)
    nothing = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: nothing)  # a tmpfs without a limit
    assert Files().free_space(tmp_path)[0] is None
