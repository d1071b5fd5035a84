"""A log's room: zeros behind the last record, which are no data, cost nobody anything, and are taken away."""

import errno
import os

import pytest

from nobroker_django import StorageError
from nobroker_django.engine import log as module
from nobroker_django.engine.files import Files
from nobroker_django.engine.framing import data_end
from nobroker_django.engine.log import LEAST_ROOM_BYTES, MOST_ROOM_BYTES, Log
from tests.contract.helpers import ENQUEUE, FailingFiles, RecordingFiles, frame, live_log, read_log, run_python
from tests.support.bytes import append_to, log_bytes, log_end

KIB = 1024


def room(path):
    """How many bytes of room the log has."""
    return path.stat().st_size - log_end(path)


@pytest.fixture
def opened(queue_dir):
    """Opens the live log beside the queue; a descriptor of its own each time."""
    logs = []

    def open_(files=None):
        logs.append(Log(files or Files(), live_log(queue_dir), int((queue_dir / "default.current").read_text())))
        return logs[-1]

    yield open_
    for log in logs:
        log.release()


# --- making it


@pytest.mark.contract("LOG-01")
def test_a_new_queue_takes_64_kib_and_no_queue_more_than_a_mebibyte(open_queue, queue_dir):
    """Also on the disk: many small queues take little."""
    assert (LEAST_ROOM_BYTES, MOST_ROOM_BYTES) == (64 * KIB, 1024 * KIB)
    small = [open_queue(name=f"q{number}") for number in range(10)]
    for queue in small:
        queue.enqueue("x")
        assert 0 < room(queue.path) <= 64 * KIB
    assert sum(path.stat().st_blocks * 512 for path in queue_dir.glob("*.log")) <= 10 * (64 + 8) * KIB
    queue, most = open_queue(), 0
    for count in (1, 200, 400, 800, 1600, 1600, 1600, 1):
        queue.enqueue_many(["x" * 1000] * count)
        most = max(most, room(queue.path))
        assert room(queue.path) <= max(64 * KIB, min(log_end(queue.path), MOST_ROOM_BYTES))
    assert MOST_ROOM_BYTES // 2 < most <= MOST_ROOM_BYTES


def test_while_there_is_room_an_append_is_one_call(open_queue):
    files = RecordingFiles()
    queue = open_queue(files=files, fsync=False)
    queue.enqueue("x")
    files.record.clear()
    for _ in range(50):
        queue.enqueue("x" * 200)
    calls = files.record.on(".log", "size", "write", "pwrite", "allocate", "truncate")
    assert [call.name for call in calls] == ["pwrite"] * 50


def test_the_verbs_do_not_look_at_the_file_itself(open_queue):
    """Its size comes with its times, and who has looked at those makes the next sync bring them: see ``libc``."""
    files = RecordingFiles()
    queue = open_queue(files=files, retention=10)
    queue.enqueue_many(range(6))
    queue.stats()
    files.record.clear()
    for _ in range(2):
        queue.enqueue("z", job_id="z")
        queue.ack(queue.lease_one(), result=1)
        queue.nack(queue.lease_one())
        queue.get("z")
        queue.list_jobs()
    assert files.record.on(".log", "size", "identity") == []
    assert files.record.on(".log", "pread", "pwrite", "path_identity", "datasync")


def test_room_is_made_again_when_it_is_used_up_and_not_before(open_queue, queue_dir):
    files = RecordingFiles()
    queue = open_queue(files=files, fsync=False)
    used_up = live_log(queue_dir).stat().st_size
    files.record.clear()
    while len(files.record.on(".log", "allocate")) < 4:
        queue.enqueue("x" * 1000)
    for call in files.record.on(".log", "allocate"):
        assert call.offset <= used_up < call.offset + 2 * KIB  # the next record did not fit
        assert 64 * KIB < call.count < 2 * KIB + max(64 * KIB, call.offset)
        used_up = call.offset + call.count
    assert live_log(queue_dir).stat().st_size == used_up


def test_before_small_writes_the_room_is_written_and_before_large_ones_only_allocated(open_queue, queue_dir):
    """A block that was only allocated costs its first sync a commit of the journal; a large write fills its blocks."""
    files = RecordingFiles()
    queue = open_queue(files=files, fsync=False)
    path = live_log(queue_dir)
    for many, value in ((False, "x" * 1000), (True, "x" * 4100), (False, "x" * 1000)):
        size = path.stat().st_size
        files.record.clear()
        while path.stat().st_size == size:
            queue.enqueue(value)
        (made,) = files.record.on(".log", "allocate")
        zeros = [call for call in files.record.on(".log", "pwrite") if not call.data.strip(b"\0")]
        if many:
            assert zeros == []
        else:
            (zero,) = zeros
            assert zero.offset + zero.count == made.offset + made.count == path.stat().st_size
            assert zero.offset == log_end(path)  # written before the record, which ends there


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_zeros_that_cannot_be_written_lose_nothing(open_queue, queue_dir, error):
    files = FailingFiles(
        lambda call: call.name == "pwrite" and call.path.endswith(".log") and not call.data.strip(b"\0"),
        OSError(error, "refused"),
    )
    files.armed = False
    queue = open_queue(files=files)
    files.armed = True
    number = 0
    while files.times:
        queue.enqueue([number, "x" * 1000])
        number += 1
    assert room(live_log(queue_dir)) == 0  # what was got of it is for everybody
    for more in range(number, number + 80):
        queue.enqueue([more, "x" * 1000])
    assert [job.payload[0] for job in queue.list_jobs(limit=1000)] == list(range(number + 80))
    assert not queue.recovery.repaired


def test_room_that_others_made_is_found(open_queue, queue_dir):
    first = open_queue()
    first.enqueue("x")
    size = live_log(queue_dir).stat().st_size
    files = RecordingFiles()
    second = open_queue(files=files)
    files.record.clear()
    second.enqueue("y")
    second.enqueue("z")
    assert files.record.on(".log", "allocate") == []
    assert len(files.record.on(".log", "size")) == 1
    assert live_log(queue_dir).stat().st_size == size


def test_a_write_that_is_taken_back_takes_the_room_with_it_and_others_go_on_without(open_queue, queue_dir):
    files = FailingFiles(
        lambda call: call.name == "pwrite" and call.path.endswith(".log"), OSError(errno.ENOSPC, "full")
    )
    files.armed = False
    queue, other = open_queue(files=files), open_queue()
    queue.enqueue("before")
    other.enqueue("other")  # which believes from now on that there is room
    end = log_end(live_log(queue_dir))
    files.armed = True
    with pytest.raises(StorageError) as full:
        queue.enqueue("lost")
    assert full.value.stored is False
    assert live_log(queue_dir).stat().st_size == end
    files.record.clear()
    queue.enqueue("after")
    assert len(files.record.on(".log", "allocate")) == 1  # it knows that there is none
    for number in range(80):
        other.enqueue([number, "x" * 1000])
    assert len(read_log(live_log(queue_dir))) == 2 + 2 + 80 + 1
    assert room(live_log(queue_dir)) > 0
    assert not other.recovery.repaired


# --- where the system gives none


@pytest.mark.contract("ENQ-08")
@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO]
)
@pytest.mark.parametrize("partly", [False, True])
def test_a_refused_allocation_loses_nothing_and_appending_goes_on(open_queue, queue_dir, number, partly):
    class Refusing(RecordingFiles):
        def allocate(self, fd, offset, count):
            self._note("allocate", self.paths[fd], offset=offset).count = count
            if partly:
                os.posix_fallocate(fd, offset, count // 3)
            raise OSError(number, os.strerror(number))

    files = Refusing()
    queue = open_queue(files=files)
    stored = []
    for text in ("x" * 300, "y" * 40_000) * 10:
        stored.append(queue.enqueue(text).id)
        found, end = live_log(queue_dir).stat(), log_end(live_log(queue_dir))
        assert found.st_size <= end + -end % found.st_blksize  # beyond its last block it has given all of it back
    assert 2 <= len(files.record.on(".log", "allocate")) <= 5  # not at every append
    assert not queue.recovery.repaired
    assert [job.id for job in open_queue().list_jobs()] == stored
    assert [job.id for job in queue.lease(20)] == stored
    queue.close()
    assert [record.body["id"] for record in read_log(live_log(queue_dir)) if record.type == ENQUEUE] == stored


@pytest.mark.contract("ENQ-08")
def test_what_a_full_disk_gave_in_part_and_does_not_take_back_is_room(open_queue, queue_dir):
    class Refusing(RecordingFiles):
        refusing = False

        def allocate(self, fd, offset, count):
            os.posix_fallocate(fd, offset, 3000)
            self.refusing = True
            raise OSError(errno.ENOSPC, "full")

        def truncate(self, fd, size):
            if self.refusing:
                raise OSError(errno.EIO, "gone")
            super().truncate(fd, size)

    files = Refusing()
    queue = open_queue(files=files)
    for number in range(50):
        queue.enqueue([number, "x" * 100])
    files.refusing = False
    assert [job.payload[0] for job in open_queue().list_jobs()] == list(range(50))
    assert not queue.recovery.repaired


def test_elsewhere_than_on_linux_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", "darwin")
    files = Files()
    fd = files.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="not supported") as refused:
            files.allocate(fd, 0, 100)
        assert refused.value.errno == errno.ENOTSUP
        assert files.size(fd) == 0
    finally:
        files.close(fd)


# --- taking it away


@pytest.mark.contract("LOG-01")
def test_the_last_to_close_takes_the_room_away_and_nobody_before(open_queue, queue_dir):
    first, second = open_queue(), open_queue()
    first.enqueue("x")
    log = live_log(queue_dir)
    size, data = log.stat().st_size, log_bytes(log)
    assert size > len(data)
    first.close()
    assert log.stat().st_size == size
    second.close()
    assert log.read_bytes() == data
    open_queue().close()  # with an opening record, and nothing else
    assert room(log) == 0
    assert log_bytes(log).startswith(data)


@pytest.mark.contract("LOG-01")
def test_the_room_of_a_generation_that_a_compaction_made_is_taken_away_as_well(open_queue, queue_dir):
    with open_queue() as queue:
        queue.enqueue_many(range(10))
        queue.compact()
        assert room(live_log(queue_dir)) == 0
        queue.enqueue("x")
        assert room(live_log(queue_dir)) > 0
    assert room(live_log(queue_dir)) == 0
    assert live_log(queue_dir).name == "default.000002.log"


KILLED = """
import os, signal, sys
from nobroker_django import Queue
queue = Queue(sys.argv[1])
queue.enqueue_many(range(3))
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2] == "killed" else os._exit(0)
"""


@pytest.fixture(params=["kept", "lost"])
def killed(request, queue_dir):
    """The log of a queue whose only process was killed: it has room. With its control words, and without."""
    with pytest.raises(AssertionError, match="exit code -9"):
        run_python(KILLED, queue_dir, "killed")
    if request.param == "lost":
        (queue_dir / "default.lock").unlink()
    log = live_log(queue_dir)
    assert room(log) > 60 * KIB
    return log


@pytest.mark.contract("LOG-05")
def test_the_room_of_a_killed_process_is_nothing_to_report(open_queue, queue_dir, killed, caplog):
    data = log_bytes(killed)
    queue = open_queue()
    report = queue.recovery
    assert (report.repaired, report.bytes_discarded, report.damage, report.kept_path) == (False, 0, "none", None)
    assert [job.payload for job in queue.list_jobs()] == [0, 1, 2]
    queue.enqueue(3)
    assert log_bytes(killed).startswith(data)
    queue.close()
    assert room(killed) == 0
    assert caplog.records == []
    assert list(queue_dir.glob("*torn*")) == []
    assert [record.body["payload"] for record in read_log(killed) if record.type == ENQUEUE] == [0, 1, 2, 3]


@pytest.mark.contract("LOG-10")
def test_an_unfinished_creation_with_room_is_finished(open_queue, queue_dir):
    queue = open_queue()
    log, data = queue.path, log_bytes(queue.path)
    assert room(log) > 0
    queue._session.abandon()  # as a process leaves it that was killed
    (queue_dir / "default.current").unlink()
    (queue_dir / "default.lock").unlink()
    again = open_queue()
    assert again.path == log
    assert not again.recovery.repaired
    again.enqueue("x")
    assert log_bytes(log).startswith(data)
    assert [job.payload for job in again.list_jobs()] == ["x"]


# --- where the data end


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 12288, 300_000])
@pytest.mark.parametrize("zeros", [0, 1, 8, 9, 4095, 4096, 4097, 100_000, 3_000_000])
def test_the_data_end_behind_the_last_byte_that_is_not_zero(tmp_path, at, zeros):
    files, path = Files(), tmp_path / "file"
    path.write_bytes(b"\x01" + b"x" * (at - 1) if at else b"")
    os.truncate(path, at + zeros)
    fd = files.open(path, os.O_RDONLY)
    try:
        assert data_end(files, fd) == at
    finally:
        files.close(fd)


@pytest.mark.contract("LOG-08")
@pytest.mark.parametrize("grows_at", range(3))
def test_beside_a_writer_the_data_end_is_not_before_the_end_that_was_there_at_the_start(tmp_path, grows_at):
    """A reader holds no lock: while it looks backwards through the room, that is filled past what it has looked at."""
    path = tmp_path / "file"
    record = frame(ENQUEUE, b'{"x":"' + b"y" * 20_000 + b'"}')
    path.write_bytes(record)
    os.truncate(path, 60_000)

    class Overtaken(Files):
        calls = 0

        def pread(self, fd, count, offset):
            data = super().pread(fd, count, offset)
            if self.calls == grows_at:
                append_to(path, record)
            self.calls += 1
            return data

    files = Overtaken()
    fd = files.open(path, os.O_RDONLY)
    try:
        assert len(record) <= data_end(files, fd) <= log_end(path)
        assert files.calls > grows_at
    finally:
        files.close(fd)


@pytest.mark.contract("LOG-06")
def test_a_log_ends_where_a_record_ends_and_nothing_but_room_follows(open_queue, queue_dir, opened):
    queue = open_queue()
    queue.enqueue({"a": {"b": {}}, "c": "}"}, meta={"m": {}})
    log, end = opened(), log_end(live_log(queue_dir))
    data = log_bytes(live_log(queue_dir))
    assert data.count(b"}") == 9
    assert [at for at in range(-20, end + 100) if log.ends_at(at)] == [end]
    assert not any(log.ends_at(at) for at in (live_log(queue_dir).stat().st_size, 1 << 39))
    log.truncate(end)
    assert [at for at in range(-20, end + 100) if log.ends_at(at)] == [end]


@pytest.mark.contract("LOG-06")
@pytest.mark.parametrize("with_room", [True, False])
def test_every_first_byte_of_a_record_ends_the_certainty(open_queue, queue_dir, opened, with_room):
    """Whatever a dead writer left of a frame, if only the byte that is not zero."""
    with open_queue() as queue:
        queue.enqueue("x")
        path = queue.path
        sound = log_bytes(path)
    log = opened()
    for body in (b"{}", b"{" + b" " * 254 + b"}", b"{" + b" " * 65_534 + b"}"):  # lengths that begin with zeros, too
        begun = frame(ENQUEUE, body)
        for count in range(1, 30):
            path.write_bytes(sound + begun[:count] + bytes(50_000 if with_room else 0))
            assert log.ends_at(len(sound)) == (not begun[:count].strip(b"\0"))
            assert log.data_end() == len(sound + begun[:count].rstrip(b"\0"))


def test_a_record_without_room_in_the_file_is_written_behind_the_end(open_queue, queue_dir, monkeypatch):
    """Also with the smallest room: every append makes its own."""
    monkeypatch.setattr(module, "LEAST_ROOM_BYTES", 1)
    monkeypatch.setattr(module, "MOST_ROOM_BYTES", 1)
    queue = open_queue()
    for number in range(20):
        queue.enqueue(number)
        assert room(live_log(queue_dir)) == 1
    assert [job.payload for job in queue.list_jobs()] == list(range(20))
