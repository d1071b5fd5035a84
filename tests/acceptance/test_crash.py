"""Killed and stopped workers: every job comes back, and has one outcome."""

import os
import signal
import time

from nobroker_django import JobState, LockTimeoutError, OutcomeUnknownError, Queue

from . import jobs
from .conftest import state_of, until


def test_the_job_of_a_killed_child_runs_again_after_the_visibility_timeout(place, configure):
    """C03."""
    configure(VISIBILITY_TIMEOUT=1.5)
    result = jobs.hold.enqueue(str(place), "job")
    work = place.work("--processes", 2, "--threads", 1)
    [first] = place.until_started("job")
    os.kill(first, signal.SIGKILL)
    killed_at = time.time()
    deadline = place.queue().get(result.id).lease_deadline
    assert deadline is not None
    assert deadline < killed_at + 1.6
    work.until_says(rf"worker \d \(pid {first}\) was killed by SIGKILL")
    _, second = place.until_started("job", 2)
    assert time.time() >= deadline
    assert second != first
    place.let_go("job")
    assert result.wait(timeout=60).attempts == 2
    assert [error.message for error in result.errors if error.message and "lease expired" in error.message]
    until(lambda: len(work.children()) == 3)
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert len(place.lines("job.done")) == 1


def test_a_job_that_kills_its_worker_runs_out_of_attempts_and_the_others_run(place, configure):
    """C13."""
    configure(VISIBILITY_TIMEOUT=0.5)
    deadly = jobs.die.using(max_attempts=3).enqueue(str(place / "deaths"))
    healthy = [jobs.note.enqueue(str(place / "trace"), str(n)) for n in range(50)]
    work = place.work("--threads", 1)
    until(lambda: place.queue().get(deadly.id).state is JobState.DEAD)
    for result in healthy:
        result.wait(timeout=60)
    assert len(place.lines("deaths")) == 3
    assert sorted(place.lines("trace"), key=int) == [str(n) for n in range(50)]
    assert "lease expired" in (place.queue().get(deadly.id).last_error or "")
    work.signal(signal.SIGTERM)
    assert work.end() == 0


def stop_between_verbs(pid, place):
    """SIGSTOP where the process holds no lock of the queue, on which everybody else would have to wait."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state_of(pid) == "T", "it stands still")
        try:
            with Queue(place / "queues", lock_timeout=0.5) as probe:
                probe.requeue_dead()  # takes the log's lock, and the sync lock if there is something to sync
        except (LockTimeoutError, OutcomeUnknownError):
            os.kill(pid, signal.SIGCONT)
        else:
            return


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
    until(lambda: work.text().count("was killed by SIGKILL") == 3)
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
