"""Outcomes are durable a few milliseconds after they were written, many of them by one sync."""

import io
import threading

import pytest

from nobroker_django.engine.errors import LockTimeoutError
from nobroker_django.queues import get_queue
from nobroker_django.worker import confirming
from nobroker_django.worker.confirming import Confirming
from nobroker_django.worker.console import Console

from .sample import add
from .test_clerk import make_worker, until

__all__ = ["make_worker"]
PATIENCE = 60.0


class Answer:
    """A queue's answer: what became of its promise."""

    def __init__(self, error=None):
        self.error = error
        self.dropped = False
        self.confirmed = threading.Event()

    def confirm(self):
        self.confirmed.set()
        if self.error is not None:
            raise self.error

    def drop(self):
        self.dropped = True


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that were made; the thread stays in one until ``go`` is set."""

    class Pauses(list):
        begun, go = threading.Event(), threading.Event()

        def sleep(self, seconds):
            self.append(seconds)
            self.begun.set()
            assert self.go.wait(PATIENCE)

    made = Pauses()
    made.begun, made.go = threading.Event(), threading.Event()
    monkeypatch.setattr(confirming, "time", made)
    yield made
    made.go.set()


def started():
    stream = io.StringIO()
    thread = Confirming(Console(stream, prefix="test"))
    thread.start()
    return thread, stream


def test_what_comes_in_a_pause_of_less_than_ten_milliseconds_is_synced_together(pauses):
    thread, _ = started()
    first, last, other = Answer(), Answer(), Answer()
    thread.add("default", first)
    assert pauses.begun.wait(PATIENCE)
    thread.add("default", last)  # covers the one before
    thread.add("second", other)
    assert first.dropped
    assert not last.confirmed.is_set()
    pauses.go.set()
    thread.wait(PATIENCE)
    assert last.confirmed.is_set()
    assert other.confirmed.is_set()
    assert not first.confirmed.is_set()
    assert 0 < pauses[0] < 0.01


def test_who_waits_waits_until_everything_is_durable(pauses):
    thread, _ = started()
    answer = Answer()
    thread.add("default", answer)
    waited = threading.Thread(target=thread.wait, args=(PATIENCE,))
    waited.start()
    assert pauses.begun.wait(PATIENCE)
    assert waited.is_alive()
    pauses.go.set()
    waited.join(PATIENCE)
    assert answer.confirmed.is_set()


def test_what_is_not_known_to_be_durable_is_said_and_the_next_is_confirmed(pauses):
    pauses.go.set()
    thread, stream = started()
    thread.add("default", Answer(LockTimeoutError("busy", path="/q", seconds=1.0)))
    thread.wait(PATIENCE)
    assert "default: the last outcomes may not survive a loss of power: " in stream.getvalue()
    good = Answer()
    thread.add("default", good)
    thread.wait(PATIENCE)
    assert good.confirmed.is_set()


@pytest.mark.contract("LEASE-07")
def test_an_outcome_becomes_durable_without_anything_that_follows_it(make_worker):
    worker = make_worker()
    worker.clerk.start()
    result = add.enqueue(1)
    until(lambda: get_queue().get(result.id).state == "done")
    until(lambda: get_queue()._session.unsynced_end() is None)
