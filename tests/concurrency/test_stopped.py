"""Processes that are stopped (SIGSTOP) in the middle of something, and go on, or do not."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nobroker_django import AlreadyDoneError, JobState, LockTimeoutError, NobrokerError, NotLeasedError, Queue
from tests.support.faulty import Call, Hooked
from tests.support.procs import Child, Diary
from tests.support.storm import open_queue

LONG = 1e6  # seconds


def until_stopped(child: Child) -> None:
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"ended with {os.waitstatus_to_exitcode(status)}"


def go_on(child: Child) -> None:
    os.kill(child.pid, signal.SIGCONT)
    assert child.wait() == 0


def stop_at(directory: Path, kind: str) -> None:
    """Enqueue, and stop in the middle: at this call on the log."""
    files = Hooked()
    with open_queue(directory, files=files) as queue:
        queue.enqueue({"k": "before"})

        def hook(call: Call) -> None:
            if call.kind == kind and call.path.endswith(".log"):
                files.hook = None
                os.kill(os.getpid(), signal.SIGSTOP)

        files.hook = hook
        queue.enqueue({"k": "stopped"})


@pytest.mark.contract("PROC-01", "PROC-03", "LOG-08", "API-03")
@pytest.mark.parametrize("then", ["goes on", "is killed"])
@pytest.mark.parametrize("kind", ["pwrite", "datasync"])
def test_a_process_that_is_stopped_while_it_holds_a_lock(queue_dir: Path, errors: Diary, kind: str, then: str):
    """Others are told in time what became of their call; whoever reads is not held up; nothing has to be removed."""
    with open_queue(queue_dir, lock_timeout=0.2) as queue:
        child = Child(stop_at, queue_dir, kind, errors=errors)
        try:
            until_stopped(child)
            with pytest.raises(LockTimeoutError) as late:
                queue.enqueue({"k": "late"})
            assert late.value.stored is (False if kind == "pwrite" else None)
            with Queue(queue_dir, read_only=True) as looking:
                assert looking.stats().ready >= 1
            if kind == "pwrite":
                with pytest.raises(LockTimeoutError):
                    open_queue(queue_dir, lock_timeout=0.1)
            if then == "goes on":
                go_on(child)
        finally:
            child.kill()
        queue.enqueue({"k": "after"})
        shown = [job.payload["k"] for job in queue.list_jobs()]
    assert [key for key in shown if key not in ("stopped", "late")] == ["before", "after"]
    assert ("late" in shown) is (kind == "datasync")
    assert ("stopped" in shown) is (kind == "datasync" or then == "goes on")
    assert len(shown) == len(set(shown))


def hold(directory: Path, diary: Diary, verb: str) -> None:
    """Lease, stop, and finish after all."""
    with Queue(directory, retention=LONG) as queue:
        job = queue.lease_one(visibility_timeout=0.05)
        diary.write("leased", job.lease_token)
        os.kill(os.getpid(), signal.SIGSTOP)
        verbs: dict[str, Callable[[], object]] = {
            "ack": lambda: queue.ack(job, result="mine"),
            "nack": lambda: queue.nack(job, error="mine"),
            "extend": lambda: queue.extend(job, 60),
            "bury": lambda: queue.bury(job, error="mine"),
        }
        try:
            verbs[verb]()
        except NobrokerError as error:
            diary.write(type(error).__name__)
        else:
            diary.write("accepted")
        assert queue.release([job]) == [job]


@pytest.mark.contract("LEASE-03", "LEASE-05")
@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "bury"])
@pytest.mark.parametrize("other", ["has finished", "has failed", "is at it"])
def test_a_holder_that_is_stopped_past_its_deadline(
    queue_dir: Path, diary: Diary, errors: Diary, verb: str, other: str
):
    """C06: whatever it says when it wakes up is refused, and what the other says stands."""
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "job"}, job_id="job")
        child = Child(hold, queue_dir, diary, verb, errors=errors)
        try:
            until_stopped(child)
            (job,) = queue.lease(1, timeout=60, visibility_timeout=LONG)
            assert job.attempts == 2
            if other == "has finished":
                queue.ack(job, result="the other's")
            if other == "has failed":
                queue.nack(job, error="the other's", delay=LONG)
            before = queue.get("job").to_dict()
            go_on(child)
        finally:
            child.kill()
        refused = AlreadyDoneError if other == "has finished" else NotLeasedError
        assert diary.lines()[1:] == [[refused.__name__]]
        assert queue.get("job").to_dict() == before
        if other == "is at it":
            queue.ack(job, result="the other's")
        assert int(job.lease_token, 16) > int(diary.lines()[0][1], 16)


@pytest.mark.contract("LEASE-03", "ENQ-04", "RETRY-02")
def test_a_dead_letter_whose_last_run_goes_on(queue_dir: Path, diary: Diary, errors: Diary):
    """C09: the id stays known, so nothing runs beside it unasked; after a requeue the old run cannot end the new."""
    with open_queue(queue_dir) as queue:
        queue.enqueue({"k": "job"}, job_id="job", max_attempts=1)
        child = Child(hold, queue_dir, diary, "ack", errors=errors)
        try:
            until_stopped(child)
            while queue.get("job").state is not JobState.DEAD:
                assert queue.lease(1, timeout=0.05) == []
            again = queue.enqueue({"k": "job"}, job_id="job")
            assert (again.created, again.state) == (False, JobState.DEAD)
            assert queue.requeue_dead("job") == 1
            new = queue.lease_one(visibility_timeout=LONG)
            go_on(child)
        finally:
            child.kill()
        assert diary.lines()[1:] == [["NotLeasedError"]]
        queue.ack(new, result="the new run's")
        assert queue.get("job").result == "the new run's"
