"""The bell: who rings, who is woken, what is never waited for, and what becomes of it when the FIFO is not there."""

import errno
import os
import stat
import threading

import pytest

from nobroker_django import BackoffPolicy, Queue, QueueClosedError
from nobroker_django.engine import bell, leasing
from nobroker_django.engine.files import Files
from tests.support.faulty import Call, Failing, Hooked, Recorder

AT_ONCE = BackoffPolicy(base=0)
BELL_CALLS = {"make_fifo", "is_fifo", "put_byte", "read", "wait_readable"}


class Waits(Recorder):
    """Instead of waiting, ``during`` runs; without it nothing comes, and no time passes."""

    def __init__(self, during=None):
        super().__init__()
        self.during = during
        self.waits = []

    def wait_readable(self, fds, seconds):
        self.waits.append(seconds)
        if self.during is not None:
            self.during()
        return Files.wait_readable(self, fds, 0.0)


@pytest.fixture
def no_safety(monkeypatch):
    """Nobody looks without being told, so that what is not rung for is missed."""
    monkeypatch.setattr(bell, "SAFETY_SECONDS", 1000.0)
    monkeypatch.setattr(bell, "LISTENING_SECONDS", 3000.0)
    monkeypatch.setattr(leasing, "_LONGEST_WAIT_SECONDS", 1000.0)


def fifo(queue_dir):
    return queue_dir / "default.run" / "bell"


def rung(queue):
    """How many bytes came since the last time; from now on somebody listens."""
    with queue._session.listen() as listening:
        fd = listening.fd
        return len(os.read(fd, 1000)) if Files().wait_readable([fd], 0.0) else 0


# --- who rings


def test_what_may_make_a_job_leasable_rings_and_nothing_else_does(open_queue, clock):
    listener, queue = open_queue(), open_queue(backoff=AT_ONCE, visibility_timeout=10)
    assert rung(listener) == 0

    def after(act):
        act()
        return rung(listener)

    assert after(lambda: queue.enqueue("a")) == 1
    assert after(lambda: queue.enqueue_many(["b", "c", "d", "e"])) == 1
    assert after(lambda: queue.enqueue("later", delay=1000)) == 1
    assert after(lambda: queue.enqueue_many(["later"], delay=2000)) == 1
    assert after(lambda: queue.enqueue("known", job_id="known", delay=1000)) == 1
    assert after(lambda: queue.enqueue("known", job_id="known")) == 0
    assert after(queue.stats) == 0
    jobs = []
    assert after(lambda: jobs.extend(queue.lease(1))) == 1  # it leaves four behind
    assert after(lambda: jobs.extend(queue.lease(4))) == 0  # it leaves none
    assert after(lambda: queue.extend(jobs[0], 5)) == 0
    assert after(lambda: queue.ack(jobs[0])) == 0
    assert after(lambda: queue.nack(jobs[1])) == 1
    assert after(lambda: queue.release([jobs[2]])) == 1
    assert after(lambda: queue.bury(jobs[3])) == 0
    assert after(lambda: queue.requeue_dead()) == 1
    assert after(lambda: queue.bury(jobs[4])) == 0
    assert after(lambda: queue.requeue_dead(jobs[4].id)) == 1
    assert len(queue.lease(10)) == 4
    assert rung(listener) == 0
    clock.advance(10)
    rung(listener)
    assert after(lambda: queue.lease(1)) == 1  # it takes back all four
    assert after(queue.purge) == 0


def test_a_lease_that_finds_nothing_but_took_one_back_rings_for_the_new_time(open_queue, clock):
    listener, queue = open_queue(), open_queue(backoff=BackoffPolicy(base=100), visibility_timeout=10)
    queue.enqueue("a")
    queue.lease()
    clock.advance(10)
    rung(listener)
    assert queue.lease() == []
    assert rung(listener) == 1


def test_a_queue_that_is_not_durable_rings_as_well(open_queue):
    listener, queue = open_queue(), open_queue(fsync=False)
    rung(listener)
    queue.enqueue("a")
    assert rung(listener) == 1
    queue.nack(queue.lease_one(), delay=5)
    assert rung(listener) == 1


def test_it_is_rung_before_the_sync(open_queue):
    listener, files, seen = open_queue(), Hooked(), []
    queue = open_queue(files=files)
    rung(listener)
    files.hook = lambda call: seen.append(rung(listener)) if call.kind == "datasync" else None
    queue.enqueue("a")
    assert seen == [1]


def test_nobody_listens_so_nothing_is_asked_of_the_system(open_queue, clock):
    files = Recorder()
    queue, listener = open_queue(files=files), open_queue()
    before = _calls_of(files, lambda: queue.enqueue("a"))
    rung(listener)
    assert {"put_byte"} <= {call.kind for call in _calls_of(files, lambda: queue.enqueue("b"))}
    clock.advance(bell.LISTENING_SECONDS + 0.001)
    assert [call.kind for call in _calls_of(files, lambda: queue.enqueue("c"))] == [call.kind for call in before]
    assert not [call for call in before if call.kind in BELL_CALLS or call.path.endswith("bell")]


def _calls_of(files, act):
    files.calls.clear()
    act()
    return list(files.calls)


# --- who is woken


def test_a_byte_that_came_between_the_word_and_the_wait_is_not_missed(open_queue, no_safety):
    producer = open_queue()
    files = Waits(lambda: producer.enqueue("x"))
    assert open_queue(files=files).lease_one(timeout=60).payload == "x"
    assert len(files.waits) == 1


def test_work_that_came_before_the_word_is_seen_at_once(open_queue, monkeypatch, no_safety):
    producer, files = open_queue(), Waits()
    queue = open_queue(files=files)
    listen = queue._session.listen
    monkeypatch.setattr(queue._session, "listen", lambda: (producer.enqueue("x"), listen())[1])
    assert queue.lease_one(timeout=60).payload == "x"
    assert files.waits == []


def test_who_waits_sleeps_until_the_next_job_is_due(open_queue, clock, no_safety):
    queue = open_queue(files=(files := Waits(lambda: clock.advance(7))))
    queue.enqueue("later", delay=7)
    assert queue.lease_one(timeout=60).payload == "later"
    assert files.waits == [pytest.approx(7, abs=0.01)]


def test_who_finds_the_byte_gone_waits_on(open_queue, no_safety):
    producer, waits = open_queue(), []

    class Overtaken(Recorder):
        def wait_readable(self, fds, seconds):
            waits.append(seconds)
            producer.enqueue("x")
            ready = Files.wait_readable(self, fds, seconds)
            if len(waits) == 1:
                assert rung(producer) == 1
                producer.ack(producer.lease_one())
            return ready

    queue = open_queue(files=(files := Overtaken()))
    files.calls.clear()
    assert queue.lease_one(timeout=60).payload == "x"
    assert len(waits) == 2
    assert files.kinds().count("flock") == 2  # before the wait, and after it


def test_a_lease_that_runs_out_of_time_leaves_the_byte_to_others(open_queue):
    queue, other = open_queue(), open_queue()
    rung(other)
    assert queue.lease(timeout=0.001) == []
    queue._session.bell.ring()
    assert queue.lease() == []
    assert rung(other) == 1


def test_a_thread_that_waits_is_told_when_the_queue_is_closed(open_queue, no_safety):
    waiting, errors = threading.Event(), []

    class Told(Files):
        def wait_readable(self, fds, seconds):
            waiting.set()
            return Files.wait_readable(self, fds, seconds)

    queue = open_queue(files=Told())

    def wait():
        try:
            queue.lease(timeout=600)
        except QueueClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waiting.wait(60)
    queue.close()
    thread.join(60)
    assert len(errors) == 1


# --- the word


def test_the_word_is_written_rarely_and_shared(open_queue, clock):
    files = Recorder()
    queue, other = open_queue(files=files), open_queue()
    rung(other)
    clock.advance(bell.SAFETY_SECONDS)
    assert not [call for call in _calls_of(files, lambda: queue._session.listen().release()) if call.kind == "pwrite"]
    clock.advance(bell.LISTENING_SECONDS - 2 * bell.SAFETY_SECONDS)
    assert [call.kind for call in _calls_of(files, lambda: queue._session.listen().release())].count("pwrite") == 1
    assert queue._session._words().listening == int((clock() + bell.LISTENING_SECONDS) * 1000)


def test_a_word_from_the_future_is_mended(open_queue, clock):
    queue = open_queue()
    clock.advance(10_000)
    rung(queue)
    clock.now -= 10_000
    rung(queue)
    assert queue._session._words().listening == int((clock() + bell.LISTENING_SECONDS) * 1000)


def test_an_idle_listener_makes_few_calls_between_two_waits(open_queue, clock):
    class Idle(Waits):
        def wait_readable(self, fds, seconds):
            assert seconds == pytest.approx(bell.SAFETY_SECONDS, abs=0.05)
            clock.advance(seconds)
            self.rounds = getattr(self, "rounds", 0) + 1
            if self.rounds == 100:
                queue._session._closed = True
            return []

    queue = open_queue(files=(files := Idle()))
    queue.lease()
    rung(queue)
    files.calls.clear()
    with pytest.raises(QueueClosedError):
        queue.lease(timeout=1000)
    calls = list(files.calls)
    queue._session._closed = False
    assert files.rounds == 100
    assert len(calls) <= 8 * files.rounds


# --- the FIFO


@pytest.mark.parametrize(("file_mode", "dir_mode"), [(0o600, 0o700), (0o660, 0o770)])
def test_it_has_the_modes_of_the_queue_whatever_the_umask(open_queue, queue_dir, file_mode, dir_mode):
    before = os.umask(0o077)
    try:
        rung(open_queue(file_mode=file_mode, dir_mode=dir_mode))
    finally:
        os.umask(before)
    mode = os.stat(fifo(queue_dir)).st_mode
    assert stat.S_ISFIFO(mode)
    assert stat.S_IMODE(mode) == file_mode
    assert stat.S_IMODE(os.stat(fifo(queue_dir).parent).st_mode) == dir_mode


def test_looking_makes_none_and_says_nothing(open_queue, queue_dir):
    open_queue().enqueue("a")
    with Queue(queue_dir, read_only=True) as queue:
        queue.stats()
        queue.list_jobs()
    assert not fifo(queue_dir).exists()
    assert open_queue()._session._words().listening == 0


@pytest.mark.parametrize("what", ["a file", "a link to a FIFO", "a directory"])
def test_what_is_no_fifo_is_left_alone_and_waiting_is_polling(open_queue, queue_dir, tmp_path, what):
    queue, producer = open_queue(), open_queue()
    queue.lease()
    path = fifo(queue_dir)
    if what == "a file":
        path.write_bytes(b"precious")
    elif what == "a directory":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    with queue._session.listen() as listening:
        assert listening.fd is None
    queue._session.bell.ring()
    found = []
    thread = threading.Thread(target=lambda: found.extend(queue.lease(timeout=60)))
    thread.start()
    producer.enqueue("x")
    thread.join(60)
    assert [job.payload for job in found] == ["x"]
    if what == "a file":
        assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("instead", ["nothing", "a file", "another FIFO"])
def test_a_fifo_that_went_is_noticed_by_the_next_look(open_queue, queue_dir, instead):
    producer, files = open_queue(), Waits()

    def during():
        files.during = None
        path = fifo(queue_dir)
        path.unlink()
        if instead == "a file":
            path.write_bytes(b"")
        elif instead == "another FIFO":
            os.mkfifo(path)
        producer.enqueue("x")

    files.during = during
    queue = open_queue(files=files)
    assert queue.lease_one(timeout=60).payload == "x"
    assert len(files.waits) == 1
    if instead != "a file":
        rung(queue)
        producer.enqueue("y")
        assert rung(queue) == 1
    else:
        assert fifo(queue_dir).read_bytes() == b""


def test_a_full_fifo_holds_nobody_up(open_queue):
    listener, producer = open_queue(), open_queue()
    with listener._session.listen() as listening:
        while True:
            try:
                os.write(listening.fd, bytes(4096))
            except BlockingIOError:
                break
        producer.enqueue("x")
        assert listening.wait(60)
        assert not listening.drain()
    assert listener.lease_one().payload == "x"


def test_the_child_of_a_fork_has_none_of_its_parents(open_queue):
    queue = open_queue()
    rung(queue)
    fd = queue._session.bell._open.fd
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.fstat(fd)
        except OSError as error:
            os.write(write, errno.errorcode[error.errno].encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"EBADF"
    os.close(read)
    assert rung(queue) == 0


def test_the_child_of_a_fork_takes_nothing_out_of_what_has_its_parents_number_now(open_queue):
    """A signal handler may fork in the middle of a wait, and the wait goes on in the child."""
    queue = open_queue()
    with queue._session.listen() as listening:
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.write(write, b"somebody else's")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(read, listening.fd)
                listening.wait(0.01)
                code = int(os.read(read, 100) != b"somebody else's")
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(read)
    os.close(write)


# --- refused calls


class Refusing(Failing):
    """Refuses, when armed, calls at the bell alone."""

    def before(self, call: Call) -> Call:
        return super().before(call) if call.path.endswith("bell") or call.kind == "make_fifo" else call

    def close(self, fd: int) -> None:
        path = self.paths.pop(fd, "?")
        Files.close(self, fd)
        self.before(Call("close", path))  # as the kernel does it: it is closed, whatever it reports


@pytest.mark.parametrize("at", range(4))
def test_a_ring_that_fails_is_no_failure_of_the_verb(open_queue, at):
    listener, files = open_queue(), Refusing()
    queue = open_queue(files=files)
    rung(listener)
    kinds = frozenset({"open", "is_fifo", "put_byte", "close"})
    before = len(os.listdir("/proc/self/fd"))
    files.arm(at, kinds=kinds)
    queue.enqueue("x")
    assert files.hit is not None
    assert len(os.listdir("/proc/self/fd")) == before
    assert [job.payload for job in queue.list_jobs()] == ["x"]


def test_a_bell_that_fails_anywhere_makes_waiting_polling(open_queue, queue_dir, monkeypatch):
    """The job comes when the other one waits, one way or another."""

    class Waiting(Refusing):
        def wait_readable(self, fds, seconds):
            comes()
            return super().wait_readable(fds, seconds)

    def comes(seconds=0.0):
        if not producer.stats().total:
            producer.enqueue("x")

    monkeypatch.setattr(bell, "sleep", comes)
    hits: list[str] = []
    while True:
        directory, files = queue_dir / str(len(hits)), Waiting()
        queue, producer = open_queue(directory, files=files), open_queue(directory)
        queue.lease()
        files.arm(len(hits))
        assert queue.lease_one(timeout=60).payload == "x", files.hit
        if files.hit is None:
            break
        hits.append(files.hit.kind)
    assert {"open", "make_fifo", "is_fifo", "set_mode", "identity", "wait_readable", "read"} <= set(hits)


def test_a_clock_that_fails_when_somebody_is_to_be_told_is_no_failure_of_the_verb(open_queue, clock):
    listener = open_queue()
    failing: list[int] = []

    def broken():
        if failing:
            raise RuntimeError("made up")
        return clock()

    files = Hooked()
    queue = open_queue(clock=broken, files=files)
    rung(listener)
    files.hook = lambda call: failing.append(1) if call.kind == "pwrite" and call.path.endswith(".log") else None
    queue.enqueue("x")
    files.hook = None
    failing.clear()
    assert rung(listener) == 1
