"""Records of format version 1: decoding, what they mean, and JSON that only the standard library reads."""

import json

import pytest
from msgspec import Raw

from nobroker_django.engine import lax, version1
from nobroker_django.engine.files import Files
from nobroker_django.engine.framing import Frame, FrameDamage, iter_frames, parse_frame
from nobroker_django.engine.generations import Layout
from nobroker_django.engine.log import Log
from nobroker_django.engine.old_log import OldLog, generation_without_pointer, open_log
from nobroker_django.engine.options import LAST_MOMENT
from nobroker_django.engine.payload import decode_payload, payload_digest, task_name
from nobroker_django.engine.projection import Projection
from nobroker_django.engine.records import Enqueue, batch_fields, decode_record, encode_body, with_batch_fields
from nobroker_django.engine.snapshots import job_of
from tests.support.version1 import record, write_log

NAN = float("nan")


# --- JSON member by member


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", {}),
        (b" { } ", {}),
        (b'{"a":1}', {"a": b"1"}),
        (b'{ "a" : [1, {"b": "}"}] , "c":NaN }', {"a": b'[1, {"b": "}"}]', "c": b"NaN"}),
        (b'{"a":1,"a":2}', {"a": b"2"}),
        ('{"ü":"→","\\u0061":"\\ud800"}'.encode(), {"ü": '"→"'.encode(), "a": b'"\\ud800"'}),
        (b'{"a":-Infinity,"b":1e400,"c":' + b"9" * 400 + b"}", {"a": b"-Infinity", "b": b"1e400", "c": b"9" * 400}),
    ],
)
def test_the_members_of_an_object_are_its_bytes(body, expected):
    assert lax.members(body) == expected
    assert json.dumps(json.loads(lax.joined(expected))) == json.dumps(json.loads(body))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'"a"', b"{", b'{"a"}', b'{"a":}', b'{"a":1', b'{"a":1,}', b"{1:2}", b'{"a":1}x', b'{"a":1 "b":2}'],
)
def test_what_is_no_object_is_refused(body):
    with pytest.raises(ValueError, match=r"(?i)expect|character|follows|key"):
        lax.members(body)


@pytest.mark.parametrize(
    "payload", [b"NaN", b"[Infinity,-Infinity]", b'"\\ud800"', b'{"a":NaN,"a":1}', b'{"\\udfff":1}']
)
def test_records_of_ours_may_hold_payloads_of_version_1(payload):
    body = encode_body(Enqueue(id="x", payload=Raw(payload), enqueued_at=1.5, max_attempts=3, seq=16, waits=True))
    found = decode_record(1, body, 0)
    assert isinstance(found, Enqueue)
    assert bytes(found.payload) == payload
    assert (found.id, found.enqueued_at, found.max_attempts, found.seq, found.waits) == ("x", 1.5, 3, 16, True)
    assert batch_fields(1, body, 99) is None
    assert batch_fields(1, with_batch_fields(body, 7, 42), 99) == (7, 42)
    assert json.dumps(decode_payload(payload)) == json.dumps(json.loads(payload))
    assert task_name(payload) is None
    assert len(payload_digest(payload)) == 64


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":1,"payload":NaN,"enqueued_at":1.5,"max_attempts":3}',
        b'{"payload":NaN,"enqueued_at":1.5,"max_attempts":3}',
        b'{"id":"x","payload":NaN,"enqueued_at":NaN,"max_attempts":3}',
        b'{"id":"x","payload":nan,"enqueued_at":1.5,"max_attempts":3}',
        b'{"id":"x","enqueued_at":1.5,"max_attempts":3,"meta":NaN}',
    ],
)
def test_the_rest_of_such_a_record_is_read_as_strictly_as_any(body):
    with pytest.raises(FrameDamage, match="malformed"):
        decode_record(1, body, 0)


def test_nan_is_another_payload_than_null():
    assert payload_digest(b'{"a":NaN}') != payload_digest(b'{"a":null}')
    assert payload_digest(b'{"b":1,"a":NaN}') == payload_digest(b'{"a":NaN,"b":1}')


# --- frames


def test_the_checksum_leaves_the_length_out():
    data = record(8, {"at": 1.0})
    frame = parse_frame(data, 0, 16, last=True, version=1)
    assert frame is not None
    assert (frame.type, frame.end) == (8, 16 + len(data))
    with pytest.raises(FrameDamage, match="checksum"):
        parse_frame(data, 0, 16, last=True)


def test_a_log_of_version_1_is_read_in_pieces(tmp_path):
    records = [record(1, {"id": str(n), "payload": "x" * n}) for n in (0, 10, 2**20, 5, 3 * 2**20, 1)]
    path = write_log(tmp_path, records)
    files = Files()
    fd = files.open(path, 0)
    try:
        assert [frame.end - frame.offset for frame in iter_frames(files, fd, 16, files.size(fd), 1)] == [
            len(data) for data in records
        ]
    finally:
        files.close(fd)


# --- decoding


def decoded(kind: int, fields: dict) -> object:
    return version1.decode(Frame(16, kind, json.dumps(fields).encode(), 99))


def test_fields_are_brought_into_our_ranges():
    job = decoded(
        1,
        {
            "id": "x", "payload": 1, "priority": 10**30, "max_attempts": -(10**30), "attempts": 2.9,
            "available_at": float("inf"), "enqueued_at": NAN, "seq": 3, "unknown": NAN,
        },
    )  # fmt: skip
    assert isinstance(job, version1.OldEnqueue)
    assert (job.priority, job.max_attempts, job.attempts) == (2**31 - 1, -(2**31), 2)
    assert (job.available_at, job.enqueued_at, job.number) == (LAST_MOMENT, 0.0, 3)
    assert decoded(1, {"id": "x", "priority": float("-inf")}).priority == -(2**31)  # type: ignore[attr-defined]
    assert decoded(9, {"id": "x", "deadline": -5}).deadline == 0.0  # type: ignore[attr-defined]
    assert decoded(9, {"id": "x", "deadline": 10**400}).deadline == LAST_MOMENT  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("plain ü", "plain ü"), (5, "json:5"), ("5", "5"), (None, "json:null"), ("\ud800", 'json:"\\ud800"')],
)
def test_ids_that_are_no_text_get_one_of_their_own(given, expected):
    assert decoded(3, {"id": given, "at": 1.0}).id == expected  # type: ignore[attr-defined]
    assert decoded(1, {"id": given, "payload": NAN}).id == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, None), ("", ""), ("\ud800", "\\ud800"), ({"a": 1}, '{"a": 1}'), (7, "7")],
)
def test_errors_become_text(given, expected):
    assert decoded(4, {"id": "x", "available_at": 1, "error": given}).error == expected  # type: ignore[attr-defined]


def test_long_errors_are_cut():
    error = decoded(6, {"id": "x", "error": "e" * 100_000}).error  # type: ignore[attr-defined]
    assert len(error.encode()) <= 8 * 1024
    assert error.endswith("[cut]")


@pytest.mark.parametrize("kind", [0, 10, 16, 28, 255])
def test_types_that_version_1_does_not_have_are_refused(kind):
    with pytest.raises(FrameDamage, match=f"{kind} is unknown"):
        decoded(kind, {"id": "x"})


# --- what the records mean


def folded(directory, *records):
    """The rows that the records make, as jobs; and the folded counters."""
    log = OldLog(Files(), write_log(directory, [record(kind, fields) for kind, fields in records]), 0)
    projection = Projection.private(log)
    try:
        with projection.unit() as unit:
            unit.fold(log.tail().good, 60.0)
        with projection.reading() as unit:
            jobs = {row.id: job_of(row, log, unit.failures_of(row)) for row in unit.listed(range(5), -1, 100)}
            return jobs, unit.enqueued_total, unit.ignored, unit.clock
    finally:
        projection.close()
        log.release()


def new(job_id: str, number: int, **fields):
    times = {"available_at": 100.0, "enqueued_at": 100.0, "last_error": None, "lease_deadline": None}
    return 1, {"id": job_id, "payload": number, "seq": number, "state": "ready", **times, **fields}


def test_of_two_jobs_with_one_id_the_last_one_counts(tmp_path):
    jobs, total, _, _ = folded(tmp_path, new("a", 1), new("b", 2), new("a", 3))
    assert [(job.id, job.payload) for job in jobs.values()] == [("b", 2), ("a", 3)]
    assert total == 3


def test_the_number_of_jobs_ever_is_read_off_their_numbers(tmp_path):
    assert folded(tmp_path, new("a", 41), new("b", 42))[1] == 42


def test_the_clock_of_the_queue_is_the_latest_time_of_an_enqueue(tmp_path):
    assert folded(tmp_path, new("a", 1, enqueued_at=300.0), new("b", 2, enqueued_at=200.0))[3] == 300.0


def test_a_copied_job_has_its_last_error(tmp_path):
    jobs, *_ = folded(tmp_path, new("a", 1, state="dead", attempts=5, last_error="why"))
    (error,) = jobs["a"].errors
    assert (error.message, error.attempt, jobs["a"].last_error, jobs["a"].state.value) == ("why", 5, "why", "dead")


def test_a_copied_lease_without_an_end_has_run_out(tmp_path):
    jobs, *_ = folded(tmp_path, new("a", 1, state="leased", lease_token="t"))
    assert (jobs["a"].state.value, jobs["a"].lease_deadline, jobs["a"].lease_token) == ("leased", 0.0, "t")


def test_a_reclaim_leaves_the_last_error_and_a_silent_nack_takes_it(tmp_path):
    lease = (2, {"id": "a", "at": 1, "deadline": 2, "attempts": 1, "token": "t"})
    nack = (4, {"id": "a", "at": 1, "attempts": 1, "available_at": 3, "error": "no"})
    history = [new("a", 1), lease, nack, lease, (5, {"id": "a", "at": 1, "available_at": 4})]
    jobs, *_ = folded(tmp_path / "1", *history)
    assert (jobs["a"].last_error, jobs["a"].available_at) == ("no", 4.0)
    silent = (4, {"id": "a", "at": 1, "attempts": 1, "available_at": 3, "error": None})
    jobs, *_ = folded(tmp_path / "2", *history, lease, silent)
    assert (jobs["a"].last_error, len(jobs["a"].errors)) == (None, 2)


def test_records_of_jobs_that_are_not_there_are_counted(tmp_path):
    records = [
        (kind, {"id": "x", "at": 1, "deadline": 2, "attempts": 1, "token": "t", "available_at": 1})
        for kind in (2, 3, 4, 5, 6, 7, 9)
    ]
    jobs, _, ignored, _ = folded(tmp_path, *records)
    assert (jobs, ignored) == ({}, 7)


def test_a_requeue_may_set_the_number_of_attempts(tmp_path):
    dead = new("a", 1, state="dead", attempts=5)
    jobs, *_ = folded(tmp_path, dead, (7, {"id": "a", "at": 1, "available_at": 7, "max_attempts": 9}))
    assert (jobs["a"].attempts, jobs["a"].max_attempts, jobs["a"].available_at) == (0, 9, 7.0)


# --- finding the log


def test_a_log_of_either_version_is_opened_for_reading(tmp_path, queue):
    files, layout = Files(), Layout.of(tmp_path, "default")
    old = write_log(tmp_path, [])
    log = open_log(files, old, 0)
    assert isinstance(log, OldLog)
    log.release()
    ours = open_log(files, queue.path, 1)
    assert type(ours) is Log
    ours.release()
    assert generation_without_pointer(files, layout) == 0


@pytest.mark.parametrize("generations", [[], [1], [0, 2], [0, 1, 2], [5]])
def test_other_logs_without_a_pointer_are_not_guessed_at(tmp_path, generations):
    for generation in generations:
        write_log(tmp_path, [], generation)
    assert generation_without_pointer(Files(), Layout.of(tmp_path, "default")) is None
