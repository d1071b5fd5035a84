"""Records: frozen numbers, defaults left out, other shapes refused, batches."""

import json
from typing import Any

import pytest
from msgspec import Raw

from nobroker_django import SerializationError
from nobroker_django.engine import records
from nobroker_django.engine.framing import FrameDamage
from nobroker_django.engine.records import (
    Ack,
    Enqueue,
    Lease,
    Open,
    RecordType,
    Snapshot,
    batch_fields,
    decode_record,
    encode_batch,
    encode_body,
    with_batch_fields,
)

JOB = Enqueue(id="a", payload=Raw(b'{"x":1}'), enqueued_at=1.0, max_attempts=5)


@pytest.mark.contract("LOG-02")
def test_the_numbers_of_the_record_types_are_frozen():
    assert {kind.name: int(kind) for kind in RecordType} == {
        "ENQUEUE": 1, "LEASE": 2, "ACK": 3, "NACK": 4, "RECLAIM": 5, "DEAD": 6, "REQUEUE": 7, "PURGE": 8, "EXTEND": 9,
        "OPEN": 16, "STARTED": 17, "RELEASE": 18, "PAUSE": 19, "RESUME": 20, "CANCEL": 21, "RESCHEDULE": 22,
        "WORKER": 23, "LIMIT": 24, "NOTE": 25, "PROGRESS": 26, "TOMBSTONE": 27, "SNAPSHOT": 28, "SCHEDULE": 29,
        "GROUP": 30, "META": 31,
    }  # fmt: skip


def test_fields_that_hold_their_default_are_left_out():
    assert json.loads(encode_body(JOB)) == {"id": "a", "payload": {"x": 1}, "enqueued_at": 1.0, "max_attempts": 5}
    assert json.loads(encode_body(Ack(id="a", at=1.0, keep_until=2.0))) == {"id": "a", "at": 1.0, "keep_until": 2.0}


def test_a_record_comes_back_as_it_was():
    for record in (
        JOB,
        Lease(id="a", at=1.5, deadline=2.5, attempts=3, token="t"),
        Ack(id="a", at=1.0, keep_until=9.0, token="t", result=Raw(b"[1]")),
        Snapshot(log_id="ff", at=1.0, base=5, copies=3),
        Open(at=1.0),
    ):
        again = decode_record(int(record.TYPE), encode_body(record), 0)
        assert type(again) is type(record)
        assert encode_body(again) == encode_body(record)


@pytest.mark.parametrize("kind", [0, 10, 15, 19, 20, 21, 22, 23, 24, 26, 27, 29, 30, 31, 32, 255])
def test_types_that_are_unknown_or_not_built_are_refused_with_number_and_offset(kind):
    with pytest.raises(FrameDamage, match=f"type {kind} ") as damage:
        decode_record(kind, b"{}", 77)
    assert damage.value.offset == 77


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"5", b"{", b"\xff{}", b'{"id":5,"payload":1,"enqueued_at":1,"max_attempts":5}',
        b'{"id":"a","payload":1,"enqueued_at":"1","max_attempts":5}',
        b'{"id":"a","payload":1,"enqueued_at":1,"max_attempts":"5"}',
        b'{"id":"a","payload":1,"enqueued_at":1,"max_attempts":1.5}',
        b'{"payload":1,"enqueued_at":1,"max_attempts":5}',
        b'{"id":"a","enqueued_at":1,"max_attempts":5}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_body_of_another_shape_is_refused_with_its_offset(body):
    """C29."""
    with pytest.raises(FrameDamage, match="ENQUEUE record is malformed") as damage:
        decode_record(1, body, 99)
    assert damage.value.offset == 99


def test_unknown_fields_are_ignored():
    """C29: a newer release may have written them."""
    record: Any = decode_record(16, b'{"at":1.0,"new":{"deep":[1]},"n":1,"u":0}', 0)
    assert (record.at, record.n, record.u) == (1.0, 1, 0)


def test_payload_bytes_are_kept_as_they_are():
    body = b'{"id":"a","payload":{"b": 1.50,  "a":1e2},"enqueued_at":1.0,"max_attempts":5}'
    record: Any = decode_record(1, body, 0)
    assert bytes(record.payload) == b'{"b": 1.50,  "a":1e2}'
    assert b'{"b": 1.50,  "a":1e2}' in encode_body(record)


# --- batches


def test_the_first_record_of_a_batch_carries_n_and_u_and_no_other_does():
    data, last, starts = encode_batch([1] * 3, [encode_body(JOB)] * 3, 17)
    assert (last, starts[0], len(starts)) == (starts[-1], 0, 3)
    first = json.loads(data[9 : starts[1]])
    assert (first["n"], first["u"]) == (3, 17)
    assert json.loads(data[starts[1] + 9 : starts[2]]) == json.loads(encode_body(JOB))


def test_batch_fields_are_read_without_the_rest():
    assert batch_fields(1, with_batch_fields(encode_body(JOB), 3, 5), 100) == (3, 5)
    assert batch_fields(1, encode_body(JOB), 100) is None


@pytest.mark.parametrize(
    "fields",
    ['"n":0,"u":0', '"n":-1,"u":0', '"n":1', '"n":1,"u":-1', '"n":1,"u":101', '"n":"1","u":0', '"n":1,"u":null'],
)
def test_batch_fields_that_are_not_plausible_are_damage(fields):
    with pytest.raises(FrameDamage):
        batch_fields(1, b'{"id":"a",' + fields.encode() + b"}", 100)


def test_a_record_and_a_batch_that_are_too_large_are_refused(monkeypatch):
    with pytest.raises(SerializationError, match="8388608"):
        encode_body(Ack(id="a", at=1.0, keep_until=1.0, result=Raw(b'"' + b"x" * 8_388_608 + b'"')))
    monkeypatch.setattr(records, "MAX_BATCH_BYTES", 100)
    with pytest.raises(SerializationError, match="several calls"):
        encode_batch([1] * 3, [encode_body(JOB)] * 3, 0)
