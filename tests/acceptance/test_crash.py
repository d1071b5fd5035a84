"""Killed and stopped workers: every job comes back, and has one outcome."""

import os
import signal
import socket

import pytest

from nobroker_django import JobState, LockTimeoutError, OutcomeUnknownError, Queue

from . import jobs
from .conftest import state_of, until


@pytest.mark.contract("LEASE-06")
def test_the_job_of_a_killed_child_runs_again_at_once(place):
    """C03."""
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--processes", 2, "--threads", 1)
    [first] = place.until_started("job")
    os.kill(first, signal.SIGKILL)
    work.until_says(rf"worker \d \(pid {first}\) was killed by SIGKILL")
    _, second = place.until_started("job", 2)
    deadline = place.queue().get(result.id).lease_deadline
    assert deadline is not None
    assert second != first
    place.let_go("job")
    assert result.wait(timeout=60).attempts == 2
    [error] = result.errors
    assert error.error_class == "WorkerDied"
    assert result.worker_ids == [f"{socket.gethostname()}:{second}"]  # the first one could not tell
    assert f"pid {first}) was killed by SIGKILL" in (error.message or "")
    assert error.at < place.queue().get(result.id).enqueued_at + 29  # the lease would have lasted longer
    until(lambda: len(work.children()) == 3)
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert len(place.lines("job.done")) == 1


@pytest.mark.contract("LEASE-06")
@pytest.mark.parametrize("whole_group", [False, True])
def test_another_worker_takes_what_a_killed_one_held(place, whole_group):
    """Of a supervisor and its child both have to be dead; also when all workers of the machine were."""
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--threads", 1)
    place.until_started("job")
    other = None if whole_group else place.work("--threads", 1)
    if other is not None:
        jobs.note.enqueue(str(place / "trace"), "x").wait(timeout=60)  # by it, which is idle then
    work.signal_group(signal.SIGKILL)
    if other is None:
        other = place.work("--threads", 1)
    place.until_started("job", 2)
    assert [error.error_class for error in place.queue().get(result.id).errors] == ["WorkerDied"]
    place.let_go("job")
    assert result.wait(timeout=60).attempts == 2
    other.signal(signal.SIGTERM)
    assert other.end() == 0


def test_a_worker_that_cannot_register_works_and_its_leases_last(place, configure):
    configure(VISIBILITY_TIMEOUT=0.6)
    result = jobs.hold.enqueue(str(place), "job")
    alive = place / "queues" / "default.run" / "alive"
    place.queue().stats()  # makes the directory
    alive.mkdir()  # nothing that could be opened
    work = place.work("--threads", 1)
    work.until_says("a worker cannot say that it is alive")
    [pid] = place.until_started("job")
    until(lambda: place.queue().get(result.id).extensions >= 3)
    os.kill(pid, signal.SIGKILL)  # its supervisor knows all the same
    place.until_started("job", 2)
    place.let_go("job")
    assert result.wait(timeout=60).attempts == 2
    work.signal(signal.SIGTERM)
    assert work.end() == 0


@pytest.mark.contract("LEASE-04", "LEASE-06")
def test_a_job_that_kills_its_worker_runs_out_of_attempts_and_the_others_run(place):
    """C13."""
    healthy = [jobs.note.enqueue(str(place / "trace"), str(n)) for n in range(25)]
    deadly = jobs.die.using(max_attempts=3).enqueue(str(place / "deaths"))
    healthy += [jobs.note.enqueue(str(place / "trace"), str(n)) for n in range(25, 50)]
    work = place.work("--threads", 1)
    until(lambda: place.queue().get(deadly.id).state is JobState.DEAD)
    for result in healthy:
        result.wait(timeout=60)
    assert len(place.lines("deaths")) == 3
    assert sorted(place.lines("trace"), key=int) == [str(n) for n in range(50)]
    assert {place.queue().get(result.id).attempts for result in healthy} == {1}
    dead = place.queue().get(deadly.id)
    assert dead.attempts == 3
    assert [error.error_class for error in dead.errors] == ["WorkerDied"] * 3
    assert "was killed by SIGKILL" in (dead.last_error or "")
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def stop_between_verbs(pid, place):
    """SIGSTOP where the process holds no lock of the queue, on which everybody else would have to wait."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state_of(pid) == "T", "it stands still")
        try:
            for name in ("default", "second"):
                with Queue(place / "queues", name, lock_timeout=0.5) as probe:
                    probe.requeue_dead()  # takes the log's lock, and the sync lock if there is something to sync
        except (LockTimeoutError, OutcomeUnknownError):
            os.kill(pid, signal.SIGCONT)
        else:
            return


@pytest.mark.contract("WORK-04")
def test_a_paused_worker_that_lost_its_job_cannot_change_its_outcome(place, configure):
    """C06."""
    configure(VISIBILITY_TIMEOUT=1.0)
    result = jobs.hold.enqueue(str(place), "job")
    paused = place.work("--threads", 1)
    [first] = place.until_started("job")
    stop_between_verbs(first, place)
    other = place.work("--threads", 1)
    place.until_started("job", 2)
    place.let_go("job")
    result.wait(timeout=60)
    finished = place.queue().get(result.id)
    os.kill(first, signal.SIGCONT)
    paused.until_says(f"job {result.id} .*ended after its lease was lost")
    assert place.queue().get(result.id).to_dict() == finished.to_dict()
    for work in (paused, other):
        work.signal(signal.SIGTERM)
        assert work.end() == 0
    paused.until_says("stopped: 1 lost")


def test_a_child_that_keeps_dying_is_restarted_with_growing_pauses(place, configure):
    configure(VISIBILITY_TIMEOUT=0.1)
    jobs.die.using(max_attempts=3).enqueue(str(place / "deaths"))
    work = place.work("--threads", 1)
    until(lambda: work.text().count("a new one starts in ") == 3)
    pauses = [float(part.split(" s")[0]) for part in work.text().split("a new one starts in ")[1:]]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]


def until_done(place, count):
    until(lambda: place.queue().stats().done >= count, f"{count} jobs done")


def test_every_job_survives_children_that_are_killed_all_the_time(place, configure):
    """C12."""
    configure(VISIBILITY_TIMEOUT=2.0, MAX_ATTEMPTS=50)
    work = place.work("--processes", 2, "--threads", 2)
    results, killed = [], list[int]()
    for turn in range(5):
        numbers = range(60 * turn, 60 * (turn + 1))
        results += jobs.note.enqueue_many(jobs.note.s(str(place / "trace"), str(n)) for n in numbers)
        until_done(place, 40 * (turn + 1))
        fresh = until(lambda: [pid for pid in work.children() if pid not in killed])
        os.kill(fresh[-1], signal.SIGKILL)
        killed.append(fresh[-1])
    until_done(place, 300)
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert set(place.lines("trace")) == {str(n) for n in range(300)}
    again = 0
    for result in results:
        result.refresh()
        assert result.status == "SUCCESSFUL"
        again += result.attempts - 1
    # Twice only what was running in a process that was killed.
    assert len(place.lines("trace")) - 300 <= again <= 2 * len(killed)
