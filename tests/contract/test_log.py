"""LOG-01 to LOG-10, as far as they hold: the log as the only truth, torn tails, corruption, poison, the pointer.

Every byte, every bit and every system call are tried in ``tests/crash``; here are the kinds.
"""

import errno
import os
import shutil
import sqlite3
import struct
import threading
from pathlib import Path

import pytest

from nobroker_django import (
    BackoffPolicy,
    CorruptLogError,
    JobNotFoundError,
    JobState,
    LockTimeoutError,
    OutcomeUnknownError,
    StorageError,
)
from nobroker_django.engine.files import Files
from nobroker_django.engine.framing import MAX_BODY_BYTES
from nobroker_django.engine.log import SYNC_BYTE, Log
from nobroker_django.engine.projection import Projection
from tests.support.bytes import append_to, log_bytes, log_end

from .helpers import (
    ACK,
    DEAD,
    ENQUEUE,
    EXTEND,
    LEASE,
    NACK,
    OPEN,
    PURGE,
    RECLAIM,
    RELEASE,
    REQUEUE,
    SNAPSHOT,
    RecordingFiles,
    flip,
    frame,
    live_log,
    read_log,
    run_python,
)


def a_life(queue, clock, purge=True):
    """Verbs of every kind; yields after each."""
    yield queue.enqueue_many(["a", "b", "c", "d"], priority=[0, 1, 0, 2], delay=[0, 0, 50, 0])
    yield queue.enqueue("named", job_id="named", max_attempts=1, meta={"m": 1}, visibility_timeout=5)
    jobs = queue.lease(4)
    yield jobs
    yield queue.ack(jobs[0], result={"r": 1})
    yield queue.nack(jobs[1], error=ValueError("first"))
    yield queue.extend(jobs[2], 100)
    yield queue.release([jobs[2]])
    clock.advance(400)
    yield queue.lease(5)  # takes back what has expired
    yield queue.stats()
    clock.advance(400)
    yield queue.lease(5)
    yield queue.requeue_dead()
    yield queue.enqueue("last but one")
    if purge:
        yield queue.purge()
    yield queue.enqueue("last")


# --- LOG-01


@pytest.mark.contract("LOG-01")
def test_bytes_once_written_never_change_and_only_appends_reach_the_log(open_queue, queue_dir, clock):
    files = RecordingFiles()
    queue = open_queue(files=files, retention=10)
    log = live_log(queue_dir)
    before = log_bytes(log)
    for _ in a_life(queue, clock):
        now = log_bytes(log)
        assert now.startswith(before)
        before = now
    queue.close()
    assert log.read_bytes() == before
    end = 0
    for call in files.record.on(".log", "write", "pwrite", "allocate", "truncate"):
        end = end or call.offset  # the first one is the opener's, behind what the creation wrote
        written = len(call.data.rstrip(b"\0"))
        assert call.offset == end if written else call.offset >= end  # zeros are written where zeros are: room
        end += written
    assert end == len(before)
    assert files.record.on(".log", "truncate") == files.record.on(".log", "truncate")[:1]  # the last closer's


@pytest.mark.contract("LOG-01")
def test_the_log_and_the_pointer_are_all_that_is_needed(open_queue, queue_dir, clock, tmp_path):
    queue = open_queue(retention=1000)
    for _ in a_life(queue, clock, purge=False):
        pass
    expected = [job.to_dict() for job in queue.list_jobs()]
    stats = queue.stats()
    copy = tmp_path / "copy"
    copy.mkdir()
    for entry in (live_log(queue_dir), queue_dir / "default.current"):
        shutil.copy(entry, copy)
    restored = open_queue(copy)
    assert [job.to_dict() for job in restored.list_jobs()] == expected
    assert restored.stats() == stats


# --- LOG-02


@pytest.mark.contract("LOG-02")
def test_the_log_is_what_the_documented_format_says(open_queue, queue_dir, clock):
    queue = open_queue(retention=10, backoff=BackoffPolicy(base=1, jitter=0), visibility_timeout=30)
    for _ in a_life(queue, clock):
        pass
    data = log_bytes(live_log(queue_dir))
    assert struct.unpack_from("<8sHIH", data) == (b"NOBROKER", 2, 1, 0)
    records = read_log(live_log(queue_dir))
    kinds = [record.type for record in records]
    assert kinds[:2] == [SNAPSHOT, OPEN]
    assert set(kinds) == {
        SNAPSHOT, OPEN, ENQUEUE, LEASE, ACK, NACK, EXTEND, RELEASE, RECLAIM, DEAD, REQUEUE, PURGE,
    }  # fmt: skip
    left = 0
    for record in records:
        assert ("n" in record.body) == ("u" in record.body) == (left == 0)
        left = (record.body["n"] if left == 0 else left) - 1
    assert left == 0
    assert records[-1].end == len(data)
    queue.compact()
    assert struct.unpack_from("<8sHIH", live_log(queue_dir).read_bytes()) == (b"NOBROKER", 2, 2, 0)


@pytest.mark.contract("LOG-02")
@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (14, b"\x01\x00", "reserved"),
        (10, b"\x02\x00\x00\x00", "generation 2"),
        (0, b"NOBROKEN", "not a nobroker log"),
        (8, b"\x03\x00", "version 3"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_and_nothing_is_written(open_queue, queue_dir, offset, value, says):
    open_queue().close()
    log = live_log(queue_dir)
    data = bytearray(log.read_bytes())
    data[offset : offset + len(value)] = value
    log.write_bytes(data)
    with pytest.raises(CorruptLogError, match=says) as refused:
        open_queue()
    assert refused.value.path == str(log)
    assert log.read_bytes() == data


@pytest.mark.contract("LOG-02")
def test_another_version_is_refused_with_both_versions_named(open_queue, queue_dir):
    open_queue().close()
    live_log(queue_dir).write_bytes(struct.pack("<8sHIH", b"NOBROKER", 7, 1, 0) + b"whatever")
    with pytest.raises(CorruptLogError, match=r"version 7.*version 2"):
        open_queue()


# --- LOG-04


def tables(connection):
    """All of the replayed state, without the moments at which somebody looked."""
    found = {
        name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in ("jobs", "failures")
    }
    columns = [column[1] for column in connection.execute("PRAGMA table_info(meta)")]
    meta = dict(zip(columns, connection.execute("SELECT * FROM meta").fetchone(), strict=True))
    return {**found, "meta": {name: meta[name] for name in columns if name not in ("promoted", "closed_at")}}


def replay(log: Log, stop: int, now: float | None = None):
    """The state of the log up to an offset, in memory; with ``now``, delayed jobs whose time has come made due."""
    projection = Projection.private(log)
    try:
        with projection.unit() as unit:
            assert unit.fold(stop, 60)
            if now is not None:
                assert unit.promote(now, 10_000)
        return tables(projection.connection)
    finally:
        projection.close()


@pytest.fixture
def replayed_log(queue_dir):
    """Opens the live log beside the queue."""
    opened = []

    def open_():
        log = Log(Files(), live_log(queue_dir), int((queue_dir / "default.current").read_text()))
        opened.append(log)
        return log

    yield open_
    for log in opened:
        log.release()


@pytest.mark.contract("LOG-04")
@pytest.mark.parametrize("compacted", [False, True])
def test_replaying_the_same_bytes_twice_gives_identical_state_and_that_of_the_live_queue(
    open_queue, queue_dir, clock, replayed_log, compacted
):
    queue = open_queue(retention=1000, visibility_timeout=30)
    for _ in a_life(queue, clock, purge=False):
        pass
    if compacted:
        queue.compact()
        for _ in a_life(queue, clock, purge=False):
            pass
    queue.stats()
    log = replayed_log()
    first = replay(log, log.data_end())
    assert replay(log, log.data_end()) == first
    assert len(first["jobs"]) >= 6
    assert first["failures"]
    index = max((queue_dir / "default.run").glob("*.index"))
    connection = sqlite3.connect(index)
    try:
        found = tables(connection)
    finally:
        connection.close()
    assert found == replay(log, log.data_end(), now=clock.now)


@pytest.mark.contract("LOG-04")
def test_replaying_to_an_earlier_offset_gives_the_state_of_that_moment(open_queue, queue_dir, clock, replayed_log):
    queue = open_queue(retention=1000)
    moments = []
    for _ in a_life(queue, clock):
        stats = queue.stats()
        counts = (stats.ready + stats.delayed, stats.leased, stats.done, stats.dead, stats.enqueued_total)
        moments.append((log_end(live_log(queue_dir)), counts))
    log = replayed_log()
    assert len({counts for _, counts in moments}) > 5
    for end, expected in moments:
        meta = replay(log, end)["meta"]
        assert (
            meta["waiting"] + meta["due"], meta["leased"], meta["done"], meta["dead"], meta["enqueued_total"]
        ) == expected  # fmt: skip


@pytest.mark.contract("LOG-04")
def test_state_does_not_depend_on_when_the_log_is_replayed(open_queue, queue_dir, clock):
    queue = open_queue(retention=1000)
    for _ in a_life(queue, clock, purge=False):
        pass
    expected = [job.to_dict() for job in queue.list_jobs()]
    queue.close()
    shutil.rmtree(queue_dir / "default.run")
    clock.advance(10**7)
    assert [job.to_dict() for job in open_queue(backoff=BackoffPolicy(base=99)).list_jobs()] == expected


# --- LOG-05


@pytest.fixture
def torn(open_queue, queue_dir):
    """A closed queue of three acknowledged jobs; its log."""
    with open_queue() as queue:
        for number in range(3):
            queue.enqueue(number)
    return live_log(queue_dir)


@pytest.mark.contract("LOG-05")
@pytest.mark.parametrize("words", ["kept", "lost"])
@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(frame(ENQUEUE, {"id": "x", "n": 1, "u": 0})[:-1], id="cut short"),
        pytest.param(frame(ENQUEUE, {"id": "x", "n": 1, "u": 0})[:4], id="head cut short"),
        pytest.param(frame(ENQUEUE, {"id": "x", "n": 2, "u": 0}), id="half a batch"),
        pytest.param(frame(ENQUEUE, b'{"n":1,"u":0,"x":"' + b"y" * 3000 + b'"}')[:600] + bytes(2409), id="zeroed end"),
    ],
)
def test_what_a_power_cut_leaves_behind_is_cut_kept_aside_and_reported(
    open_queue, queue_dir, torn, caplog, tail, words
):
    """C61."""
    sound = torn.read_bytes()
    torn.write_bytes(sound + tail)
    left = tail.rstrip(b"\0")  # zeros behind it are no data
    if words == "lost":
        (queue_dir / "default.lock").unlink()
    queue = open_queue()
    assert [job.payload for job in queue.list_jobs()] == [0, 1, 2]
    report = queue.recovery
    assert report.repaired
    assert (report.bytes_discarded, report.offset, report.path) == (len(left), len(sound), str(torn))
    assert report.damage != "none"
    assert Path(report.kept_path).read_bytes() == left
    assert torn.read_bytes().startswith(sound)
    [warning] = [record for record in caplog.records if record.name == "nobroker_django"]
    assert f"{len(left)} bytes at byte {len(sound)}" in warning.getMessage()
    assert queue.enqueue("goes on").created
    read_log(torn)


@pytest.mark.contract("LOG-05")
@pytest.mark.parametrize("words", ["kept", "lost"])
@pytest.mark.parametrize("zeros", [1, 8, 9, 511, 512, 513, 4095, 4096, 8192, 1024 * 1024])
def test_zeros_alone_at_the_end_are_nothing_to_repair_and_nothing_to_report(
    open_queue, queue_dir, torn, caplog, zeros, words
):
    """C61."""
    sound = torn.read_bytes()
    os.truncate(torn, len(sound) + zeros)
    if words == "lost":
        (queue_dir / "default.lock").unlink()
    queue = open_queue()
    assert [job.payload for job in queue.list_jobs()] == [0, 1, 2]
    report = queue.recovery
    assert (report.repaired, report.bytes_discarded, report.damage) == (False, 0, "none")
    assert (report.offset, report.kept_path) == (None, None)
    assert caplog.records == []
    assert list(queue_dir.glob("*torn*")) == []
    assert queue.enqueue("goes on").created
    queue.close()
    assert torn.read_bytes().startswith(sound)
    assert [record.body["payload"] for record in read_log(torn) if record.type == ENQUEUE] == [0, 1, 2, "goes on"]
    assert torn.read_bytes() == log_bytes(torn)


@pytest.mark.contract("LOG-05")
def test_valid_records_behind_a_hole_of_the_unsynced_part_are_cut_with_it(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("durable")
    log = live_log(queue_dir)
    durable = log_end(log)
    careless = open_queue(fsync=False)
    for number in range(4):
        careless.enqueue("x" * 1200 + str(number))
    written = log_bytes(log)
    queue.close()
    os.close(os.open(log, os.O_RDONLY))
    careless.close()
    hole = (durable // 512 + 2) * 512
    assert durable < hole
    log.write_bytes(written[:hole] + bytes(512) + written[hole + 512 :])
    (queue_dir / "default.lock").unlink()
    after = open_queue()
    assert [job.payload for job in after.list_jobs()] == ["durable"]
    assert after.recovery.bytes_discarded == len(written) - durable


@pytest.mark.contract("LOG-05")
def test_the_end_is_cut_back_to_the_last_whole_batch_and_whole_ones_stay(open_queue, queue_dir, torn):
    sound = torn.read_bytes()
    records = read_log(torn)
    body = next(record.body for record in records if record.type == ENQUEUE)
    whole = frame(ENQUEUE, {**body, "id": "not acknowledged", "payload": 3, "u": 0})
    torn.write_bytes(sound + whole + whole[:-3])
    queue = open_queue()
    assert [job.payload for job in queue.list_jobs()] == [0, 1, 2, 3]
    assert queue.recovery.bytes_discarded == len(whole) - 3


# --- LOG-06


@pytest.mark.contract("LOG-06")
def test_a_writer_that_has_the_queue_open_secures_the_tail_of_one_that_died_before_it_appends(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("before")
    log = live_log(queue_dir)
    sound = log_bytes(log)
    append_to(log, frame(ENQUEUE, {"id": "x"})[:-5])
    for job_id in (None, "named"):
        queue.enqueue("after", job_id=job_id)
    assert log.read_bytes().startswith(sound)
    records = read_log(log)  # all of them whole: nothing was appended behind the torn one
    assert [record.type for record in records][-3:] == [OPEN, ENQUEUE, ENQUEUE]
    assert queue.recovery.repaired


@pytest.mark.contract("LOG-06")
def test_an_append_that_another_process_did_not_publish_is_taken_in_or_cut_before_the_next(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("before")
    log = live_log(queue_dir)
    body = read_log(log)[-1].body
    append_to(log, frame(ENQUEUE, {**body, "id": "unpublished", "payload": "u", "u": 0}))
    queue.enqueue("after")
    assert [job.payload for job in queue.list_jobs()] == ["before", "u", "after"]
    assert not queue.recovery.repaired


# --- LOG-07


@pytest.fixture
def thousand(open_queue, queue_dir):
    """A closed queue of a thousand acknowledged jobs; its log and the offsets of their records."""
    with open_queue() as queue:
        for number in range(10):
            queue.enqueue_many([f"job {number * 100 + n}" for n in range(100)])
    log = live_log(queue_dir)
    return log, [record for record in read_log(log) if record.type == ENQUEUE]


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("words", ["kept", "lost"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda record: (record.offset, 0x01), id="length"),
        pytest.param(lambda record: (record.offset + 3, 0x80), id="length of two gigabytes"),
        pytest.param(lambda record: (record.offset + 4, 0x04), id="type"),
        pytest.param(lambda record: (record.offset + 6, 0x10), id="checksum"),
        pytest.param(lambda record: (record.offset + 12, 0x20), id="body"),
        pytest.param(lambda record: (record.end - 1, 0x01), id="last byte"),
    ],
)
def test_damage_in_the_middle_is_refused_by_all_who_read_it_and_never_cut(
    open_queue, queue_dir, thousand, clock, damage, words
):
    """C63."""
    log, records = thousand
    offset = records[500].offset
    flip(log, *damage(records[500]))
    damaged = log_bytes(log)
    if words == "lost":
        (queue_dir / "default.lock").unlink()
        for _ in range(2):
            with pytest.raises(CorruptLogError) as refused:
                open_queue()
            assert (refused.value.path, refused.value.offset) == (str(log), offset)
        assert log.read_bytes() == damaged
        return
    queue = open_queue()
    size = log_end(log)
    for verb in (
        queue.compact,
        lambda: queue.lease(600),
        lambda: queue.list_jobs(),
        lambda: queue.get(records[500].body["id"]),
    ):
        with pytest.raises(CorruptLogError) as refused:
            verb()
        assert (refused.value.path, refused.value.offset) == (str(log), offset)
        assert refused.value.reason
    assert log.read_bytes()[: len(damaged)] == damaged
    assert log_end(log) == size
    assert list(queue_dir.glob("*torn*")) == []
    assert int((queue_dir / "default.current").read_text()) == 1


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("part", ["length", "type", "checksum", "body"])
def test_one_flipped_bit_in_the_last_acknowledged_record_is_noticed_when_the_queue_is_opened(
    open_queue, torn, queue_dir, part
):
    last = [record for record in read_log(torn) if record.type == ENQUEUE][-1]
    flip(torn, last.offset + {"length": 0, "type": 4, "checksum": 7, "body": 20}[part], 2)
    damaged = torn.read_bytes()
    for lock in ("kept", "lost"):
        if lock == "lost":
            (queue_dir / "default.lock").unlink()
        with pytest.raises(CorruptLogError) as refused:
            open_queue()
        assert refused.value.offset == last.offset
        assert torn.read_bytes() == damaged


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("zeros", [False, True])
def test_the_last_acknowledged_record_gone_or_zeroed_is_corruption(open_queue, torn, zeros):
    """C61, C72: what was known to be durable is damaged; a file of half its length is refused as well."""
    data = torn.read_bytes()
    last = [record for record in read_log(torn) if record.type == ENQUEUE][-1]
    torn.write_bytes(data[: last.offset] + (bytes(len(data) - last.offset) if zeros else b""))
    damaged = torn.read_bytes()
    with pytest.raises(CorruptLogError):
        open_queue()
    assert torn.read_bytes() == damaged
    torn.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptLogError, match="known to be durable"):
        open_queue()
    assert torn.stat().st_size == len(data) // 2


@pytest.mark.contract("LOG-07")
def test_damage_under_the_hands_of_a_running_writer_stops_it(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("x")
    log = live_log(queue_dir)
    os.truncate(log, log_end(log) - 3)
    for verb in (
        lambda: queue.enqueue(1),
        lambda: queue.enqueue(1, job_id="x"),
        queue.lease,
        queue.compact,
        queue.purge,
    ):
        with pytest.raises(CorruptLogError):
            verb()


# --- C29: records that another program wrote


def written_behind(open_queue, queue_dir, *records):
    """The queue after somebody appended well-framed records to its log."""
    with open_queue() as queue:
        queue.enqueue("good")
    log = live_log(queue_dir)
    body = next(record.body for record in read_log(log) if record.type == ENQUEUE)
    frames = [
        frame(kind, change if isinstance(change, bytes) else {**body, "u": 0, **change}) for kind, change in records
    ]
    return append_to(log, b"".join(frames))


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ENQUEUE, {"max_attempts": "five"}),
        (ENQUEUE, {"id": 5}),
        (ENQUEUE, b'{"id":"a","id":2,"n":1,"u":0,"payload":1,"enqueued_at":1.0,"max_attempts":5}'),
        (ENQUEUE, b'{"id":"a","n":1,"u":0,"payload":1,"max_attempts":5}'),
        (ENQUEUE, b'{"n":1,"u":0'),
        (LEASE, {"deadline": None}),
        (22, {}),
        (200, {}),
        (0, {}),
    ],
)
def test_a_record_of_another_shape_or_type_is_refused_with_its_offset_and_never_cut(
    open_queue, queue_dir, kind, change
):
    """C29: also record types that are reserved and not built yet."""
    offset = written_behind(open_queue, queue_dir, (kind, change))
    log = live_log(queue_dir)
    written = log.read_bytes()
    with pytest.raises(CorruptLogError) as refused:
        open_queue().stats()
    assert (refused.value.path, refused.value.offset) == (str(log), offset)
    if kind in (22, 200, 0):
        assert str(kind) in refused.value.reason
    assert log.read_bytes().startswith(written)


@pytest.mark.contract("LOG-02")
def test_unknown_fields_are_ignored_and_of_a_key_given_twice_the_last_counts(open_queue, queue_dir):
    """C29."""
    twice = (
        b'{"id":"first","id":"last","n":1,"u":0,"payload":{"a":1},"enqueued_at":1.0,"max_attempts":5,"from":{"x":[]}}'
    )
    written_behind(open_queue, queue_dir, (ENQUEUE, twice), (ENQUEUE, {"id": "b", "colour": "blue"}))
    assert [job.id for job in open_queue().list_jobs()][1:] == ["last", "b"]


# --- LOG-09


class BrokenDisk(RecordingFiles):
    """The syncs of logs fail while ``failing``; what was written before a failed one is lost unless written again.

    As Linux does it: after a failed sync the pages are clean, and the next sync succeeds without writing them.
    """

    def __init__(self):
        super().__init__()
        self.failing = 0

    def datasync(self, fd):
        if self.failing and self.paths.get(fd, "").endswith(".log"):
            self.failing -= 1
            self._note("datasync", self.paths[fd])
            raise OSError(errno.EIO, "input/output error")
        super().datasync(fd)


@pytest.mark.contract("LOG-09")
def test_after_a_failed_sync_the_caller_is_told_that_the_outcome_is_unknown(open_queue):
    files = BrokenDisk()
    queue = open_queue(files=files)
    files.failing = 1
    with pytest.raises(OutcomeUnknownError) as unknown:
        queue.enqueue("x", job_id="x")
    assert (unknown.value.stored, unknown.value.job_ids) == (None, ("x",))


@pytest.mark.contract("LOG-09")
@pytest.mark.parametrize("who", ["the same object", "another object"])
@pytest.mark.parametrize("verb", ["enqueue", "enqueue with the same id", "enqueue with another id", "lease and ack"])
def test_nothing_is_acknowledged_until_the_doubtful_bytes_were_written_and_synced_again(
    open_queue, queue_dir, who, verb
):
    files = BrokenDisk()
    first = open_queue(files=files)
    others = RecordingFiles()
    other = open_queue(files=others)
    first.enqueue("sure", job_id="sure")
    certain = log_end(live_log(queue_dir))
    files.failing = 1
    with pytest.raises(OutcomeUnknownError):
        first.enqueue("doubtful", job_id="doubtful")
    doubtful = log_bytes(live_log(queue_dir))[certain:]
    queue, record = (first, files.record) if who == "the same object" else (other, others.record)
    record.clear()
    if verb == "enqueue":
        queue.enqueue("next")
    elif verb == "enqueue with the same id":
        assert not queue.enqueue("doubtful", job_id="doubtful").created
    elif verb == "enqueue with another id":
        queue.enqueue("next", job_id="next")
    else:
        queue.ack(queue.lease_one())
    again = record.on(".log", "pwrite", "write", "datasync", "sync")
    names = [call.name for call in again]
    rewritten = next(index for index, call in enumerate(again) if call.name == "pwrite" and doubtful in call.data)
    assert "datasync" in names[rewritten:]
    assert "datasync" not in names[:rewritten]
    kinds = [r.type for r in read_log(live_log(queue_dir))]
    assert OPEN in kinds[3:]  # one more: everything before it is durable
    assert [job.id for job in queue.list_jobs()][:2] == ["sure", "doubtful"] or verb == "lease and ack"


DIES_AFTER_A_FAILED_SYNC = """
import os, sys
from nobroker_django import OutcomeUnknownError, Queue
from nobroker_django.engine.files import Files
class BrokenDisk(Files):
    broken = False
    def datasync(self, fd):
        if self.broken:
            raise OSError(5, "input/output error")
        super().datasync(fd)
files = BrokenDisk()
queue = Queue(sys.argv[1], files=files)
queue.enqueue("sure")
files.broken = True
try:
    queue.enqueue("doubtful")
except OutcomeUnknownError:
    os._exit(0)
"""


@pytest.mark.contract("LOG-09")
@pytest.mark.parametrize("words", ["kept", "lost"])
def test_a_process_that_opens_the_queue_later_writes_the_doubtful_bytes_again(open_queue, queue_dir, words):
    run_python(DIES_AFTER_A_FAILED_SYNC, queue_dir)
    if words == "lost":
        (queue_dir / "default.lock").unlink()
    doubtful = next(record for record in read_log(live_log(queue_dir)) if record.body.get("payload") == "doubtful")
    data = log_bytes(live_log(queue_dir))[doubtful.offset :]
    files = RecordingFiles()
    queue = open_queue(files=files)
    calls = files.record.on(".log", "pwrite", "datasync")
    assert [call.name for call in calls[:3]] == ["pwrite", "pwrite", "datasync"]
    assert data in calls[0].data
    assert calls[1].data.strip(b"\0") == b""  # the zeros behind them as well
    assert [job.payload for job in queue.list_jobs()] == ["sure", "doubtful"]


@pytest.mark.contract("LOG-09")
def test_while_the_disk_stays_broken_every_writer_is_refused_and_reads_go_on(open_queue):
    files = BrokenDisk()
    first = open_queue(files=files)
    other_files = BrokenDisk()
    other = open_queue(files=other_files)
    first.enqueue("sure", job_id="sure")
    files.failing = other_files.failing = 1000
    with pytest.raises(OutcomeUnknownError):
        first.enqueue("doubtful")
    for queue in (first, other):
        for verb in (
            lambda queue=queue: queue.enqueue(1),
            lambda queue=queue: queue.enqueue(1, job_id="one"),
            lambda queue=queue: queue.lease(),
            lambda queue=queue: queue.purge(),
        ):
            with pytest.raises(StorageError):
                verb()
    files.failing = other_files.failing = 0
    assert other.enqueue("after", job_id="after").created
    assert first.get("sure").state is JobState.READY
    payloads = [job.payload for job in first.list_jobs()]
    assert payloads in (["sure", "doubtful", "after"], ["sure", "after"])


@pytest.mark.contract("LOG-09")
def test_those_who_wait_for_the_sync_that_fails_are_not_told_that_all_is_well(open_queue, queue_dir):
    """Two objects share one sync; it fails for the one that does it, and the other writes its bytes again."""
    syncing, go_on = threading.Event(), threading.Event()

    class Slow(BrokenDisk):
        def datasync(self, fd):
            if self.failing and self.paths.get(fd, "").endswith(".log"):
                syncing.set()
                assert go_on.wait(60)
            super().datasync(fd)

    waiting = threading.Event()

    class Waiting(RecordingFiles):
        def lock_byte(self, fd, offset, *, exclusive):
            had = super().lock_byte(fd, offset, exclusive=exclusive)
            if not had and self.paths[fd].endswith(".log"):
                waiting.set()
            return had

    slow, patient = Slow(), Waiting()
    first, second = open_queue(files=slow), open_queue(files=patient)
    slow.failing = 1
    outcome: list = []

    def enqueue_first():
        try:
            first.enqueue("first")
        except OutcomeUnknownError as error:
            outcome.append(error)

    one = threading.Thread(target=enqueue_first)
    one.start()
    assert syncing.wait(60)
    patient.record.clear()
    two = threading.Thread(target=lambda: outcome.append(second.enqueue("second")))
    two.start()
    assert waiting.wait(60)
    go_on.set()
    one.join(60)
    two.join(60)
    assert len(outcome) == 2
    assert [type(item).__name__ for item in outcome if isinstance(item, Exception)] == ["OutcomeUnknownError"]
    assert patient.record.on(".log", "pwrite")  # the doubtful bytes were written again
    assert sorted(job.payload for job in second.list_jobs()) == ["first", "second"]


@pytest.mark.contract("LOG-09")
def test_a_sync_whose_process_died_in_it_is_not_trusted(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("sure")
    careless = open_queue(fsync=False)
    careless.enqueue("written")
    with open(queue_dir / "default.lock", "r+b") as words:  # "syncing", as the dead one left it
        words.seek(40)
        words.write(struct.pack("<Q", 1))
    files = RecordingFiles()
    late = open_queue(files=files)
    files.record.clear()
    late.enqueue("next")
    names = [call.name for call in files.record.on(".log", "pwrite", "datasync")]
    assert names[0] == "pwrite" or "pwrite" in names
    assert names[-1] == "datasync"
    assert [job.payload for job in late.list_jobs()] == ["sure", "written", "next"]


@pytest.mark.contract("LOG-09")
def test_a_waiter_whose_bytes_were_cut_off_meanwhile_is_told_so(open_queue, queue_dir):
    """Its place in the file was filled by others: "synced up to there" says nothing about its job."""
    queue = open_queue()
    queue.enqueue("sure")
    size = log_end(live_log(queue_dir))

    class Cut(RecordingFiles):
        armed = False

        def lock_byte(self, fd, offset, *, exclusive):
            if self.armed and self.paths[fd].endswith(".log"):
                self.armed = False
                other = b"y" * (log_end(live_log(queue_dir)) - size)
                with open(live_log(queue_dir), "r+b") as log:
                    log.seek(size)
                    log.write(other)
                with open(queue_dir / "default.lock", "r+b") as words:
                    words.seek(32)
                    words.write(struct.pack("<Q", (1 << 40) + size + len(other)))
                return False
            return super().lock_byte(fd, offset, exclusive=exclusive)

    files = Cut()
    other = open_queue(files=files)
    size = log_end(live_log(queue_dir))
    files.armed = True
    with pytest.raises(OutcomeUnknownError) as unknown:
        other.enqueue("lost")
    assert unknown.value.stored is None


@pytest.mark.contract("LOG-09")
def test_a_verb_that_wrote_nothing_is_certain_of_a_short_last_record_though_others_append(open_queue):
    class Meanwhile(RecordingFiles):
        armed = False

        def lock_byte(self, fd, offset, *, exclusive):
            if self.armed and self.paths[fd].endswith(".log"):
                self.armed = False
                other.enqueue("meanwhile")
            return super().lock_byte(fd, offset, exclusive=exclusive)

    files, other = Meanwhile(), open_queue()
    queue = open_queue(files=files)
    queue.enqueue("x")
    job = queue.lease_one()
    queue.purge()  # a record of a few bytes
    files.armed = True
    with pytest.raises(JobNotFoundError):
        queue.ack(job)
    assert not files.armed
    assert [job.payload for job in queue.list_jobs()] == ["meanwhile"]


@pytest.mark.contract("LOG-09", "COMP-02")
def test_a_compaction_is_certain_of_short_last_records_though_others_append(open_queue):
    """When it waits for what others have written, for its snapshot and in its first round, a short record is the last
    of that, and the next one follows."""

    class Meanwhile(RecordingFiles):
        waits = 0
        armed = False

        def lock_byte(self, fd, offset, *, exclusive):
            if self.armed and offset == SYNC_BYTE and self.waits < 2:
                self.waits += 1
                other.enqueue("meanwhile")
                other.purge()
            return super().lock_byte(fd, offset, exclusive=exclusive)

    files, other = Meanwhile(), open_queue()
    queue = open_queue(files=files)
    queue.enqueue("x")
    queue.purge()
    files.armed = True
    queue.compact()
    files.armed = False
    assert files.waits == 2
    other.enqueue("last")
    assert [job.payload for job in queue.list_jobs()] == ["last"]


@pytest.mark.contract("LOG-09")
def test_when_nobody_syncs_in_time_the_error_says_written_and_not_known_durable(open_queue, queue_dir):
    queue = open_queue(lock_timeout=0.05)
    blocker = Files()
    fd = blocker.open(live_log(queue_dir), os.O_RDWR)
    try:
        assert blocker.lock_byte(fd, SYNC_BYTE, exclusive=True)
        with pytest.raises(LockTimeoutError, match="not known to be durable") as late:
            queue.enqueue("x")
        assert late.value.stored is None
        assert late.value.seconds == 0.05
    finally:
        blocker.close(fd)
    assert [job.payload for job in queue.list_jobs()] == ["x"]


# --- LOG-10


@pytest.mark.contract("LOG-10")
@pytest.mark.parametrize(
    "pointer",
    [
        None,
        b"",
        b"\n",
        b"garbage",
        b"1.0",
        b"-1",
        b" 1",
        b"1 \n",
        b"0x1",
        b"999999999",
        b'{"generation": 1}',
        b"7\n",
        b"\0",
    ],
)
@pytest.mark.parametrize("lock", ["kept", "lost"])
def test_a_pointer_that_is_missing_empty_or_garbled_is_an_error_with_the_next_step(
    open_queue, queue_dir, pointer, lock
):
    """C69."""
    with open_queue() as queue:
        queue.enqueue("precious")
    path = queue_dir / "default.current"
    sound = path.read_bytes()
    log = live_log(queue_dir)
    data = log.read_bytes()
    path.unlink()
    if pointer is not None:
        path.write_bytes(pointer)
    if lock == "lost":
        (queue_dir / "default.lock").unlink()
    for _ in range(2):
        with pytest.raises(CorruptLogError) as refused:
            open_queue()
        assert refused.value.path == str(path)
        assert "no queue was created" in str(refused.value)
        assert "backup" in str(refused.value)
    assert log.read_bytes() == data
    assert [entry.name for entry in queue_dir.glob("*.log")] == [log.name]
    assert path.exists() == (pointer is not None)
    path.write_bytes(sound)
    assert [job.payload for job in open_queue().list_jobs()] == ["precious"]


@pytest.mark.contract("LOG-10")
def test_a_pointer_that_vanishes_under_a_running_queue_stops_it_until_it_is_back(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("precious")
    path = queue_dir / "default.current"
    sound = path.read_bytes()
    for garbage in (None, b"junk"):
        path.unlink()
        if garbage:
            path.write_bytes(garbage)
        for verb in (lambda: queue.enqueue(1), queue.lease, queue.stats, queue.compact):
            with pytest.raises(CorruptLogError):
                verb()
        assert path.exists() == (garbage is not None)
        path.write_bytes(sound)
        assert [job.payload for job in queue.list_jobs()] == ["precious"]


@pytest.mark.contract("LOG-10")
def test_a_log_that_vanishes_is_not_replaced_by_an_empty_one(open_queue, queue_dir):
    with open_queue() as queue:
        queue.enqueue("precious")
    log = live_log(queue_dir)
    log.rename(queue_dir / "aside")
    for _ in range(2):
        with pytest.raises(CorruptLogError, match="does not exist"):
            open_queue()
    assert not log.exists()
    (queue_dir / "aside").rename(log)
    assert len(open_queue()) == 1


@pytest.mark.contract("LOG-10")
def test_an_unfinished_creation_without_jobs_is_finished(open_queue, queue_dir):
    open_queue().close()
    (queue_dir / "default.current").unlink()
    queue = open_queue()
    assert queue.stats().total == 0
    queue.enqueue(1)
    queue.close()
    (queue_dir / "default.current").unlink()
    with pytest.raises(CorruptLogError, match="is missing"):
        open_queue()


# --- C72: half-copied directories


def two_generations(open_queue, queue_dir, tmp_path):
    """A directory, closed, and copies of it before and after a compaction."""
    with open_queue() as queue:
        queue.enqueue_many(range(50))
        queue.ack_many(queue.lease(20))
    shutil.copytree(queue_dir, tmp_path / "old")
    with open_queue() as queue:
        queue.compact()
        queue.enqueue_many(range(50, 60))
    shutil.copytree(queue_dir, tmp_path / "new")
    return tmp_path / "old", tmp_path / "new"


@pytest.mark.contract("LOG-10")
def test_the_newest_log_under_an_older_pointer_and_the_reverse_are_refused(open_queue, queue_dir, tmp_path):
    """C72."""
    old, new = two_generations(open_queue, queue_dir, tmp_path)
    for logs, pointer in ((new, old), (old, new)):
        mixed = tmp_path / f"{logs.name} under {pointer.name}"
        mixed.mkdir()
        shutil.copy(live_log(logs), mixed)
        shutil.copy(pointer / "default.current", mixed)
        before = live_log(logs).read_bytes()
        with pytest.raises(CorruptLogError, match="does not exist"):
            open_queue(mixed)
        assert (mixed / live_log(logs).name).read_bytes() == before


@pytest.mark.contract("LOG-10", "LOG-05")
def test_both_logs_under_the_older_pointer_open_as_the_older_state_and_the_newer_log_stays(
    open_queue, queue_dir, tmp_path
):
    """C72: nothing is invented or doubled, and the newer log is not written over."""
    old, new = two_generations(open_queue, queue_dir, tmp_path)
    shutil.copy(live_log(new), old)
    newer = (old / "default.000002.log").read_bytes()
    queue = open_queue(old)
    assert [job.payload for job in queue.list_jobs("ready")] == list(range(20, 50))
    queue.compact()
    assert (old / "default.000002.log").read_bytes() == newer
    assert live_log(old).name == "default.000003.log"
    assert [job.payload for job in queue.list_jobs("ready")] == list(range(20, 50))


@pytest.mark.contract("LOG-05", "LOG-07")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_log_copied_in_part_opens_with_the_common_prefix_or_is_refused(open_queue, queue_dir, tmp_path, share):
    """C72: with the words of the whole log it is known to be too short; alone it ends in a torn tail."""
    with open_queue() as queue:
        for number in range(40):
            queue.enqueue(number)
    copy = tmp_path / "copy"
    shutil.copytree(queue_dir, copy)
    log = live_log(copy)
    data = log.read_bytes()
    log.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CorruptLogError):
        open_queue(copy)
    (copy / "default.lock").unlink()
    queue = open_queue(copy)
    payloads = [job.payload for job in queue.list_jobs()]
    assert payloads == list(range(len(payloads)))
    assert len(payloads) < 40
    assert queue.recovery.repaired or int(len(data) * share) in [r.end for r in _all_records(data)]


def _all_records(data):
    offset = 16
    while offset < len(data):
        (length,) = struct.unpack_from("<I", data, offset)
        offset += 9 + length
        yield type("End", (), {"end": offset})


@pytest.mark.contract("LOG-07")
def test_a_length_field_of_two_gigabytes_reads_no_two_gigabytes(open_queue, queue_dir, torn):
    """C63."""
    first = next(record for record in read_log(torn) if record.type == ENQUEUE)
    data = bytearray(torn.read_bytes())
    data[first.offset : first.offset + 4] = struct.pack("<I", 2**31)
    torn.write_bytes(data)
    (queue_dir / "default.lock").unlink()
    files = RecordingFiles()
    with pytest.raises(CorruptLogError, match=str(MAX_BODY_BYTES)):
        open_queue(files=files)
    assert files.record.bytes_read < 100_000


# --- LOG-07: whoever meets damage stops the writers of all processes


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("meet", ["list_jobs", "compact", "lease"])
def test_damage_that_one_caller_meets_stops_all_writers_until_the_log_is_sound_again(open_queue, queue_dir, meet):
    first, second = open_queue(), open_queue()
    for number in range(5):
        first.enqueue({"number": number})
    first.stats()
    log = live_log(queue_dir)
    sound = log.read_bytes()
    victim = next(record for record in read_log(log) if record.type == ENQUEUE)
    flip(log, victim.offset + 20)
    with pytest.raises(CorruptLogError) as met:
        getattr(first, meet)()
    assert met.value.offset == victim.offset
    for refused in (lambda: second.enqueue("x"), lambda: first.enqueue("x"), open_queue, second.stats):
        with pytest.raises(CorruptLogError) as told:
            refused()
        assert told.value.offset == victim.offset
    first.close()
    second.close()
    with pytest.raises(CorruptLogError):
        open_queue()
    log.write_bytes(sound)
    again = open_queue()
    assert len(again.list_jobs()) == 5
    again.enqueue("goes on")
