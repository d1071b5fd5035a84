"""Replay of a log that lacks records: what is presumed, what is noted, and that nothing is revived or made up."""

import pytest

from nobroker_django.engine import lenient, records
from nobroker_django.engine.lenient import Losses
from nobroker_django.engine.records import (
    NULL,
    Ack,
    Dead,
    Enqueue,
    Extend,
    Lease,
    Nack,
    Note,
    Purge,
    Reclaim,
    Release,
    Requeue,
    Started,
)
from nobroker_django.engine.transitions import DEAD, DONE, DUE, LEASED, WAITING

from .memory import Memory

ENQUEUE = Enqueue(id="a", payload=NULL, enqueued_at=10.0, max_attempts=5)
LEASE = Lease(id="a", at=11.0, deadline=41.0, attempts=1, token="t1")
LATER = Lease(id="a", at=50.0, deadline=80.0, attempts=2, token="t2")
ACK = Ack(id="a", at=12.0, keep_until=99.0, token="t1")
DEATH = Dead(id="a", at=12.0, token="t1", attempts=1)
EXTEND = Extend(id="a", at=51.0, deadline=90.0, token="t2")
STARTED = Started(id="a", at=51.0, token="t2")
RELEASE = Release(id="a", at=51.0, token="t2")
NACK = Nack(id="a", at=51.0, token="t2", attempts=2, available_at=70.0)
RECLAIM = Reclaim(id="a", at=81.0, attempts=2)
REQUEUE = Requeue(id="a", at=60.0)
LATE_ACK = Ack(id="a", at=52.0, keep_until=99.0, token="t2")
LATE_DEATH = Dead(id="a", at=52.0, token="t2", attempts=4)
EVERYTHING = [LEASE, ACK, DEATH, EXTEND, STARTED, RELEASE, NACK, RECLAIM, REQUEUE, Note(id="a", at=1.0)]


def test_every_record_type_has_its_rule():
    """An OPEN tells of the log, a SNAPSHOT of the state before it: neither presupposes anything of a job."""
    assert {*lenient._TABLE, records.Open, records.Snapshot} == set(records._BUILT.values())


def replay(*made):
    state, losses = Memory(), Losses()
    for number, record in enumerate(made):
        losses.apply(state, record, 100 * (number + 1))
    return state, losses


@pytest.mark.parametrize(
    "records",
    [
        [ENQUEUE, LEASE, ACK],
        [ENQUEUE, LEASE, Nack(id="a", at=12.0, token="t1", attempts=1), LATER, STARTED, EXTEND, LATE_ACK],
        [ENQUEUE, LEASE, DEATH, REQUEUE, LATER, RELEASE],
        [ENQUEUE, LEASE, Reclaim(id="a", at=42.0, attempts=1), LATER, LATE_DEATH],
        [ENQUEUE, LEASE, ACK, ENQUEUE],
        [ENQUEUE, Note(id="a", at=1.0), Purge(at=1.0, ids=["a"]), ENQUEUE],
    ],
)
def test_where_nothing_is_missing_it_is_the_replay_that_it_always_is(records):
    from nobroker_django.engine.transitions import apply

    state, losses = replay(*records)
    plain = Memory()
    for number, record in enumerate(records):
        apply(plain, record, 100 * (number + 1))
    assert (state.rows, state.failures) == (plain.rows, plain.failures)
    assert (losses.lost, losses.changed) == ({}, [])


@pytest.mark.parametrize(
    ("records", "state", "attempts"),
    [
        ([ENQUEUE, ACK], DONE, 1),
        ([ENQUEUE, LEASE, LATE_ACK], DONE, 2),
        ([ENQUEUE, LEASE, DEATH, LATE_ACK], DONE, 1),
        ([ENQUEUE, LATE_DEATH], DEAD, 4),
        ([ENQUEUE, LEASE, LATER], LEASED, 2),
        ([ENQUEUE, LEASE, DEATH, LATER], LEASED, 2),
        ([ENQUEUE, EXTEND], LEASED, 1),
        ([ENQUEUE, LEASE, EXTEND], LEASED, 2),
        ([ENQUEUE, STARTED], DUE, 1),
        ([ENQUEUE, LEASE, STARTED], DUE, 2),
        ([ENQUEUE, RELEASE], DUE, 0),
        ([ENQUEUE, LEASE, RELEASE], DUE, 1),
        ([ENQUEUE, LEASE, DEATH, RELEASE], DUE, 0),
        ([ENQUEUE, NACK], WAITING, 2),
        ([ENQUEUE, RECLAIM], DUE, 2),
        ([ENQUEUE, LEASE, DEATH, NACK], WAITING, 2),
        ([ENQUEUE, REQUEUE], DUE, 0),
        ([ENQUEUE, LEASE, REQUEUE], DUE, 0),
    ],
)
def test_the_last_record_is_believed_and_the_missing_ones_are_noted(records, state, attempts):
    found, losses = replay(*records)
    row = found.rows["a"]
    assert (row.state, row.attempts) == (state, attempts)
    assert found.ignored == 0
    [changed] = losses.changed
    assert (changed.job_id, changed.offset) == ("a", 100 * len(records))
    assert losses.lost == {}
    assert (row.lease_token is None) == (state in (DUE, WAITING, DEAD))
    assert (row.lease_deadline is not None) == (state == LEASED)
    assert (row.finished_at is not None) == (state in (DONE, DEAD))


def test_a_lease_that_only_its_extension_tells_of_lasts_as_long_as_that_says():
    found, _ = replay(ENQUEUE, EXTEND)
    assert (found.rows["a"].lease_deadline, found.rows["a"].lease_token) == (90.0, "t2")


@pytest.mark.parametrize("record", EVERYTHING, ids=lambda record: type(record).__name__)
def test_a_job_whose_own_record_is_gone_is_named_and_not_made_up(record):
    found, losses = replay(record)
    assert found.rows == {}
    [lost] = losses.lost.values()
    assert (lost.job_id, lost.offset, lost.kind) == ("a", 100, type(record).__name__.upper())


@pytest.mark.parametrize("record", EVERYTHING, ids=lambda record: type(record).__name__)
def test_a_finished_job_stays_finished_whatever_a_later_one_of_its_id_did(record):
    found, losses = replay(ENQUEUE, LEASE, ACK, record)
    row = found.rows["a"]
    assert (row.state, row.result_offset, row.attempts) == (DONE, 300, 1)
    assert list(losses.lost) == ["a"]


def test_an_id_that_is_used_again_belongs_to_the_later_job():
    found, losses = replay(ENQUEUE, LEASE, Enqueue(id="a", payload=NULL, enqueued_at=20.0, max_attempts=9))
    assert (found.rows["a"].max_attempts, found.rows["a"].state) == (9, DUE)
    assert [changed.job_id for changed in losses.changed] == ["a"]


def test_what_was_purged_is_not_missed():
    assert replay(LEASE, Purge(at=1.0))[1].lost == {}
    found, losses = replay(LEASE, ENQUEUE, Purge(at=1.0, ids=["a", "b"]))
    assert (found.rows, losses.lost, found.ignored) == ({}, {}, 0)
    assert replay(LEASE, Purge(at=1.0, ids=["b"]))[1].lost.keys() == {"a"}


def test_a_job_that_is_enqueued_later_is_not_lost():
    assert replay(LEASE, ENQUEUE)[1].lost == {}


def test_jobs_of_the_records_behind_a_place_are_collected():
    state, losses = Memory(), Losses(watched_from=200)
    losses.apply(state, ENQUEUE, 100)
    assert losses.touched == []
    losses.apply(state, LEASE, 200)
    losses.apply(state, Purge(at=1.0, ids=["b"]), 300)
    assert losses.touched == ["a"]
