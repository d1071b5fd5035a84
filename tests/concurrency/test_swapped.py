"""The directory is swapped under running processes: the path decides, and no job is lost, doubled or half there."""

import ctypes
import os
from pathlib import Path

import pytest

from nobroker_django import JobNotFoundError, JobState
from nobroker_django.engine.verification import verify_queue
from tests.support.crashing import drawn
from tests.support.procs import Diary
from tests.support.storm import Storm, open_queue, patient, producer, visitor, worker

RENAME_EXCHANGE = 2  # renameat2(2)
AT_FDCWD = -100


def exchange(one: Path, two: Path) -> None:
    """Swap two names in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(two), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def swapped(role):
    """The role, for which a job may be in the other directory by now."""

    def starting_over(directory: Path, diary: Diary, seed: str) -> None:
        number = 0
        while True:
            number += 1
            try:
                patient(role)(directory, diary, f"{seed} {number}")
            except JobNotFoundError:
                continue

    return starting_over


@pytest.mark.contract("PROC-03", "ENQ-01")
def test_a_directory_that_is_swapped_under_load(tmp_path: Path, diary: Diary, errors: Diary):
    here, there, rng = tmp_path / "here", tmp_path / "there", drawn("swapped")
    for directory in (here, there):
        open_queue(directory).close()
    weather = Storm(here, diary, errors, rng)
    try:
        for role in (producer, producer, worker, worker, visitor):
            weather.start(swapped(role))
        for number in range(25):
            weather.more(rng.randrange(1, 600))
            exchange(here, there)
            if number % 8 == 7:
                weather.kill_some()
        weather.more(500)
    finally:
        weather.end()
    states: dict[str, list[JobState]] = {}
    for directory in (here, there):
        with open_queue(directory) as queue:
            for job in queue.list_jobs():
                states.setdefault(job.payload["k"], []).append(job.state)
        assert verify_queue(directory, "default").whole
    told = diary.lines()
    enqueued = {key for what, *keys in told if what == "E" for key in keys}
    acked = {words[0] for what, *words in told if what == "A"}
    assert not enqueued - states.keys()
    assert not [key for key, found in states.items() if len(found) > 1]
    assert all(states[key] == [JobState.DONE] for key in acked)
    assert acked
