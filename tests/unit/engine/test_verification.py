"""The self-check: what is whole is called so, and everything else is found, named and left alone."""

import json
import os
import random
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest

from nobroker_django import InvalidOptionError, Queue
from nobroker_django.engine import findings, verification
from nobroker_django.engine.control import Control, position
from nobroker_django.engine.examination import settled_tail
from nobroker_django.engine.files import Files
from nobroker_django.engine.findings import Kind
from nobroker_django.engine.inspection import read_words
from nobroker_django.engine.projection import Projection
from nobroker_django.engine.schema import Stale
from nobroker_django.engine.verification import verify_queue
from tests.contract.helpers import (
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
    STARTED,
    frame,
)
from tests.contract.helpers import SNAPSHOT as SNAPSHOT_TYPE
from tests.support import bytes as raw
from tests.support.procs import Child, Diary
from tests.support.scripts import NOW, SCRIPTS, all_record_types, open_queue, run


@pytest.fixture
def queue_dir(memory_dir: Path) -> Path:
    return memory_dir / "queues"


@pytest.fixture
def log(queue_dir: Path) -> Path:
    all_record_types(queue_dir)
    (path,) = queue_dir.glob("*.log")
    return path


def verify(directory: Path, **options):
    return verify_queue(directory, "default", **options)


def kinds(found):
    return [finding.kind for finding in found.findings]


def state_of(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Without SQLite's table of who is reading."""
    return raw.snapshot(directory, without="-shm")


# -- what is whole


@pytest.mark.contract("LOG-08")
def test_a_closed_queue_of_all_record_types_is_whole_and_stays_as_it_is(queue_dir, log):
    before = state_of(queue_dir)
    found = verify(queue_dir)
    assert state_of(queue_dir) == before
    assert (found.findings, found.notes) == ([], [])
    assert (found.projection, found.behind_bytes) == ("equal", 0)
    assert (found.generation, found.version, found.log_path) == (2, 2, log)
    data = log.read_bytes()
    assert found.end == len(data)
    assert found.records == len(raw.parse(data))
    assert found.writes == len(raw.batches(raw.parse(data)))
    with open_queue(queue_dir) as queue:
        stats = queue.stats()
    assert found.jobs == {
        "ready": stats.ready + stats.delayed, "leased": stats.leased, "done": stats.done, "dead": stats.dead
    }  # fmt: skip


@pytest.mark.contract("LOG-08")
def test_a_queue_in_use_is_whole_up_to_its_published_end_and_nobody_waits(queue_dir, log):
    with open_queue(queue_dir) as queue:
        queue.stats()
        queue.enqueue({"k": "behind the projection"})
        with queue._session.locked():
            before = state_of(queue_dir)
            found = verify(queue_dir)
            assert state_of(queue_dir) == before
    assert found.findings == []
    assert found.projection == "equal"
    assert found.behind_bytes > 0
    assert found.end == len(log.read_bytes().rstrip(b"\0"))


def test_a_queue_whose_last_user_was_killed_is_whole(queue_dir, tmp_path):
    errors, diary = Diary(tmp_path / "errors"), Diary(tmp_path / "diary")

    def work() -> None:
        with open_queue(queue_dir) as queue:
            queue.enqueue_many([{"k": number} for number in range(20)])
            queue.ack_many(queue.lease(5))
            queue.stats()
            diary.write("ready")
            while True:
                queue.enqueue({"k": "more"})

    child = Child(work, errors=errors)
    try:
        while not diary.lines():
            assert child.running()
    finally:
        child.kill()
    before = state_of(queue_dir)
    found = verify(queue_dir)
    assert state_of(queue_dir) == before
    assert found.findings == []
    assert found.projection == "equal"
    assert found.jobs["done"] == 5
    errors.close()
    diary.close()


def test_a_write_that_was_not_published_is_taken_in_by_the_next_writer_and_is_no_fault(queue_dir, log):
    append(log, frame(ENQUEUE, job("new")))
    found = verify(queue_dir)
    assert found.findings == []
    assert found.end == log.stat().st_size


def test_a_purge_and_what_follows_it(queue_dir):
    run(queue_dir, SCRIPTS["purge"])
    assert verify(queue_dir).findings == []


def test_a_copy_of_pointer_and_log_is_whole(queue_dir, log, tmp_path):
    for name in ("default.current", log.name):
        (tmp_path / "copy").mkdir(exist_ok=True)
        shutil.copy(queue_dir / name, tmp_path / "copy")
    found = verify(tmp_path / "copy")
    assert found.findings == []
    assert found.projection == "none"
    assert found.notes == ["there are no control words of this log: a copy, or left so by a crash"]


def test_jobs_that_time_alone_has_moved_are_no_difference(queue_dir):
    time = [NOW]
    with open_queue(queue_dir, clock=lambda: time[0]) as queue:
        queue.enqueue({"k": "soon"}, delay=10)
        queue.enqueue({"k": "late"}, delay=1000)
        time[0] += 100
        queue.lease(1)
        queue.release(queue.list_jobs("leased"))
        queue.stats()
        queue.enqueue({"k": "again"}, delay=10)
        time[0] += 100
        queue.release(queue.lease(1))
        queue.stats()
        assert verify(queue_dir).findings == []
        time[0] -= 1000  # and they wait again
        assert queue.lease(1) == []
        found = verify(queue_dir)
        assert found.findings == []
        assert found.projection == "equal"


def test_the_projection_of_a_queue_that_was_never_looked_at_is_missed_by_nobody(queue_dir):
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": 1})
    found = verify(queue_dir)
    assert (found.findings, found.projection) == ([], "none")


def test_a_projection_that_somebody_removed_is_a_note(queue_dir, log):
    shutil.rmtree(queue_dir / "default.run")
    found = verify(queue_dir)
    assert found.findings == []
    assert found.notes == ["there is no projection: the next one who needs it makes it"]


# -- damage


def append(log: Path, *frames: bytes) -> int:
    """Write behind the end of a closed log; where that is."""
    end = log.stat().st_size
    with log.open("ab") as file:
        file.write(b"".join(frames))
    return end


def job(job_id: str, **fields):
    return {"id": job_id, "payload": 1, "enqueued_at": NOW, "max_attempts": 3, "n": 1, "u": 0, **fields}


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("words", [True, False])
def test_a_flipped_bit_anywhere_is_found_where_it_is(queue_dir, log, words):
    rng = random.Random(f"flips {words}")
    data = log.read_bytes()
    frames = raw.parse(data)
    certified = raw.last_boundary(data, len(data))[1]
    if not words:
        (queue_dir / "default.lock").unlink()
    for at in rng.sample(range(len(data)), 60):
        log.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        found = verify(queue_dir)
        assert found.findings, at
        if at >= 16 and (words or at < certified):
            assert found.damaged
            [struck] = [one for one in frames if one.start <= at < one.end]
            assert struck.start in [finding.offset for finding in found.findings]
            assert found.projection == ("skipped" if found.log_path else "none")
    log.write_bytes(data)
    assert verify(queue_dir).findings == []


@pytest.mark.contract("LOG-07")
def test_all_damaged_places_are_listed_and_the_records_between_are_counted(queue_dir, log):
    data = bytearray(log.read_bytes())
    frames = raw.parse(bytes(data))
    struck = [frames[3], frames[7], frames[8], frames[12]]
    for one in struck:
        data[one.start + 12] ^= 1
    log.write_bytes(data)
    found = verify(queue_dir)
    assert [finding.offset for finding in found.findings] == [frames[3].start, frames[7].start, frames[12].start]
    assert "intact records follow from byte" in found.findings[0].reason
    assert found.records == len(frames) - 4


def test_a_log_that_was_cut_below_what_was_durable_is_damaged(queue_dir, log):
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 3)
    found = verify(queue_dir)
    assert found.damaged
    assert "were known to be durable" in found.findings[-1].reason


def test_a_torn_tail_is_no_damage_but_not_whole(queue_dir, log):
    end = append(log, frame(ENQUEUE, job("new"))[:-4])
    found = verify(queue_dir)
    [finding] = found.findings
    assert (finding.kind, finding.offset) == (Kind.TORN_TAIL, end)
    assert not found.damaged
    assert found.end == end


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([frame(ENQUEUE, {**job("a"), "n": 3}), frame(ENQUEUE, job("b"))], "lacks 2 of its records"),
        ([frame(ENQUEUE, {"id": "a", "payload": 1, "enqueued_at": 1.0, "max_attempts": 3})], "outside any write"),
        ([frame(SNAPSHOT_TYPE, {"log_id": "1", "at": 1.0, "n": 1, "u": 0})], "SNAPSHOT record in the middle"),
        ([frame(ENQUEUE, job("a", max_attempts="three"))], "is malformed"),
        ([frame(200, {"n": 1, "u": 0})], "type 200 is unknown"),
        ([frame(19, {"n": 1, "u": 0})], "PAUSE) is not built"),
        ([frame(ENQUEUE, job("a", u=1 << 40))], "not plausible"),
    ],
)
def test_a_record_that_no_writer_makes_is_damage(queue_dir, log, frames, reason):
    """Known to be durable, because another write follows that says so."""
    end = append(log, *frames, frame(OPEN, {"at": NOW, "n": 1, "u": 0}))
    found = verify(queue_dir)
    assert found.damaged
    assert found.findings[0].offset in (end, end + len(frames[0]))
    assert reason in found.findings[0].reason


def test_a_damaged_beginning_is_damage(queue_dir, log):
    data = log.read_bytes()
    for at in (0, 12, 14, 20, 40):
        log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = verify(queue_dir)
        assert found.damaged
        assert found.log_path is None


def test_a_log_of_a_newer_version_is_unsupported_and_no_damage(queue_dir, log):
    data = log.read_bytes()
    log.write_bytes(data[:8] + b"\x63\x00" + data[10:])
    found = verify(queue_dir)
    assert (kinds(found), found.damaged, found.unsupported) == ([Kind.UNSUPPORTED], False, True)


@pytest.mark.contract("LOG-10")
@pytest.mark.parametrize("content", [None, b"", b"7\n", b"x"])
def test_a_pointer_that_names_no_log_is_damage(queue_dir, log, content):
    (queue_dir / "default.current").unlink()
    if content is not None:
        (queue_dir / "default.current").write_bytes(content)
    found = verify(queue_dir)
    assert (kinds(found), found.damaged) == ([Kind.POINTER], True)
    assert "default.current" in found.findings[0].reason


def test_a_queue_that_is_not_there_is_refused_and_not_made(queue_dir):
    with pytest.raises(InvalidOptionError, match="there is no queue"):
        verify(queue_dir)
    assert not queue_dir.exists()


# -- transitions

READY = [job("a")]
LEASED = [job("a"), {"id": "a", "at": NOW, "deadline": NOW + 9, "attempts": 1, "token": "f" * 28, "n": 1, "u": 0}]
DONE = [*LEASED, {"id": "a", "at": NOW, "keep_until": NOW, "token": "f" * 28, "n": 1, "u": 0}]
TYPES = {id(READY): [ENQUEUE], id(LEASED): [ENQUEUE, LEASE], id(DONE): [ENQUEUE, LEASE, ACK]}


def token(**fields):
    return {"id": "a", "at": NOW, "token": "f" * 28, "n": 1, "u": 0, **fields}


@pytest.mark.parametrize(
    ("before", "kind", "fields", "reason"),
    [
        ([], ACK, token(keep_until=NOW), "ACK of a job that is not there"),
        ([], LEASE, token(deadline=NOW, attempts=1), "LEASE of a job that is not there"),
        (READY, ENQUEUE, job("a"), "ENQUEUE of a job that is ready at that moment"),
        (READY, ACK, token(keep_until=NOW), "ACK of a job that is ready"),
        (READY, NACK, token(), "NACK of a job that is ready"),
        (READY, RECLAIM, token(), "RECLAIM of a job that is ready"),
        (READY, DEAD, token(), "DEAD of a job that is ready"),
        (READY, REQUEUE, token(), "REQUEUE of a job that is ready"),
        (READY, EXTEND, token(deadline=NOW), "EXTEND of a job that is ready"),
        (READY, STARTED, token(), "STARTED of a job that is ready"),
        (READY, RELEASE, token(), "RELEASE of a job that is ready"),
        (LEASED, LEASE, token(deadline=NOW, attempts=2, token="g" * 28), "LEASE of a job that is leased"),
        (LEASED, ACK, token(keep_until=NOW, token="0" * 28), "is leased under the token 'ffff"),
        (DONE, ACK, token(keep_until=NOW), "ACK of a job that is done"),
        (DONE, LEASE, token(deadline=NOW, attempts=2, token="g" * 28), "LEASE of a job that is done"),
        (READY, PURGE, {"at": NOW, "ids": ["a", "b"], "n": 1, "u": 0}, "PURGE of a job that is not there"),
    ],
)
def test_a_transition_that_cannot_be_is_named_with_offset_and_job(queue_dir, log, before, kind, fields, reason):
    frames = [frame(*pair) for pair in zip(TYPES.get(id(before), []), before, strict=True)]
    append(log, *frames)
    assert verify(queue_dir).findings == []
    end = append(log, frame(kind, fields))
    found = verify(queue_dir)
    [finding] = found.findings
    assert finding.kind is Kind.TRANSITION
    assert reason in finding.reason
    assert (finding.offset, finding.job_id) == (end, "b" if kind == PURGE else "a")
    assert found.damaged


@pytest.mark.contract("LEASE-03")
def test_a_fencing_token_that_does_not_rise_is_found(queue_dir, log):
    lease = {"at": NOW, "deadline": NOW + 9, "attempts": 1, "n": 1, "u": 0}
    append(log, frame(ENQUEUE, job("a")), frame(ENQUEUE, job("b")))
    append(log, frame(LEASE, {"id": "a", "token": "e" * 28, **lease}))
    assert verify(queue_dir).findings == []
    end = append(log, frame(LEASE, {"id": "b", "token": "e" * 28, **lease}))
    [finding] = verify(queue_dir).findings
    assert (finding.kind, finding.offset, finding.job_id) == (Kind.TRANSITION, end, "b")
    assert "not above" in finding.reason


@pytest.mark.contract("ORD-01")
@pytest.mark.parametrize("field", ["seq", "carried"])
def test_a_job_whose_place_is_taken_is_found_and_ends_the_replay(queue_dir, log, field):
    taken = [one for one in raw.parse(log.read_bytes()) if "seq" in one.body][-1].body["seq"]
    append(log, frame(ENQUEUE, job("a", **{field: taken})), frame(ENQUEUE, job("b")))
    [finding] = verify(queue_dir).findings
    assert (finding.kind, finding.job_id) == (Kind.TRANSITION, "a")
    assert f"seq {taken} is not above" in finding.reason


def test_more_findings_than_are_kept_are_counted(queue_dir, log, monkeypatch):
    monkeypatch.setattr(findings, "MOST_FINDINGS", 5)
    append(log, *[frame(ACK, token(keep_until=NOW))] * 12)
    found = verify(queue_dir)
    assert (len(found.findings), found.unlisted) == (5, 7)


# -- the control words


def words_of(directory: Path):
    return os.open(directory / "default.lock", os.O_RDWR)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda control, end: control.publish(position(2, end - 7), position(2, 16)), "speak of byte"),
        (lambda control, end: control.publish(position(2, end), position(2, end - 30)), "speak of byte"),
        (lambda control, end: control.set_synced(position(2, end - 5)), "speak of byte"),
        (lambda control, end: control.set_poisoned(True), "poisoned"),
        (lambda control, end: control.set_damaged(position(2, 100)), "damage was met at byte 100"),
        (lambda control, end: control.set_clean(7), "build 7 was left clean"),
    ],
)
def test_control_words_that_are_not_plausible_are_found(queue_dir, log, change, reason):
    fd = words_of(queue_dir)
    try:
        change(Control(Files(), fd), log.stat().st_size)
    finally:
        os.close(fd)
    found = verify(queue_dir)
    assert set(kinds(found)) == {Kind.WORDS}
    assert reason in found.findings[0].reason
    assert not found.damaged


def test_of_a_poisoned_queue_nothing_but_that_is_said(queue_dir, log):
    fd = words_of(queue_dir)
    try:
        control, end = Control(Files(), fd), log.stat().st_size
        control.publish(position(2, end - 7), position(2, 16))
        control.set_poisoned(True)
    finally:
        os.close(fd)
    [finding] = verify(queue_dir).findings
    assert finding.reason.startswith("poisoned")


def test_words_that_know_more_to_be_durable_than_there_is_are_damage(queue_dir, log):
    fd = words_of(queue_dir)
    try:
        Control(Files(), fd).set_synced(position(2, log.stat().st_size + 100))
    finally:
        os.close(fd)
    assert verify(queue_dir).damaged


# -- the projection


def index(directory: Path) -> Path:
    [path] = (directory / "default.run").glob("*.index")
    return path


def sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "reason", "of_a_job"),
    [
        ("UPDATE jobs SET priority = priority + 1 WHERE seq = (SELECT max(seq) FROM jobs)", "priority: it says", True),
        ("UPDATE jobs SET attempts = 77 WHERE seq = (SELECT min(seq) FROM jobs)", "attempts: it says 77", True),
        ("UPDATE jobs SET payload_offset = 16 WHERE seq = (SELECT min(seq) FROM jobs)", "payload_offset", True),
        ("UPDATE jobs SET last_error = 'other' WHERE last_error IS NOT NULL", "last_error: it says other", True),
        ("DELETE FROM jobs WHERE seq = (SELECT max(seq) FROM jobs)", "it is missing; by the log it is", True),
        ("UPDATE jobs SET seq = seq + 1000000 WHERE seq = (SELECT max(seq) FROM jobs)", "it is there, but", True),
        ("UPDATE meta SET due = due + 1", "due: it counts", False),
        ("UPDATE meta SET enqueued_total = 0", "enqueued_total: it says 0", False),
        ("UPDATE meta SET open_seq = 0", "open_seq", False),
        ("UPDATE meta SET ignored = 3", "ignored: it says 3", False),
        ("DELETE FROM failures", "the failure at byte", True),
        ("INSERT INTO failures SELECT max(seq), 16 FROM jobs", "that the log does not tell of", True),
    ],
)
def test_a_projection_that_says_something_else_is_found_row_by_row(queue_dir, log, statement, reason, of_a_job):
    sql(index(queue_dir), statement)
    found = verify(queue_dir)
    assert set(kinds(found)) == {Kind.PROJECTION}
    assert found.projection == "differs"
    [finding, *_] = [finding for finding in found.findings if reason in finding.reason]
    assert (finding.job_id is not None) == of_a_job
    assert not found.damaged


@pytest.mark.parametrize("state", [0, 1, 2, 3, 4, 5])
def test_a_job_in_a_wrong_state_is_found_and_waiting_is_not_due(queue_dir, state):
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "later"}, delay=1000)
        queue.stats()
    sql(index(queue_dir), f"UPDATE jobs SET state = {state}")
    found = verify(queue_dir)
    assert bool(found.findings) == (state != 0)
    if state:
        assert any("state: it says" in finding.reason and finding.job_id for finding in found.findings)


def test_a_job_that_waits_for_nothing_must_be_due(queue_dir):
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "now"})
        queue.stats()
    sql(index(queue_dir), "UPDATE jobs SET state = 0", "UPDATE meta SET due = 0, waiting = 1")
    assert "state: it says waiting, by the log it is due" in [one.reason for one in verify(queue_dir).findings]


def test_an_index_of_the_projection_that_does_not_fit_its_table_is_found(queue_dir, log):
    path = index(queue_dir)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'state = 1', 'state = 4') WHERE name = 'jobs_due'")
    connection.commit()
    connection.close()
    found = verify(queue_dir)
    assert any("SQLite finds it damaged" in finding.reason for finding in found.findings)


@pytest.mark.parametrize("at", [0, 100, 4096, 8192, 12288])
def test_a_garbled_projection_is_found(queue_dir, log, at):
    path = index(queue_dir)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(random.Random(at).randbytes(2000))
    found = verify(queue_dir)
    assert set(kinds(found)) == {Kind.PROJECTION}
    assert not found.damaged
    assert found.records > 20


def test_a_projection_that_is_being_made_anew_is_not_compared(queue_dir, log, monkeypatch):
    """The second look finds one that is behind what was replayed already."""
    real = Projection.read
    looks = []
    monkeypatch.setattr(verification, "_LITTLE_BYTES", 0)

    def read(files, layout, live, build):
        looks.append(build)
        if len(looks) == 2:
            with open_queue(queue_dir) as queue, queue._session.locked() as held:
                held.discard_projection()
                held.projection()
            build = read_words(files, layout).build
        return real(files, layout, live, build)

    monkeypatch.setattr(Projection, "read", read)
    found = verify(queue_dir)
    assert (found.findings, found.projection) == ([], "none")
    assert found.notes == ["the projection is being made anew: it was not compared"]


def test_a_projection_that_goes_while_it_is_looked_for_is_no_finding(queue_dir, log, monkeypatch):
    real = Projection.read
    looks = []

    def read(files, layout, live, build):
        looks.append(build)
        if len(looks) == 1:
            raise Stale("replaced between two steps")
        return real(files, layout, live, build)

    monkeypatch.setattr(Projection, "read", read)
    found = verify(queue_dir)
    assert (found.findings, found.projection) == ([], "equal")


def test_damage_in_the_record_that_the_projection_ends_with_is_damage(queue_dir):
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "last of the projection"})
        queue.stats()
        queue.enqueue({"k": "later"})
        queue.enqueue({"k": "latest"})
        data = bytearray(queue.path.read_bytes())
        data[data.index(b"last of") + 1] ^= 1
        queue.path.write_bytes(data)
        found = verify(queue_dir)
    assert (kinds(found), found.projection) == ([Kind.DAMAGE], "skipped")


# -- others at work


def test_what_a_compaction_replaced_meanwhile_is_whole_as_it_was(queue_dir, log, monkeypatch):
    looks = []

    def settled(files, layout, live):
        looks.append(live.generation)
        if len(looks) == 1:
            with open_queue(queue_dir) as queue:
                queue.compact()
        return settled_tail(files, layout, live)

    monkeypatch.setattr(verification, "settled_tail", settled)
    found = verify(queue_dir)
    assert found.findings == []
    assert found.jobs["ready"] > 0
    assert not log.exists()


def test_damage_that_is_gone_at_the_second_look_is_none(queue_dir, log, monkeypatch):
    """Whoever writes meanwhile may be seen in the middle of it."""
    data = log.read_bytes()
    looks = []

    def settled(files, layout, live):
        looks.append(1)
        log.write_bytes(data if len(looks) > 1 else data[:-9] + b"\x01" + data[-8:])
        return settled_tail(files, layout, live)

    monkeypatch.setattr(verification, "settled_tail", settled)
    assert verify(queue_dir).findings == []
    assert len(looks) == 3


def test_what_two_looks_agree_on_is_found(queue_dir, log, monkeypatch):
    looks = []

    def settled(files, layout, live):
        looks.append(1)
        return settled_tail(files, layout, live)

    monkeypatch.setattr(verification, "settled_tail", settled)
    assert verify(queue_dir).whole
    assert len(looks) == 1
    append(log, frame(ACK, token(keep_until=NOW)))
    assert verify(queue_dir).damaged
    assert len(looks) == 3


def test_progress_is_told_and_ends_with_all(queue_dir):
    with Queue(queue_dir, fsync=False) as queue:
        queue.enqueue_many([{"text": "x" * 1000}] * 3000)
        size = raw.parse(queue.path.read_bytes().rstrip(b"\0"))[-1].end
    told: list[tuple[int, int]] = []
    verify(queue_dir, progress=lambda done, total: told.append((done, total)))
    assert len(told) >= 3
    assert told == sorted(told)
    assert told[-1] == (size, size)


# -- version 1


def test_a_directory_of_version_1_is_whole_and_stays_as_it_is(queue_dir):
    nobroker = pytest.importorskip("nobroker")
    from tests.support import version1

    time = [NOW]

    def advance(seconds):
        time[0] += seconds

    with version1.opened(queue_dir, lambda: time[0]) as old:
        version1.fill(old, advance)
        expected = old.stats()
        before = state_of(queue_dir)
        found = verify(queue_dir)
        assert state_of(queue_dir) == before
    assert nobroker
    assert (found.findings, found.version, found.generation) == ([], 1, 0)
    assert found.jobs["ready"] == expected.ready + expected.delayed
    assert (found.jobs["leased"], found.jobs["done"], found.jobs["dead"]) == (
        expected.leased, expected.done, expected.dead
    )  # fmt: skip
    with open_queue(queue_dir, clock=lambda: time[0]) as queue:
        queue.stats()
        assert verify(queue_dir).findings == []


def test_damage_and_impossible_transitions_of_version_1_are_found(queue_dir):
    from tests.support import version1

    fields = {"id": "a", "payload": 1, "priority": 0, "state": "ready", "attempts": 0, "max_attempts": 3,
              "available_at": 1.0, "enqueued_at": 1.0, "seq": 1}  # fmt: skip
    records = [version1.record(1, fields), version1.record(3, {"id": "b", "at": 2.0}), version1.record(1, fields)]
    log = version1.write_log(queue_dir, records)
    [finding] = verify(queue_dir).findings
    assert (finding.kind, finding.job_id) == (Kind.TRANSITION, "b")
    data = bytearray(log.read_bytes())
    data[30] ^= 1
    log.write_bytes(data)
    found = verify(queue_dir)
    assert found.damaged
    assert found.findings[0].offset == 16
    assert found.records == 2


def test_a_record_longer_than_the_limit_is_damage_that_costs_no_memory(queue_dir, log):
    import tracemalloc

    append(log, struct.pack("<IBI", 1 << 31, 1, 0), b"x" * 100, frame(OPEN, {"at": NOW, "n": 1, "u": 0}))
    tracemalloc.start()
    try:
        found = verify(queue_dir)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.damaged
    assert peak < 16 * 1024 * 1024
    assert json.dumps([finding.reason for finding in found.findings])
