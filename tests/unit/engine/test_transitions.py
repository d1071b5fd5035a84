"""The transition table, record by record: what each changes, and that what does not fit changes nothing."""

import pytest

from nobroker_django.engine.records import (
    NULL,
    Ack,
    Dead,
    Enqueue,
    Extend,
    Lease,
    Nack,
    Note,
    Open,
    Purge,
    Reclaim,
    Release,
    Requeue,
    Snapshot,
    Started,
)
from nobroker_django.engine.transitions import DEAD, DONE, DUE, LEASED, WAITING, apply

from .memory import Memory

ENQUEUE = Enqueue(id="a", payload=NULL, enqueued_at=10.0, max_attempts=5)
LEASE = Lease(id="a", at=11.0, deadline=41.0, attempts=1, token="t1")


def state_after(*records):
    state = Memory()
    for offset, record in enumerate(records, 100):
        apply(state, record, offset)
    return state


def row_after(*records):
    return state_after(*records).rows["a"]


def test_enqueue_makes_a_due_job_with_its_place_in_the_order():
    row = row_after(ENQUEUE)
    assert (row.state, row.seq, row.rank, row.available_at, row.attempts, row.payload_offset) == (
        DUE,
        100,
        10.0,
        10.0,
        0,
        100,
    )


def test_a_delayed_job_waits_and_ranks_by_its_time():
    row = row_after(Enqueue(id="a", payload=NULL, enqueued_at=10.0, max_attempts=5, available_at=99.0))
    assert (row.state, row.rank, row.available_at) == (WAITING, 99.0, 99.0)


def test_a_clock_set_back_gives_no_lower_rank():
    state = state_after(ENQUEUE, Enqueue(id="b", payload=NULL, enqueued_at=3.0, max_attempts=5))
    assert state.rows["b"].rank == 10.0
    assert state.clock == 10.0


def test_a_lease_counts_the_attempt_at_once():
    row = row_after(ENQUEUE, LEASE)
    assert (row.state, row.attempts, row.lease_token, row.lease_deadline) == (LEASED, 1, "t1", 41.0)


def test_extend_started_and_release():
    row = row_after(
        ENQUEUE, LEASE, Extend(id="a", at=12.0, deadline=99.0, token="t1"), Started(id="a", at=12.0, token="t1")
    )
    assert (row.lease_deadline, row.started_at is not None) == (99.0, True)
    row = row_after(ENQUEUE, LEASE, Release(id="a", at=12.0, token="t1"))
    assert (row.state, row.attempts, row.lease_token, row.lease_deadline, row.rank) == (DUE, 0, None, None, 10.0)


def test_ack_keeps_the_token_for_a_retried_ack():
    row = row_after(ENQUEUE, LEASE, Ack(id="a", at=12.0, keep_until=20.0, token="t1"))
    assert (row.state, row.finished_at, row.keep_until, row.lease_token, row.result_offset) == (
        DONE,
        12.0,
        20.0,
        "t1",
        102,
    )
    assert row.lease_deadline is None


@pytest.mark.parametrize("kind", [Nack, Reclaim])
def test_a_failed_attempt_waits_for_its_time_or_is_due_at_once(kind):
    row = row_after(ENQUEUE, LEASE, kind(id="a", at=12.0, attempts=1, available_at=50.0))
    assert (row.state, row.available_at, row.rank, row.attempts, row.failures, row.lease_token) == (
        WAITING,
        50.0,
        50.0,
        1,
        1,
        None,
    )
    row = row_after(ENQUEUE, LEASE, kind(id="a", at=12.0, attempts=1))
    assert (row.state, row.available_at, row.rank) == (DUE, 12.0, 12.0)


def test_dead_and_requeue():
    row = row_after(ENQUEUE, LEASE, Dead(id="a", at=12.0, attempts=1))
    assert (row.state, row.finished_at, row.failures, row.attempts) == (DEAD, 12.0, 1, 1)
    row = row_after(ENQUEUE, LEASE, Dead(id="a", at=12.0, attempts=1), Requeue(id="a", at=13.0))
    assert (row.state, row.attempts, row.finished_at, row.rank) == (DUE, 0, None, 13.0)


@pytest.mark.contract("LEASE-08")
@pytest.mark.parametrize(
    "end", [Ack(id="a", at=12.0, keep_until=20.0, token="t1"), Dead(id="a", at=12.0, attempts=1, token="t1")]
)
@pytest.mark.parametrize(
    "late",
    [
        ENQUEUE, LEASE, Extend(id="a", at=13.0, deadline=99.0), Started(id="a", at=13.0, token="t1"),
        Release(id="a", at=13.0, token="t1"), Ack(id="a", at=13.0, keep_until=99.0), Nack(id="a", at=13.0),
        Reclaim(id="a", at=13.0), Dead(id="a", at=13.0), Requeue(id="a", at=13.0),
    ],
    ids=lambda record: type(record).__name__,
)  # fmt: skip
def test_no_record_leaves_done_and_only_a_requeue_leaves_dead(end, late):
    before = vars_of(row_after(ENQUEUE, LEASE, end))
    state = state_after(ENQUEUE, LEASE, end, late)
    allowed = (type(end) is Dead and type(late) is Requeue) or (type(end) is Ack and type(late) is Enqueue)
    assert (vars_of(state.rows["a"]) == before) == (not allowed)
    assert state.ignored == (not allowed)


def vars_of(row):
    return {name: getattr(row, name) for name in row.__slots__}


@pytest.mark.contract("LEASE-03")
@pytest.mark.parametrize(
    "stale",
    [
        Extend(id="a", at=13.0, deadline=99.0, token="t0"), Started(id="a", at=13.0, token="t0"),
        Release(id="a", at=13.0, token="t0"), Ack(id="a", at=13.0, keep_until=99.0, token="t0"),
        Nack(id="a", at=13.0, token="t0"), Dead(id="a", at=13.0, token="t0"),
    ],
    ids=lambda record: type(record).__name__,
)  # fmt: skip
def test_a_record_with_another_token_changes_nothing(stale):
    state = state_after(ENQUEUE, LEASE, stale)
    assert vars_of(state.rows["a"]) == vars_of(row_after(ENQUEUE, LEASE))
    assert (state.ignored, state.failures) == (1, [])


@pytest.mark.parametrize(
    "record",
    [
        LEASE, Extend(id="a", at=1.0, deadline=2.0), Ack(id="a", at=1.0, keep_until=2.0), Nack(id="a", at=1.0),
        Dead(id="a", at=1.0), Requeue(id="a", at=1.0), Note(id="a", at=1.0), Release(id="a", at=1.0, token="t"),
    ],
    ids=lambda record: type(record).__name__,
)  # fmt: skip
def test_a_record_of_a_job_that_is_not_there_changes_nothing(record):
    state = state_after(record)
    assert (state.rows, state.ignored) == ({}, 1)


def test_a_second_enqueue_of_a_living_id_is_ignored_and_of_a_done_one_replaces_it():
    state = state_after(ENQUEUE, ENQUEUE)
    assert (state.rows["a"].seq, state.enqueued_total, state.ignored) == (100, 1, 1)
    state = state_after(ENQUEUE, LEASE, Ack(id="a", at=12.0, keep_until=12.0), ENQUEUE)
    assert (state.rows["a"].seq, state.rows["a"].state, state.enqueued_total) == (103, DUE, 2)


@pytest.mark.parametrize(("name", "number"), [("ready", WAITING), ("due", DUE), ("leased", LEASED), ("dead", DEAD)])
def test_a_copied_job_keeps_place_state_and_count(name, number):
    copy = Enqueue(
        id="a", payload=NULL, enqueued_at=1.0, max_attempts=5, seq=7, state=name, attempts=3, rank=2.5,
        available_at=3.5, lease_deadline=9.0, lease_token="t", started_at=7.0, holder="h", extensions=2, deaths=1,
        finished_at=8.0,
    )  # fmt: skip
    state = state_after(
        Snapshot(log_id="1", at=5.0, base=1000, open=40, clock=4.0, enqueued_total=12, ignored=2), copy
    )
    row = state.rows["a"]
    assert (row.state, row.seq, row.rank, row.available_at, row.attempts) == (number, 7, 2.5, 3.5, 3)
    assert (row.lease_deadline, row.lease_token, row.started_at, row.finished_at) == (9.0, "t", 7.0, 8.0)
    assert (row.holder, row.extensions, row.deaths) == ("h", 2, 1)
    assert (state.enqueued_total, state.ignored, state.clock, state.open_seq, state.base) == (12, 2, 4.0, 40, 1000)


def test_seq_counts_from_the_base_of_the_generation_and_open_sets_the_origin_of_tokens():
    state = state_after(Snapshot(log_id="1", at=5.0, base=1000), ENQUEUE, Open(at=6.0))
    assert (state.rows["a"].seq, state.open_seq) == (1101, 1102)


def test_a_purge_forgets_every_job_and_keeps_the_total():
    state = state_after(ENQUEUE, LEASE, Purge(at=12.0))
    assert (state.rows, state.enqueued_total) == ({}, 1)


def test_a_purge_of_some_ids_forgets_these():
    state = state_after(
        ENQUEUE, Enqueue(id="b", payload=NULL, enqueued_at=10.0, max_attempts=5), Purge(at=12.0, ids=["a", "x"])
    )
    assert (list(state.rows), state.ignored) == (["b"], 1)


def test_a_note_adds_a_failure_and_changes_no_state():
    state = state_after(ENQUEUE, Note(id="a", at=1.0, attempts=1, error="x"))
    assert (state.rows["a"].state, state.rows["a"].failures, state.failures) == (DUE, 1, [("a", 101)])
