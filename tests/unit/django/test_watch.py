"""What the supervisor does for those of its processes that wait: it looks, and tells them."""

import io
import os

import pytest

from nobroker_django.engine import bell
from nobroker_django.engine.errors import CorruptLogError, LockTimeoutError
from nobroker_django.engine.worker_queue import WorkerQueue
from nobroker_django.queues import get_queue
from nobroker_django.worker import watch as watching
from nobroker_django.worker.console import Console
from nobroker_django.worker.desk import Desk
from nobroker_django.worker.tally import Tally
from nobroker_django.worker.waiting import Waiting
from nobroker_django.worker.watch import Watch

from .sample import add


@pytest.fixture
def waiting():
    return Waiting(3, ["default"])


@pytest.fixture
def look(monkeypatch, waiting):
    """Whom the supervisor tells to look."""
    monkeypatch.setattr(watching, "IDLE_SECONDS", 0.0)  # it is always time
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.0)
    get_queue()
    watch = Watch(["default"], waiting, Console(io.StringIO(), prefix="test"))
    yield lambda: watch.look(dict)
    watch.close()


@pytest.fixture
def deaf(monkeypatch):
    """Nobody hears a bell."""
    monkeypatch.setattr(bell.Bell, "ring", lambda self: None)


# -- who waits


def test_forked_processes_say_that_they_wait_and_their_supervisor_reads_it():
    waiting = Waiting(2, ["first", "second"])
    pid = os.fork()
    if pid == 0:
        waiting.say(2, "second", True)
        os._exit(0)
    os.waitpid(pid, 0)
    assert [waiting.anybody(name) for name in ("first", "second")] == [False, True]
    waiting.say(1, "second", True)
    assert waiting.take("second") == [1, 2]
    assert waiting.take("second") == []


def test_of_a_process_that_has_ended_nothing_is_known():
    waiting = Waiting(2, ["first", "second"])
    for name in ("first", "second"):
        waiting.say(1, name, True)
        waiting.say(2, name, True)
    waiting.forget(1)
    assert waiting.take("first") == waiting.take("second") == [2]


# -- whom the supervisor tells


@pytest.mark.contract("WORK-05")
def test_what_was_written_unheard_is_told_to_all_that_wait_once(look, waiting, deaf):
    look()
    waiting.say(1, "default", True)
    waiting.say(3, "default", True)
    look()  # of the bell that it has not seen yet
    for number in (1, 3):
        waiting.say(number, "default", True)
    assert look() == set()
    add.enqueue(1)
    assert look() == {1, 3}
    assert look() == set()


def test_the_word_that_somebody_listens_is_kept_for_those_who_wait_and_for_nobody_else(look, waiting):
    look()
    assert get_queue()._session._words().listening == 0
    waiting.say(2, "default", True)
    look()
    first = get_queue()._session._words().listening
    assert first > 0
    get_queue()._session._lock_file.control.set_listening(1)  # as if it had run out
    look()
    waiting.say(2, "default", True)
    look()
    assert get_queue()._session._words().listening >= first


def test_a_look_while_nothing_happens_asks_the_system_for_one_thing(look, waiting, monkeypatch):
    look()
    waiting.say(1, "default", True)
    look()
    waiting.say(1, "default", True)
    look()
    files = type(get_queue()._files)
    calls = []
    with monkeypatch.context() as patch:
        for name in ("pread", "path_identity", "pwrite", "flock", "lock_byte", "byte_is_free"):
            real = getattr(files, name)
            patch.setattr(
                files,
                name,
                lambda self, *args, _real=real, _name=name, **named: (
                    calls.append(_name) or _real(self, *args, **named)
                ),
            )
        look()
    assert calls == ["pread"]


def test_another_bell_than_before_is_told(look, waiting, queue_dir):
    look()
    waiting.say(1, "default", True)
    look()
    waiting.say(1, "default", True)
    assert look() == set()
    with get_queue()._session.listen():  # as the one that waits has it open
        os.unlink(queue_dir / "default.run" / "bell")
        get_queue()._session._lock_file.control.set_listening(0)
        assert look() == {1}


def test_those_who_wait_look_themselves_when_the_clock_was_set(look, waiting, monkeypatch):
    """A job may be due before they expect it."""
    look()
    waiting.say(1, "default", True)
    look()
    waiting.say(1, "default", True)
    ahead = watching._wall_ahead()
    monkeypatch.setattr(watching, "_wall_ahead", lambda: ahead + 0.4)
    assert look() == set()
    monkeypatch.setattr(watching, "_wall_ahead", lambda: ahead + 1.0)
    assert look() == {1}


def test_those_who_wait_look_themselves_while_the_supervisor_cannot(look, waiting, monkeypatch):
    def busy(self, **asked):
        raise LockTimeoutError("busy", path="/q", seconds=1.0)

    look()
    with monkeypatch.context() as patch:
        patch.setattr(WorkerQueue, "listen", busy)
        for _ in range(2):
            waiting.say(1, "default", True)
            assert look() == {1}


def test_a_damaged_queue_is_told_of_once(look, waiting, monkeypatch):
    def rotten(self, **asked):
        raise CorruptLogError("/q/log", 77, "rotten")

    look()
    monkeypatch.setattr(WorkerQueue, "listen", rotten)
    waiting.say(1, "default", True)
    assert look() == {1}
    waiting.say(1, "default", True)
    assert look() == set()


# -- what a process says


@pytest.fixture
def desk(waiting):
    console = Console(io.StringIO(), prefix="test")
    made = Desk(get_queue(), "nobody", console, Tally(console), lambda waits: waiting.say(1, "default", waits))
    yield made
    made.deaf()


def test_a_process_says_that_it_waits_before_it_looks_for_the_last_time(desk, waiting, monkeypatch):
    """What is written after that is seen by its supervisor, what is written before by itself."""
    real = WorkerQueue.listen

    def listen(self, **asked):
        assert waiting.anybody("default")
        return real(self, **asked)

    monkeypatch.setattr(WorkerQueue, "listen", listen)
    desk.exchange(count=1)
    assert desk.listen()
    assert waiting.anybody("default")
    desk.does_not_wait()
    assert not waiting.anybody("default")
    add.enqueue(1)
    assert not desk.listen()


def test_a_process_that_was_told_says_again_that_it_waits(desk, waiting, deaf):
    desk.exchange(count=1)
    assert desk.listen()
    add.enqueue(1)
    assert waiting.take("default") == [1]
    desk.told()
    assert desk.more
    assert not waiting.anybody("default")
    desk.exchange(count=5)
    assert desk.listen()
    assert waiting.anybody("default")


def test_a_process_with_enough_to_do_does_not_wait(desk, waiting):
    desk.exchange(count=1)
    desk.listen()
    for number in range(3):
        add.enqueue(number)
    desk.exchange(count=1)
    assert not waiting.anybody("default")


# -- what the supervisor syncs


@pytest.mark.contract("LEASE-07")
def test_the_beginning_of_a_job_that_nobody_has_synced_is_on_the_disk_a_second_later(look, monkeypatch):
    """The job may bring the machine down."""
    real = WorkerQueue.sync_older
    ages = []
    monkeypatch.setattr(WorkerQueue, "sync_older", lambda self, seconds: ages.append(seconds) or real(self, 0.0))
    look()
    add.enqueue(1)
    get_queue().exchange(count=1, begin=1, holder="somebody").drop()
    assert get_queue()._session.unsynced_end() is not None
    look()  # it sees it
    look()  # and nothing has happened since
    assert get_queue()._session.unsynced_end() is None
    assert set(ages) == {1.0}
