"""Looking at a log without taking part."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from nobroker_django import CorruptLogError, InvalidOptionError, Queue
from nobroker_django.engine import inspection
from nobroker_django.engine.errors import PointerError
from nobroker_django.engine.files import Files
from nobroker_django.engine.framing import encode_frame
from nobroker_django.engine.inspection import ReadingFiles, open_view, queue_exists, queue_names
from tests.support.bytes import append_to, log_end, snapshot


def types(queue_dir, **options):
    with open_view(queue_dir, "default", **options) as view:
        return [record.type for record in view.records()]


def test_records_say_where_they_are_whose_and_when(queue_dir):
    with Queue(queue_dir, clock=lambda: 1000.0) as queue:
        queue.enqueue({"a": 1}, job_id="one")
        queue.ack(queue.lease_one())
        with open_view(queue_dir, "default") as view:
            records = list(view.records())
    assert [record.type for record in records] == ["SNAPSHOT", "OPEN", "ENQUEUE", "LEASE", "ACK"]
    assert [record.job_id for record in records] == [None, None, "one", "one", "one"]
    assert {record.at for record in records} == {1000.0}
    assert records[0].offset == 16
    assert all(left.offset + left.size_bytes == right.offset for left, right in pairwise(records))
    assert records[2].fields["payload"] == {"a": 1}


@pytest.mark.contract("LOG-08")
def test_looking_changes_nothing_and_needs_no_lock(queue_dir):
    """C78."""
    with Queue(queue_dir) as queue:
        queue.enqueue(1)
        with queue._session.locked():
            before = snapshot(queue_dir)
            assert types(queue_dir) == ["SNAPSHOT", "OPEN", "ENQUEUE"]
            inspection.check_end(queue_dir, "default")
            assert snapshot(queue_dir) == before


def test_what_stands_behind_the_published_end_is_not_shown(queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue(1)
        append_to(queue.path, encode_frame(1, b'{"id":"x","n":1,"u":0}'))
        with open_view(queue_dir, "default") as view:
            assert [record.type for record in view.records()] == ["SNAPSHOT", "OPEN", "ENQUEUE"]
            assert view.size > view.end


def test_without_control_words_the_last_complete_write_ends_it(queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue(1)
        log = queue.path
    (queue_dir / "default.lock").unlink()
    append_to(log, b"\x10\x00\x01")
    with open_view(queue_dir, "default") as view:
        assert [record.type for record in view.records()] == ["SNAPSHOT", "OPEN", "ENQUEUE"]
        assert view.size == view.end + 3


def test_damage_is_raised_after_what_is_before_it(queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue(1, job_id="one")
        queue.enqueue(2, job_id="two")
        with open_view(queue_dir, "default") as view:
            two = list(view.records())[-1]
        log = queue.path
    data = bytearray(log.read_bytes())
    data[two.offset + 20] ^= 1
    log.write_bytes(data)
    seen: list[str | None] = []
    with open_view(queue_dir, "default") as view, pytest.raises(CorruptLogError) as caught:
        seen.extend(record.job_id for record in view.records())
    assert seen == [None, None, "one"]
    assert caught.value.offset == two.offset
    with pytest.raises(CorruptLogError):
        inspection.check_end(queue_dir, "default")


def test_a_log_shorter_than_what_was_durable_is_damaged(queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue(1)
        queue.enqueue(2)
        log = queue.path
    os.truncate(log, log_end(log) - 5)
    with pytest.raises(CorruptLogError, match="the file ends after"):
        types(queue_dir)


def test_an_unknown_type_is_shown_by_its_number(queue_dir):
    with Queue(queue_dir) as queue:
        log = queue.path
    (queue_dir / "default.lock").unlink()
    append_to(log, encode_frame(99, b'{"id":"x","n":1,"u":0}'))
    append_to(log, encode_frame(200, b'{"n":1,"u":0,"at":"never","id":5}'))
    with open_view(queue_dir, "default") as view:
        last, unreadable = list(view.records())[-2:]
    assert (last.type, last.job_id, last.at) == ("99", "x", None)
    assert (unreadable.type, unreadable.job_id, unreadable.at) == ("200", None, None)


def test_another_generation_can_be_asked_for(queue_dir, tmp_path):
    with Queue(queue_dir) as queue:
        queue.enqueue(1)
        old = queue.path.read_bytes()
        queue.compact()
        (queue_dir / "default.000001.log").write_bytes(old)
        assert types(queue_dir, generation=1) == ["SNAPSHOT", "OPEN", "ENQUEUE"]
        assert types(queue_dir) == ["SNAPSHOT", "ENQUEUE"]
    with pytest.raises(InvalidOptionError, match="there: 1, 2"):
        types(queue_dir, generation=7)


def test_a_queue_that_is_not_there_is_said_and_not_made(queue_dir):
    assert queue_names(queue_dir) == []
    assert not queue_exists(queue_dir, "default")
    with pytest.raises(InvalidOptionError, match="there is no queue 'default'"):
        types(queue_dir)
    assert not queue_dir.exists()


@pytest.mark.contract("LOG-10")
def test_a_missing_pointer_beside_logs_names_the_next_step(queue_dir):
    with Queue(queue_dir):
        pass
    (queue_dir / "default.current").unlink()
    assert queue_exists(queue_dir, "default")
    with pytest.raises(PointerError, match="write its number"):
        types(queue_dir)
    assert not (queue_dir / "default.current").exists()


def test_a_pointer_that_moves_on_is_followed(queue_dir):
    class Meanwhile(ReadingFiles):
        """A compaction comes between the pointer and the log that it named."""

        done = False

        def path_identity(self, path):
            if not self.done and str(path).endswith(".log"):
                self.done = True
                queue.compact()
            return super().path_identity(path)

    with Queue(queue_dir) as queue:
        queue.enqueue(1)
        log = inspection.live_log(Meanwhile(), queue._layout)
        assert log.generation == 2
        log.release()


def test_names_are_those_of_pointers_and_logs(queue_dir):
    for name in ("b", "a-1", "B2"):
        Queue(queue_dir, name).close()
    (queue_dir / "x.y.current").touch()
    (queue_dir / "emails.current.123.tmp").touch()
    (queue_dir / "b.lock.000001.log").touch()
    assert queue_names(queue_dir) == ["B2", "a-1", "b"]
    (queue_dir / "b.current").unlink()  # whoever looks for queues has to hear of this one
    assert queue_names(queue_dir) == ["B2", "a-1", "b"]


@pytest.mark.parametrize(
    "call",
    [
        lambda files, path: files.write(0, b"x"),
        lambda files, path: files.pwrite(0, b"x", 0),
        lambda files, path: files.allocate(0, 0, 1),
        lambda files, path: files.truncate(0, 0),
        lambda files, path: files.unlink(path),
        lambda files, path: files.rename(path, path),
        lambda files, path: files.make_directory(path, 0o700),
        lambda files, path: files.flock(0, exclusive=True),
        lambda files, path: files.lock_byte(0, 0, exclusive=True),
        lambda files, path: files.sync_directory(path),
    ],
)
def test_reading_files_refuse_to_change_anything(call, tmp_path):
    with pytest.raises(PermissionError):
        call(ReadingFiles(), tmp_path / "x")


def test_reading_files_open_nothing_for_writing(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(FileNotFoundError):
        ReadingFiles().open(path, os.O_RDWR | os.O_CREAT)
    path.write_bytes(b"abc")
    fd = ReadingFiles().open(path, os.O_RDWR | os.O_APPEND | os.O_TRUNC)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(fd, b"x")
    finally:
        os.close(fd)
    assert path.read_bytes() == b"abc"


def test_every_writing_call_is_refused_also_those_to_come():
    """A method that is added to ``Files`` has to be put on one side."""
    reading = {
        *("open", "close", "pread", "size", "identity", "path_identity", "path_size", "mode", "listdir"),
        *("block_bytes", "free_space", "funlock", "unlock_byte", "is_fifo", "byte_is_free"),
    }
    ours = {name for name in vars(Files) if not name.startswith("_")}
    refused = {name for name, value in vars(ReadingFiles).items() if value is ReadingFiles._refuse} - {"_refuse"}
    assert ours == reading | refused


def test_a_log_of_many_records_takes_no_memory_for_all(queue_dir):
    """A record at a time: the peak stays far below the log's size."""
    with Queue(queue_dir, fsync=False) as queue:
        for _ in range(10):
            queue.enqueue_many([{"text": "x" * 1000}] * 2000)
        size = log_end(queue.path)
    code = f"""
import tracemalloc
from nobroker_django.engine.inspection import open_view
with open_view({str(queue_dir)!r}, "default") as view:
    tracemalloc.start()
    print(sum(1 for record in view.records()), tracemalloc.get_traced_memory()[1])
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    count, peak = map(int, done.stdout.split())
    assert count >= 20_000
    assert peak < size / 4
