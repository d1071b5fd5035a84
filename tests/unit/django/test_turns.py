"""Whose turn it is among the queues of a worker process."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from nobroker_django.worker.turns import Turns
from tests.contract.helpers import FakeClock

A, B, C = (Mock(name=name) for name in "ABC")


@pytest.fixture
def seconds(monkeypatch):
    clock = FakeClock(100.0)
    monkeypatch.setattr("nobroker_django.worker.turns.time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def line(seconds):
    return Turns([A, B, C])


def test_the_next_in_line_comes_first_after_a_queue_that_had_jobs(line):
    assert line.now() == [A, B, C]
    line.answered(A, had_jobs=False)
    assert line.now() == [A, B, C]
    line.answered(A, had_jobs=True)
    assert line.now() == [B, C, A]
    line.answered(C, had_jobs=True)
    assert line.now() == [A, B, C]


def test_a_queue_that_fails_rests_longer_each_time_until_it_answers(line, seconds):
    rests = []
    for _ in range(7):
        rests.append(line.failed(B))
        assert line.now() == [A, C]
        assert line.resting
        seconds.advance(rests[-1])
        assert line.now() == [A, B, C]
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert line.resting
    line.answered(B, had_jobs=False)
    assert not line.resting
    assert line.failed(B) == 0.5


@pytest.mark.parametrize("served", [A, B, C])
@pytest.mark.parametrize("dropped", [A, B, C])
def test_a_queue_that_is_dropped_leaves_the_order_of_the_others(line, served, dropped):
    line.answered(served, had_jobs=True)
    rest = [queue for queue in line.now() if queue is not dropped]
    line.drop(dropped)
    assert line.now() == rest
    assert line
    for queue in rest:
        line.drop(queue)
    assert not line
    assert line.now() == []
