"""What waiting for a job costs: a look at the control words, however many jobs there are."""

from pathlib import Path

import pytest

from nobroker_django import Queue
from tests.support.faulty import Call, Recorder
from tests.support.scripts import clock


def calls_of_a_wait(directory: Path, jobs: int) -> tuple[list[Call], list[Call]]:
    """The calls of a look for a job, and those of the waiting after it, beside finished and delayed jobs."""
    files = Recorder()
    with Queue(directory, clock=clock, files=files, retention=1000, fsync=False) as queue:
        queue.enqueue_many(list(range(jobs)))
        queue.ack_many(queue.lease(jobs))
        queue.enqueue_many(list(range(jobs)), delay=1000)
        assert queue.lease() == []
        files.calls.clear()
        assert queue.lease(timeout=0.3) == []
        kinds = files.kinds()
    assert kinds.count("flock") == 2  # at the end of the time there is one more look
    unlocked = kinds.index("funlock") + 1
    locked = kinds.index("flock", unlocked)
    return files.calls[:unlocked], files.calls[unlocked:locked]


@pytest.mark.parametrize("jobs", [3, 1000])
def test_who_waits_for_a_job_reads_the_control_words_and_nothing_else(tmp_path: Path, jobs: int):
    """C91."""
    look, waiting = calls_of_a_wait(tmp_path, jobs)
    assert {Path(call.path).name for call in waiting if call.kind == "pread"} == {"default.lock"}
    assert [call.kind for call in waiting].count("wait_readable") == 1
    assert len(waiting) < 20  # the first wait makes the bell
    assert len(look) < 15
    assert sum(call.arguments[0] for call in look if call.kind == "pread") < 1000  # bytes
