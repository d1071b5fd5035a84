"""Forks of every kind beside, and in the middle of, calls of a queue object; programs that are started by a process
which has a queue open."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nobroker_django import NotLeasedError, Queue
from nobroker_django.engine.control import SESSION_BYTE
from nobroker_django.engine.files import Files
from tests.support.faulty import Call, Hooked
from tests.support.procs import Child, Diary, run_all, wait_until
from tests.support.storm import open_queue

pytestmark = pytest.mark.contract("PROC-02")


def use(queue: Queue, name: str) -> None:
    queue.enqueue({"k": name})
    queue.stats()


def plainly(queue: Queue, errors: Diary) -> None:
    run_all([Child(use, queue, "child", errors=errors)])


def twice(queue: Queue, errors: Diary) -> None:
    """As a daemon comes into being: the child forks again, and ends."""
    read, write = os.pipe()

    def daemon() -> None:
        os.setsid()
        if os.fork() == 0:
            os.close(read)
            try:
                use(queue, "child")
                os.write(write, b"done")
            finally:
                os._exit(0)

    run_all([Child(daemon, errors=errors)])
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "done"


def in_a_thread(queue: Queue, errors: Diary) -> None:
    thread = threading.Thread(target=plainly, args=(queue, errors))
    thread.start()
    thread.join()


def from_a_child_that_used_it(queue: Queue, errors: Diary) -> None:
    def middle() -> None:
        use(queue, "middle")
        run_all([Child(use, queue, "child", errors=errors)])
        use(queue, "middle again")

    run_all([Child(middle, errors=errors)])


@pytest.mark.parametrize("way", [plainly, twice, in_a_thread, from_a_child_that_used_it])
def test_however_a_child_is_forked_both_go_on(queue_dir: Path, errors: Diary, way: Callable[[Queue, Diary], None]):
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "before"})
        (job,) = queue.lease(1, visibility_timeout=1e6)
        way(queue, errors)
        queue.enqueue({"k": "after"})
        queue.ack(job)
        shown = [job.payload["k"] for job in queue.list_jobs()]
    assert [key for key in shown if not key.startswith("middle")] == ["before", "child", "after"]
    with open_queue(queue_dir) as queue:
        assert not queue.recovery.repaired
        assert len(queue.list_jobs()) == len(shown)


def use_often(queue: Queue, name: str) -> None:
    for number in range(50):
        use(queue, f"{name} {number}")


def test_a_parent_and_its_children_write_at_the_same_time(queue_dir: Path, errors: Diary):
    """Through the object that they inherited: with locks of their own, or two would write at one place."""
    names = ["parent", "one", "two", "three"]
    with open_queue(queue_dir) as queue:
        children = [Child(use_often, queue, name, errors=errors) for name in names[1:]]
        try:
            use_often(queue, "parent")
        finally:
            run_all(children)
        shown = [job.payload["k"] for job in queue.list_jobs()]
        assert sorted(shown) == sorted(f"{name} {number}" for name in names for number in range(50))
    with open_queue(queue_dir) as queue:
        assert not queue.recovery.repaired


@pytest.mark.parametrize("kind", ["flock", "pwrite", "datasync"])
def test_a_fork_in_the_middle_of_a_call_of_another_thread_waits_for_its_end(queue_dir: Path, errors: Diary, kind: str):
    """At each step of the call: with the log's lock, in the write, in the sync."""
    files, inside, go = Hooked(), threading.Event(), threading.Event()
    with open_queue(queue_dir, files=files) as queue:
        use(queue, "before")

        def hook(call: Call) -> None:
            if call.kind == kind and call.path.endswith(".log") and threading.current_thread() is caller:
                files.hook = None
                inside.set()
                assert go.wait(60)

        caller = threading.Thread(target=use, args=(queue, "caller"))
        files.hook = hook
        caller.start()
        assert inside.wait(60)
        forked = threading.Event()

        def fork() -> None:
            plainly(queue, errors)
            forked.set()

        forking = threading.Thread(target=fork)
        forking.start()
        assert not forked.wait(0.05)  # it cannot end: a fork in the middle would, and leave a locked child
        go.set()
        for thread in (caller, forking):
            thread.join(60)
            assert not thread.is_alive()
        assert sorted(job.payload["k"] for job in queue.list_jobs()) == ["before", "caller", "child"]


WAITING = """
import os, signal, sys, threading
from nobroker_django import Queue
from nobroker_django.engine.files import Files

directory, how = sys.argv[1:]
waits = threading.Event()
children = []

class Noticed(Files):
    def wait_readable(self, fds, seconds):
        waits.set()
        return super().wait_readable(fds, seconds)

queue = Queue(directory, files=Noticed())

def fork(number, frame):
    pid = os.fork()
    if pid:
        children.append(pid)
    elif how == "ends":
        os._exit(0)
    elif how == "uses the queue":
        queue.enqueue("the child's")
        os._exit(0)
    elif how == "raises":
        raise ValueError

def signal_once():
    waits.wait(60)
    os.kill(parent, signal.SIGUSR1)

parent = os.getpid()
signal.signal(signal.SIGUSR1, fork)
thread = threading.Thread(target=signal_once)
thread.start()
try:
    jobs = queue.lease(timeout=2.0 if how == "goes on" else 0.5)
except ValueError:
    jobs = []
if os.getpid() != parent:
    queue.enqueue("the child's")
    os._exit(len(jobs))
thread.join()
[child] = children
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
if how == "ends":
    queue.enqueue("mine")
jobs = jobs or queue.lease(timeout=60)
queue.ack(jobs[0])
assert queue.stats().done == 1
"""


@pytest.mark.parametrize("how", ["ends", "uses the queue", "raises", "goes on"])
def test_a_signal_handler_may_fork_in_the_middle_of_a_wait_for_a_job(queue_dir: Path, how: str):
    """The wait goes on in the parent, and in a child that returns from the handler."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WAITING, queue_dir, how], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fork_method", ["posix_spawn", "fork and exec"])
def test_a_program_that_is_started_holds_nothing_of_the_queue(queue_dir: Path, fork_method: str):
    """It lives on after its parent has closed the queue: the next one to open it is the first."""
    read, write = os.pipe()
    started, starting = os.pipe()
    # It says when it runs: a moment before that, the system has not closed what it inherited.
    command = [sys.executable, "-c", f"import os; os.write({starting}, b'x'); os.read({read}, 1)"]
    os.set_inheritable(read, True)
    os.set_inheritable(starting, True)
    with open_queue(queue_dir) as queue:
        use(queue, "before")
        if fork_method == "posix_spawn":
            pid = os.posix_spawn(sys.executable, command, dict(os.environ))
            program = None
        else:
            program = subprocess.Popen(command, close_fds=False)
            pid = program.pid
        assert os.read(started, 1) == b"x"
    try:
        files = Files()
        fd = files.open(queue_dir / "default.lock", os.O_RDWR)
        try:
            assert files.flock(fd, exclusive=True)
            assert files.lock_byte(fd, SESSION_BYTE, exclusive=True)
        finally:
            os.close(fd)
    finally:
        os.write(write, b"x")
        if program is None:
            os.waitpid(pid, 0)
        else:
            program.wait()
        for end in (read, write, started, starting):
            os.close(end)


def test_a_lease_stays_the_parents_whatever_its_children_do_with_it(queue_dir: Path, diary: Diary, errors: Diary):
    """A child may finish the job (it has the token), once; then it is finished for the parent as well."""

    def finish(queue: Queue, job) -> None:
        queue.ack(job, result=os.getpid())
        diary.write("acked", os.getpid())

    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "job"}, job_id="job")
        (job,) = queue.lease(1, visibility_timeout=1e6)
        run_all([Child(finish, queue, job, errors=errors)])
        wait_until(lambda: diary.size() > 0, "the child's ack")
        queue.ack(job, result="the parent's")  # the token that acked: a retry, quietly
        assert queue.get("job").result == int(diary.lines()[0][1])
        with pytest.raises(NotLeasedError):
            queue.nack(job)
