"""Writers that die in the room behind the last record, words that point into it, lookers that pass by.

The writer that comes next finds what is there before it appends: no first opener is needed for it, and no word is
believed that the bytes do not bear out.
"""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import CorruptLogError, Queue
from nobroker_django.engine.examination import examine_queue
from nobroker_django.engine.inspection import check_end, open_view
from tests.support import bytes as raw
from tests.support.crashing import drawn
from tests.support.faulty import Call, Hooked
from tests.support.procs import Child, Diary, run_all
from tests.support.scripts import open_queue

ROOT = Path(__file__).parents[2]
END, SYNCED = 16, 32  # where in the lock file the words are
GENERATION = 1 << 40


class DiesInTheMiddle(Hooked):
    """Ends the process in its next append, of which only the first bytes are written."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def before(self, call: Call) -> Call:
        if self.hook is not None and call.kind == "pwrite" and call.path.endswith(".log"):
            data, offset = call.arguments
            with open(call.path, "r+b") as file:
                file.seek(offset)
                file.write(data[: self.count if self.count >= 0 else len(data) + self.count])
            os._exit(0)
        return call


def die_in_an_append(directory: Path, text: str, count: int) -> None:
    """Open the queue as well, and be killed while a record is written."""
    files = DiesInTheMiddle(count)
    queue = open_queue(directory, files)
    files.hook = lambda call: None
    queue.enqueue({"k": "died", "text": text})


def a_writer_dies_beside_another(directory: Path, errors: Diary, text: str, count: int) -> bytes:
    """A process that has the queue open goes on after another one died; what the dead one left was kept."""
    with open_queue(directory) as queue:
        queue.enqueue({"k": "before"})
        sound = raw.log_bytes(queue.path)
        run_all([Child(die_in_an_append, directory, text, count, errors=errors)])
        data = raw.log_bytes(directory / "default.000001.log")
        assert data.startswith(sound)
        left = data[len(sound) :]
        with open_queue(directory) as other:  # which is no first opener either
            other.enqueue({"k": "after"})
            assert other.recovery.repaired == bool(left)
            assert other.recovery.bytes_discarded == len(left)
            kept = [path.read_bytes() for path in directory.glob("default.torn-*")]
            assert kept == ([left] if left else [])
        queue.enqueue({"k": "later"})
        assert [job.payload["k"] for job in queue.list_jobs()] == ["before", "after", "later"]
        frames = raw.parse(raw.log_bytes(queue.path))
        assert [frame.type for frame in frames].count(16) == (2 if left else 1)
    return left


@pytest.fixture
def errors(tmp_path: Path) -> Any:
    diary = Diary(tmp_path / "errors")
    yield diary
    diary.close()


@pytest.mark.contract("LOG-05", "LOG-06")
@pytest.mark.parametrize("count", [1, 2, 4, 5, 8, 9, 10, 100, 4096, 5000, -1])
def test_what_a_killed_writer_left_in_the_room_is_found_by_the_next(fast_path: Path, errors: Diary, count: int):
    left = a_writer_dies_beside_another(fast_path / "queue", errors, "x" * 9001, count)
    assert len(left) in range(1, 9300)


@pytest.mark.contract("LOG-06")
def test_a_killed_writer_that_left_nothing_but_zeros_left_nothing(fast_path: Path, errors: Diary):
    """The length of a record may begin with a byte that is zero."""
    directory = fast_path / "queue"
    with open_queue(directory) as queue:
        length = len(_enqueue(queue, ""))
        text = "x" * (512 - length)
        assert _enqueue(queue, text)[:2] == b"\0\2"
        queue.purge()
    shutil.rmtree(directory)
    assert a_writer_dies_beside_another(directory, errors, text, 1) == b""


def _enqueue(queue: Queue, text: str) -> bytes:
    """Enqueue as the dead writer does; the record's length, as it stands in the log, and the body."""
    start = raw.log_end(queue.path)
    queue.enqueue({"k": "died", "text": text})
    frame = raw.log_bytes(queue.path)[start:]
    return frame[:2] if text else frame[9:]


@pytest.mark.contract("LOG-06")
def test_a_whole_record_that_a_killed_writer_did_not_publish_is_taken_in(fast_path: Path, errors: Diary):
    directory = fast_path / "queue"
    with open_queue(directory) as queue:
        queue.enqueue({"k": "before"})
        run_all([Child(die_in_an_append, directory, "x", 1 << 20, errors=errors)])
        queue.enqueue({"k": "after"})
        assert not queue.recovery.repaired
        assert [job.payload["k"] for job in queue.list_jobs()] == ["before", "died", "after"]


# --- words that point elsewhere


def set_word(directory: Path, at: int, value: int) -> None:
    with (directory / "default.lock").open("r+b") as words:
        words.seek(at)
        words.write(struct.pack("<Q", value))


def words_say_another_end(directory: Path, synced: str) -> None:
    """Stale or garbled words under a process that goes on: what is in the log stays, and nothing is lost."""

    def fill(queue: Queue) -> None:
        for number in range(4):
            queue.enqueue({"k": number, "text": "}" * 30})

    with open_queue(directory) as queue:
        fill(queue)
        ends = [frame.end for frame in raw.parse(raw.log_bytes(queue.path))]
        end, size = ends[-1], queue.path.stat().st_size
    places = [0, 1, 15, 16, *ends, *(place - 1 for place in ends), *(place - 2 for place in ends)]
    places += drawn(synced).sample(range(end), 25)
    places += [end + 1, end + 8, end + 9, end + 10, size - 1, size, size + 1, 1 << 39]
    for place in places:
        shutil.rmtree(directory)
        with open_queue(directory) as queue:
            fill(queue)
            before = raw.log_bytes(queue.path)
            assert len(before) == end
            set_word(directory, END, GENERATION | place)
            if synced != "as it was":
                set_word(directory, SYNCED, GENERATION | (min(place, end) if synced == "there too" else 0))
            try:
                queue.enqueue({"k": "next"})
            except CorruptLogError as error:
                raise AssertionError(f"an end at {place} of {end}: a sound log was refused: {error}") from None
            data = raw.log_bytes(queue.path)
            assert data.startswith(before), f"an end at {place} of {end}: written over"
            raw.parse(data)
            assert [job.payload["k"] for job in queue.list_jobs()] == [0, 1, 2, 3, "next"]


@pytest.mark.contract("LOG-06", "LOG-07")
@pytest.mark.parametrize("synced", ["as it was", "there too", "nothing"])
def test_nothing_is_written_where_the_words_say_an_end_that_is_none(fast_path: Path, synced: str):
    words_say_another_end(fast_path / "queue", synced)


@pytest.mark.contract("LOG-06", "LOG-07")
@pytest.mark.parametrize("how", ["in place", "another file"])
def test_a_log_that_was_replaced_by_an_older_copy_is_refused_and_not_written_into(fast_path: Path, how: str):
    """The words say an end that lies in the zeros of the copy's room."""
    directory = fast_path / "queue"
    with open_queue(directory) as queue:
        queue.enqueue({"k": "old"})
        path, old = queue.path, queue.path.read_bytes()
        assert raw.log_bytes(path) != old
        queue.enqueue({"k": "new"})
        if how == "in place":
            path.write_bytes(old)
        else:
            (fast_path / "copy").write_bytes(old)
            (fast_path / "copy").rename(path)
        for act in (lambda: queue.enqueue({"k": "x"}), lambda: queue.enqueue({"k": "x"}, job_id="x"), queue.lease):
            with pytest.raises(CorruptLogError):
                act()
        assert path.read_bytes() == old


# --- lookers


@pytest.mark.contract("LOG-08")
@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("alive", [True, False])
def test_whoever_looks_sees_the_log_without_its_room_and_changes_nothing(fast_path: Path, words: bool, alive: bool):
    directory = fast_path / "queue"
    queue = open_queue(directory)
    queue.enqueue({"k": "a"})
    queue.ack(queue.lease_one())
    queue.enqueue({"k": "b"})
    log, end = queue.path, raw.log_end(queue.path)
    if not alive:
        queue._session.abandon()  # as a process that was killed leaves it
    if not words:
        (directory / "default.lock").unlink()
    before = {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    assert log.stat().st_size > end + 60_000
    found = examine_queue(directory, "default")
    assert (found.problem, found.torn_offset, found.torn_bytes, found.size_bytes) == (None, None, 0, end)
    check_end(directory, "default")
    with open_view(directory, "default") as view:
        assert (view.end, view.size) == (end, end)
        assert [record.type for record in view.records()] == ["SNAPSHOT", "OPEN", "ENQUEUE", "LEASE", "ACK", "ENQUEUE"]
    with Queue(directory, read_only=True) as looking:
        assert [job.payload["k"] for job in looking.list_jobs("ready")] == ["b"]
        assert looking.stats().done == 1
    for command in ("recover", "stats"):
        done = subprocess.run(
            [sys.executable, "-m", "nobroker_django", "--dir", str(directory), command],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done
        assert command != "recover" or "default: whole" in done.stdout
    assert {path: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before
    queue.close()


@pytest.mark.contract("LOG-08")
def test_a_look_at_the_end_beside_a_writer_that_fills_the_room_finds_no_damage(fast_path: Path, monkeypatch: Any):
    """The reader is overtaken while it looks for the end of the data, again and again."""
    directory = fast_path / "queue"
    with open_queue(directory, fsync=False) as queue:
        queue.enqueue_many([{"k": "x" * 100}] * 2000)
        files, overtaken = Hooked(), [0]

        def fill(call: Call) -> None:
            """Before it looks at the piece in which the data end, they grow past that piece."""
            if call.kind != "pread" or not call.path.endswith(".log") or overtaken[0] == 9:
                return
            count, start = call.arguments
            if start < (end := raw.log_end(queue.path)) < start + count:
                overtaken[0] += 1
                queue.enqueue_many([{"k": "y" * 1000}] * ((start + count - end) // 1000 + 1))

        files.hook = fill
        monkeypatch.setattr("nobroker_django.engine.inspection.ReadingFiles", lambda: files)
        monkeypatch.setattr("nobroker_django.engine.examination.ReadingFiles", lambda: files)
        for _ in range(3):
            check_end(directory, "default")
            assert examine_queue(directory, "default").problem is None
            with open_view(directory, "default") as view:
                assert view.damage is None
        assert overtaken[0] == 9
