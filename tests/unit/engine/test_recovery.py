"""Torn tail or corruption: what certifies, what the shape of the damage says. Nothing here opens a queue to write."""

import json
import struct

import pytest

from nobroker_django import CorruptLogError
from nobroker_django.engine import recovery
from nobroker_django.engine.control import MISSING, Words, position
from nobroker_django.engine.files import Files
from nobroker_django.engine.log import Log, beginning
from nobroker_django.engine.records import Snapshot
from nobroker_django.engine.recovery import examine
from tests.contract.helpers import ENQUEUE, OPEN, flip, frame

LOG_ID = 0xABC


def job(number, n=1, u=None, size=10):
    body = {"id": f"job {number}", "payload": "x" * size, "enqueued_at": 1.0, "max_attempts": 5}
    return frame(ENQUEUE, body if u is None else {**body, "n": n, "u": u})


def opening():
    return frame(OPEN, {"at": 1.0, "n": 1, "u": 0})


@pytest.fixture
def log_of(tmp_path):
    """A log of these bytes behind the usual beginning; and where they begin."""
    opened = []

    def make(*parts):
        path = tmp_path / "q.000001.log"
        head = beginning(1, Snapshot(log_id=f"{LOG_ID:016x}", at=1.0))
        path.write_bytes(head + b"".join(parts))
        opened.append(Log(Files(), path, 1))
        return opened[-1], len(head)

    yield make
    for log in opened:
        log.release()


def words(end, synced, last=None):
    return Words(LOG_ID, position(1, end), position(1, end if last is None else last), position(1, synced), 0, 0, 0, 0)


def test_a_sound_log_ends_where_the_file_ends(log_of):
    log, start = log_of(opening(), job(1, u=0), job(2, u=0))
    tail = examine(log, MISSING)
    assert (tail.good, tail.size, tail.damage) == (log.size(), log.size(), None)
    assert tail.certified >= start
    assert tail.records == 4


def test_with_words_only_what_follows_the_last_durable_write_is_read(log_of):
    parts = [opening(), *(job(n, u=0) for n in range(50))]
    log, _ = log_of(*parts)
    size = log.size()
    last = size - len(parts[-1])
    tail = examine(log, words(size, size, last))
    assert (tail.scanned_from, tail.records, tail.good) == (last, 1, size)


@pytest.mark.parametrize("cut", [1, 8, 9, 10, 40])
def test_an_unfinished_end_is_a_torn_tail(log_of, cut):
    whole = job(2, u=0)
    log, start = log_of(opening(), job(1, u=0), whole[:-cut])
    tail = examine(log, MISSING)
    assert tail.good == start + len(opening()) + len(job(1, u=0))
    assert tail.damage is not None


@pytest.mark.parametrize("bit", range(0, 32, 3))
def test_an_end_that_one_flipped_bit_of_the_length_explains_is_corruption(log_of, bit):
    last = bytearray(job(2, u=0))
    last[bit // 8] ^= 1 << bit % 8
    log, _ = log_of(opening(), job(1, u=0), bytes(last))
    with pytest.raises(CorruptLogError):
        examine(log, MISSING)


def test_u_certifies_what_was_durable_when_the_record_was_written(log_of):
    first, second, third = job(1, u=0, size=600), job(2, u=0, size=600), job(3, u=0, size=600)
    log, start = log_of(opening(), first, second, third)
    offset = start + len(opening()) + len(first)
    flip(log.path, offset + 100)
    with pytest.raises(CorruptLogError) as damaged:
        examine(log, MISSING)
    assert damaged.value.offset == offset


def test_records_behind_a_zeroed_sector_are_cut_as_long_as_none_certifies_it(log_of):
    unsynced = [job(n, u=700 * 100, size=600) for n in range(2, 6)]
    parts = [opening(), job(1, u=0, size=600)]
    log, _ = log_of(*parts)
    base = log.size()
    at = base
    tail_parts = []
    for part in unsynced:
        body = json.loads(part[9:])
        body["u"] = at - base
        tail_parts.append(frame(ENQUEUE, body))
        at += len(tail_parts[-1])
    log, _ = log_of(*parts, *tail_parts)
    data = bytearray(log.path.read_bytes())
    hole = (base // 512 + 2) * 512
    assert hole + 512 < len(data)
    data[hole : hole + 512] = bytes(512)
    log.path.write_bytes(data)
    tail = examine(log, MISSING)
    assert base <= tail.good <= hole
    assert tail.certified == base
    # The same hole below what the words know to be durable is corruption.
    with pytest.raises(CorruptLogError):
        examine(log, words(len(data), len(data), base))


@pytest.mark.parametrize("window", [260, 300, 1 << 20])
def test_intact_records_behind_damage_are_found_whatever_the_window(log_of, monkeypatch, window):
    monkeypatch.setattr(recovery, "_WINDOW_BYTES", window)
    log, start = log_of(opening(), job(1, u=0), b"\0" * 500, job(2, u=0), b'garbage{"', job(3, u=0))
    damage = start + len(opening()) + len(job(1, u=0))
    found = list(recovery.frames_behind(log, damage + 1, log.size()))
    assert [json.loads(item.body)["id"] for item in found] == ["job 2", "job 3"]


def test_a_record_that_is_longer_than_the_first_look_is_found_at_its_very_beginning(log_of, monkeypatch):
    monkeypatch.setattr(recovery, "_FIRST_WINDOW_BYTES", 100)
    log, start = log_of(opening(), job(1, u=0, size=500))
    found = list(recovery.frames_behind(log, start + len(opening()), log.size()))
    assert [json.loads(item.body)["id"] for item in found] == ["job 1"]


def test_garbage_that_looks_like_many_long_records_is_not_summed_up_again_and_again(log_of, monkeypatch):
    sums = []
    monkeypatch.setattr(recovery, "parse_frame", lambda *arguments, **options: sums.append(arguments))
    garbage = (struct.pack("<IBI", 100_000, OPEN, 0) + b'{"') * 20_000
    log, start = log_of(garbage)
    assert list(recovery.frames_behind(log, start, log.size())) == []
    assert sums == []


def test_a_payload_that_looks_like_a_frame_does_not_pass_for_one(log_of):
    inner = frame(OPEN, {"at": 1.0, "n": 1, "u": 0}).decode("latin-1")
    body = {"id": "a", "payload": inner, "enqueued_at": 1.0, "max_attempts": 5, "n": 1, "u": 0}
    log, start = log_of(opening(), frame(ENQUEUE, body)[:-1])
    assert list(recovery.frames_behind(log, start + len(opening()) + 1, log.size())) == []


@pytest.mark.parametrize(
    "garbage",
    [
        lambda size: Words(LOG_ID, position(1, 50), position(1, 40), position(1, 45), 0, 0, 0, 0),
        lambda size: Words(LOG_ID, position(1, size), position(1, size + 99), position(1, size - 3), 0, 0, 0, 0),
        lambda size: Words(LOG_ID + 1, position(1, 10**9), position(1, 10**9), position(1, 10**9), 0, 0, 0, 0),
        lambda size: Words(LOG_ID, position(2, size), position(2, size), position(2, size), 0, 0, 0, 0),
    ],
)
def test_garbage_in_the_words_does_not_cut_a_sound_log(log_of, garbage):
    log, _ = log_of(opening(), job(1, u=0), job(2, u=0))
    tail = examine(log, garbage(log.size()))
    assert (tail.good, tail.damage) == (log.size(), None)


def test_a_file_shorter_than_what_was_durable_is_corruption(log_of):
    log, _ = log_of(opening(), job(1, u=0))
    with pytest.raises(CorruptLogError, match="known to be durable") as short:
        examine(log, words(log.size() + 10, log.size() + 10))
    assert short.value.offset == log.size()


@pytest.mark.parametrize(
    "parts",
    [
        (job(1, n=2, u=0), job(2, u=0)),
        (job(1, u=0), job(2)),
    ],
)
def test_batches_that_overlap_or_records_outside_any_are_damage(log_of, parts):
    log, _ = log_of(opening(), *parts)
    with pytest.raises(CorruptLogError):
        examine(log, MISSING)


def test_an_absurd_length_is_no_torn_tail_when_intact_records_follow(log_of):
    bad = struct.pack("<IB", 2**31, ENQUEUE) + b"\1" * 100
    log, start = log_of(opening(), bad, job(2, u=len(bad)))
    with pytest.raises(CorruptLogError) as damaged:
        examine(log, MISSING)
    assert damaged.value.offset == start + len(opening())
