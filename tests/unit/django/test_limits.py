"""Time limits as options of queues and tasks."""

from datetime import timedelta

import pytest

from nobroker_django import InvalidOptionError, SoftTimeLimitExceeded, registry, task
from nobroker_django.conf import QueueSettings
from nobroker_django.limits import Limits, limits_of


@pytest.fixture
def limited():
    """A task with these limits, forgotten after the test."""
    made = []

    def make(**options):
        made.append(task(name="limited", **options)(lambda: None))
        return made[-1]

    yield make
    for one in made:
        registry.unregister(one)


def test_a_task_without_limits_has_those_of_the_queue(limited):
    assert limits_of(limited(), QueueSettings()) == Limits(None, None)
    assert limits_of(limited(), QueueSettings(soft_time_limit=20, time_limit=30)) == Limits(20, 30)


def test_each_limit_of_the_task_comes_before_that_of_the_queue(limited):
    queue = QueueSettings(soft_time_limit=20, time_limit=30)
    assert limits_of(limited(soft_time_limit=5), queue) == Limits(5, 30)
    assert limits_of(limited(time_limit=timedelta(minutes=5)), queue) == Limits(20, 300)
    assert limits_of(limited(soft_time_limit=timedelta(minutes=1), time_limit=70.5), queue) == Limits(60, 70.5)


def test_copies_with_other_options_keep_the_limits(limited):
    assert limits_of(limited(time_limit=5).using(priority=1), QueueSettings()) == Limits(None, 5)


def test_a_soft_limit_that_could_never_be_reached_is_none(limited):
    queue = QueueSettings(soft_time_limit=20, time_limit=30)
    assert limits_of(limited(soft_time_limit=30), queue) == Limits(None, 30)
    assert limits_of(limited(time_limit=20), queue) == Limits(None, 20)


@pytest.mark.parametrize("option", ["soft_time_limit", "time_limit"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", True, timedelta(0), timedelta(days=-1)])
def test_a_wrong_limit_is_refused_by_name(limited, option, value):
    with pytest.raises(InvalidOptionError, match=f"^{option}") as raised:
        limited(**{option: value})
    assert raised.value.option == option


@pytest.mark.parametrize("soft", [30, 31])
def test_a_soft_limit_that_is_not_below_the_hard_one_is_refused_naming_both(limited, soft):
    with pytest.raises(InvalidOptionError, match=rf"^soft_time_limit.*time_limit \(30 s\), not {soft} s"):
        limited(soft_time_limit=soft, time_limit=30)


def test_the_exception_is_swallowed_by_no_except_exception_and_says_its_limit():
    assert not issubclass(SoftTimeLimitExceeded, Exception)
    assert str(SoftTimeLimitExceeded(2.5)) == "soft time limit of 2.5 s"
    assert SoftTimeLimitExceeded(2.5).seconds == 2.5
    assert str(SoftTimeLimitExceeded()) == "soft time limit"
