"""Pauses: exact growth, the cap before anything can overflow, the random share."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nobroker_django import BackoffPolicy, InvalidOptionError, NobrokerError

positive = st.floats(0, 1.7e308)


@pytest.mark.contract("RETRY-01")
@given(
    base=positive,
    factor=st.floats(1, 1.7e308),
    max_delay=positive,
    jitter=st.floats(0, 1),
    attempts=st.integers(-5, 10**6),
)
@settings(max_examples=500)
def test_any_pause_is_finite_not_negative_and_within_the_cap(base, factor, max_delay, jitter, attempts):
    policy = BackoffPolicy(base, factor, max_delay, jitter)
    for _ in range(3):
        delay = policy.delay_for(attempts)
        assert math.isfinite(delay)
        assert 0 <= delay <= max_delay


@pytest.mark.contract("RETRY-01")
@given(
    base=st.integers(0, 1000), factor=st.integers(1, 10), max_delay=st.integers(0, 10**9), attempts=st.integers(1, 400)
)
@settings(max_examples=300)
def test_without_jitter_the_pause_is_what_the_formula_says(base, factor, max_delay, attempts):
    exact = min(max_delay, base * factor ** (attempts - 1))
    assert BackoffPolicy(base, factor, max_delay, 0).delay_for(attempts) == pytest.approx(exact, rel=1e-9)


def test_the_random_share_is_the_jitter():
    class Fixed(random.Random):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def random(self):
            return self.value

    policy = BackoffPolicy(base=100, factor=2, max_delay=10_000, jitter=0.25)
    assert policy.delay_for(2, Fixed(0.0)) == 150
    assert policy.delay_for(2, Fixed(1.0)) == 200
    assert BackoffPolicy(100, 2, 10_000, 1).delay_for(1, Fixed(0.0)) == 0
    assert BackoffPolicy(100, 2, 10_000, 0).delay_for(1, Fixed(0.0)) == 100


def test_no_attempt_yet_is_no_pause():
    assert BackoffPolicy().delay_for(0) == 0


def test_extremes_do_not_overflow():
    assert BackoffPolicy(1e-300, 2.0, 1e300, 0).delay_for(1500) == pytest.approx(1e-300 * 2.0**750 * 2.0**749)
    assert BackoffPolicy(5e-324, 1.0000000000000002, 1.7e308, 0).delay_for(10**15) > 0
    assert BackoffPolicy(5, 1.7e308, 3600, 0).delay_for(10**9) == 3600


@pytest.mark.parametrize("field", ["base", "factor", "max_delay", "jitter"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, -0.001, "1", None, True, 10**400, [1]])
def test_values_that_make_no_sense_are_refused_by_name(field, value):
    with pytest.raises(InvalidOptionError) as refused:
        BackoffPolicy(**{field: value})
    assert refused.value.option == f"backoff.{field}"
    assert isinstance(refused.value, NobrokerError)


def test_a_factor_below_one_and_a_jitter_above_one_are_refused():
    for options in ({"factor": 0.5}, {"factor": 0}, {"jitter": 1.1}):
        with pytest.raises(InvalidOptionError):
            BackoffPolicy(**options)
