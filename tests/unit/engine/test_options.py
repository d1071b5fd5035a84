"""Options are checked by name before anything is written."""

import math

import pytest

from nobroker_django import BackoffPolicy, InvalidOptionError, Queue, Worker
from nobroker_django.engine import options


@pytest.mark.parametrize("value", [0, 0.0, 1, 1.5, 1e300])
def test_seconds_are_finite_and_not_negative(value):
    assert options.seconds("delay", value) == float(value)
    assert type(options.seconds("delay", value)) is float


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, "1", None, True, False, [1], 1j, 10**400])
def test_other_seconds_are_refused_by_name(value):
    with pytest.raises(InvalidOptionError, match=r"^patience: ") as refused:
        options.seconds("patience", value)
    assert refused.value.option == "patience"


def test_where_zero_makes_no_sense_it_is_refused():
    with pytest.raises(InvalidOptionError, match="more than 0"):
        options.seconds("visibility_timeout", 0, zero=False)
    assert options.seconds("visibility_timeout", 1e-9, zero=False) == 1e-9


def test_a_moment_lies_within_the_years_that_a_datetime_can_hold():
    """C83."""
    assert options.moment("delay", 100.0, 5.0) == 105.0
    assert options.moment("delay", 0.0, options.LAST_MOMENT) == options.LAST_MOMENT
    with pytest.raises(InvalidOptionError, match="9999"):
        options.moment("delay", 1.0, options.LAST_MOMENT)


@pytest.mark.parametrize("value", [1.0, "1", None, True, math.nan, -1, 2**31])
def test_whole_numbers_are_ints_within_their_range(value):
    with pytest.raises(InvalidOptionError):
        options.integer("count", value, least=0)
    assert options.integer("count", 0, least=0) == 0
    assert options.integer("count", 2**31 - 1, least=0) == 2**31 - 1


def test_a_job_id_is_text_of_1_to_200_characters_that_utf8_can_hold():
    for good in ("a", "x" * 200, "ü\x00\n", "../..", " "):
        assert options.job_id(good) == good
    for bad in ("", "x" * 201, None, 5, b"x", "\ud800", type("S", (str,), {})("x")):
        with pytest.raises(InvalidOptionError) as refused:
            options.job_id(bad)
        assert refused.value.option == "job_id"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("visibility_timeout", 0), ("visibility_timeout", math.nan), ("max_attempts", 0), ("max_attempts", 1.5),
        ("lock_timeout", 0), ("lock_timeout", "x"), ("retention", -1), ("retention", math.inf), ("retention", None),
        ("backoff", 3), ("file_mode", "600"), ("dir_mode", -1), ("name", "a/b"),
    ],
)  # fmt: skip
def test_a_queue_refuses_options_that_make_no_sense_and_creates_nothing(queue_dir, option, value):
    with pytest.raises(InvalidOptionError) as refused:
        Queue(queue_dir, **{option: value})
    assert refused.value.option == option
    assert not queue_dir.exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency", 0), ("concurrency", 1.5), ("poll_interval", 0), ("poll_interval", math.nan), ("max_jobs", -1),
        ("idle_timeout", -1), ("handler", "f"),
    ],
)  # fmt: skip
def test_a_worker_refuses_options_that_make_no_sense(queue, option, value):
    handler = {"handler": lambda job: None} | {option: value}
    with pytest.raises(InvalidOptionError) as refused:
        Worker(queue, **handler)
    assert refused.value.option == option


@pytest.mark.parametrize(
    "verb",
    [
        lambda queue: queue.lease(0), lambda queue: queue.lease(1.5), lambda queue: queue.lease(True),
        lambda queue: queue.lease(timeout=-1), lambda queue: queue.lease(timeout=math.nan),
        lambda queue: queue.lease(visibility_timeout=0), lambda queue: queue.list_jobs("waiting"),
        lambda queue: queue.list_jobs(limit=-1), lambda queue: queue.dlq(limit="x"), lambda queue: queue.get(5),
        lambda queue: queue.get(""), lambda queue: queue.ack(None), lambda queue: queue.requeue_dead(5),
        lambda queue: queue.enqueue_many([1], job_ids=[]), lambda queue: queue.enqueue_many([1], metas=[None, None]),
    ],
)  # fmt: skip
def test_every_verb_refuses_arguments_that_make_no_sense(queue, verb):
    with pytest.raises(InvalidOptionError):
        verb(queue)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("do not print me")


@pytest.mark.parametrize("option", ["delay", "priority", "max_attempts", "visibility_timeout", "job_id"])
@pytest.mark.parametrize("value", [10**5000, Unprintable()], ids=["too many digits to be shown", "repr raises"])
def test_a_value_that_cannot_be_shown_is_refused_by_name_as_well(queue, option, value):
    """C31, at the call."""
    with pytest.raises(InvalidOptionError) as refused:
        queue.enqueue(1, **{option: value})
    assert refused.value.option == option


def test_extend_and_nack_check_their_seconds_and_change_nothing(queue):
    queue.enqueue("x")
    job = queue.lease_one()
    for verb in (
        lambda: queue.extend(job, -1),
        lambda: queue.extend(job, math.inf),
        lambda: queue.nack(job, delay=-1),
        lambda: queue.nack(job, delay=1e12),
    ):
        with pytest.raises(InvalidOptionError):
            verb()
    queue.ack(job)


def test_no_payloads_are_no_jobs(queue):
    assert queue.enqueue_many([]) == []
    assert queue.ack_many([]) == []
    assert queue.release([]) == []


def test_the_defaults_are_the_documented_ones(queue):
    assert (queue.visibility_timeout, queue.max_attempts, queue.retention, queue.fsync) == (30.0, 5, 0.0, True)
    assert queue.backoff == BackoffPolicy(1.0, 2.0, 300.0, 0.5)
