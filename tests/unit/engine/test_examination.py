"""What is said of a queue's files, without opening the queue."""

import os

import pytest

from nobroker_django import CorruptLogError, Queue
from nobroker_django.engine.control import Control
from nobroker_django.engine.errors import PointerError, UnsupportedVersionError
from nobroker_django.engine.examination import examine_queue
from nobroker_django.engine.files import Files
from tests.support.bytes import log_end, snapshot


@pytest.fixture
def log(queue_dir):
    """The log of a closed queue with two jobs."""
    with Queue(queue_dir) as queue:
        queue.enqueue(1, job_id="one")
        queue.enqueue(2, job_id="two")
        return queue.path


@pytest.mark.contract("LOG-08")
def test_a_whole_queue_in_use(queue_dir):
    with Queue(queue_dir, clock=lambda: 1000.0) as queue:
        queue.enqueue_many([1, 2])
        size = log_end(queue.path)
        before = snapshot(queue_dir)
        found = examine_queue(queue_dir, "default")
        assert snapshot(queue_dir) == before
    assert found.problem is None
    assert found.torn_offset is None
    assert (found.generation, found.generations, found.records) == (1, [1], 4)
    assert (found.size_bytes, found.published_end, found.synced) == (size, size, size)
    assert (found.last_secured, found.poisoned, found.kept) == (1000.0, False, [])


def test_a_torn_tail_is_said_and_left_alone(queue_dir, log):
    whole = log.read_bytes()
    log.write_bytes(whole + b"\x40\x00\x00\x00\x01abc")
    found = examine_queue(queue_dir, "default")
    assert (found.torn_offset, found.torn_bytes) == (len(whole), 8)
    assert found.torn_reason == "the file ends after 8 of 9 frame bytes"
    assert found.problem is None
    assert log_end(log) == len(whole) + 8


@pytest.mark.contract("LOG-05")
def test_what_a_repair_cut_is_found_with_its_reason_and_time(queue_dir, log):
    whole = log.read_bytes()
    log.write_bytes(whole + b"\x40\x00\x00\x00\x01abc")
    with Queue(queue_dir, clock=lambda: 2000.0) as queue:
        recovery = queue.recovery
    [kept] = examine_queue(queue_dir, "default").kept
    assert (str(kept.path), kept.size_bytes, kept.offset) == (recovery.kept_path, 8, len(whole))
    assert (kept.generation, kept.records, kept.at) == (1, 0, 2000.0)
    assert kept.reason == recovery.damage
    with Queue(queue_dir) as queue:
        queue.compact()
    [kept] = examine_queue(queue_dir, "default").kept
    assert kept.at is None


def test_what_another_queue_has_kept_is_not_this_ones(queue_dir, log):
    (queue_dir / "default-2.torn-1-16-1").write_bytes(b"x")
    (queue_dir / "other.torn-1-16-1").write_bytes(b"x")
    assert examine_queue(queue_dir, "default").kept == []


def test_intact_records_in_what_was_cut_are_counted(queue_dir, log):
    data = log.read_bytes()
    (queue_dir / "default.torn-1-999-1").write_bytes(data[16:])
    [kept] = examine_queue(queue_dir, "default").kept
    assert kept.records == 4
    assert kept.reason == "the last write lacks some of its records"


@pytest.mark.contract("LOG-07")
def test_damage_in_the_middle_is_found_although_the_end_is_sound(queue_dir, log):
    data = bytearray(log.read_bytes())
    second = 16 + 9 + int.from_bytes(data[16:20], "little")
    data[second + 12] ^= 4
    log.write_bytes(data)
    Queue(queue_dir).close()  # an opener looks at the end alone
    found = examine_queue(queue_dir, "default")
    assert isinstance(found.problem, CorruptLogError)
    assert found.problem.offset == second


def test_damage_in_the_last_acknowledged_record_is_damage(queue_dir, log):
    data = bytearray(log.read_bytes())
    data[-5] ^= 1
    log.write_bytes(data)
    found = examine_queue(queue_dir, "default")
    assert isinstance(found.problem, CorruptLogError)
    assert found.torn_offset is None
    assert found.records == 3


def test_a_missing_pointer_is_damage(queue_dir, log):
    (queue_dir / "default.current").unlink()
    found = examine_queue(queue_dir, "default")
    assert isinstance(found.problem, PointerError)
    assert (found.generation, found.generations) == (None, [1])


def test_a_log_of_another_version_is_no_damage(queue_dir, log):
    data = bytearray(log.read_bytes())
    data[8] = 77
    log.write_bytes(data)
    assert isinstance(examine_queue(queue_dir, "default").problem, UnsupportedVersionError)


def test_poison_is_said(queue_dir, log):
    fd = os.open(queue_dir / "default.lock", os.O_RDWR)
    try:
        Control(Files(), fd).set_poisoned(True)
    finally:
        os.close(fd)
    assert examine_queue(queue_dir, "default").poisoned


def test_a_copy_without_a_lock_file_is_judged_by_its_records(queue_dir, log):
    (queue_dir / "default.lock").unlink()
    found = examine_queue(queue_dir, "default")
    assert (found.problem, found.published_end, found.records) == (None, None, 4)
