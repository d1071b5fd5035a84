"""Faults planted in the engine that the tests with real processes, refused calls and random verbs have to find.

``test_planted_faults`` does this for power cuts, damage and writers that die; here are the kinds whose tests live in
``tests/concurrency``, the sweeps over system calls, and ``strace``. Children are forks: they inherit what is planted.
"""

import errno
import gc
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from nobroker_django import Job
from nobroker_django.engine import deciding, held, log
from nobroker_django.engine.errors import PointerError, StorageError
from nobroker_django.engine.files import Files
from nobroker_django.engine.leasing import Leasing
from nobroker_django.engine.session import Session
from tests.concurrency import test_clocks, test_forks, test_full_disk, test_model, test_stopped, test_storm
from tests.crash import test_strace, test_system_calls
from tests.crash.test_killed_beside_producers import old_log_unlinked_before_the_pointer
from tests.support import storm
from tests.support.crashing import drawn
from tests.support.disks import needs_root, tmpfs
from tests.support.faulty import ALL
from tests.support.ledger import Script
from tests.support.procs import Diary
from tests.support.scripts import SCRIPTS

FOUND = (Exception, pytest.fail.Exception)
pytestmark = [  # what a fault ends in the middle leaves its queues open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_is_left_to_later_tests() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def errors(tmp_path: Path) -> Iterator[Diary]:
    """What goes wrong in the children, which is what is waited for here."""
    errors = Diary(tmp_path / "errors")
    yield errors
    errors.close()


def tokens_not_compared(patch: pytest.MonkeyPatch) -> None:
    whole = Leasing._leased

    def by_its_id(self: Leasing, decision: Any, job: Job | str, **options: Any) -> Any:
        return whole(self, decision, job.id if isinstance(job, Job) else job, **options)

    patch.setattr(Leasing, "_leased", by_its_id)


def locks_not_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Files, "flock", lambda self, fd, *, exclusive: True)


def paths_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "_still_named", lambda self: True)
    patch.setattr(Session, "_drop_what_moved", lambda self: None)


def children_give_nothing_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "after_fork_in_child", Session.after_fork_in_parent)


def descriptors_are_inherited(patch: pytest.MonkeyPatch) -> None:
    whole = Files.open

    def open_for_everybody(self: Files, *arguments: Any) -> int:
        fd = whole(self, *arguments)
        os.set_inheritable(fd, True)
        return fd

    patch.setattr(Files, "open", open_for_everybody)


def tokens_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    clock = test_clocks.jumping("tokens")
    patch.setattr(deciding, "fencing_token", lambda open_seq, seq: f"{int(clock() * 1000):028x}")


def short_writes_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    def write_once(files: Files, fd: int, data: bytes, offset: int | None = None) -> None:
        files.write(fd, data) if offset is None else files.pwrite(fd, data, offset)

    patch.setattr(log, "write_all", write_once)


def refused_writes_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: held.Held, error: OSError) -> None:
        raise StorageError("write to", self.log.path, error) from error

    patch.setattr(held.Held, "_take_back", give_up)


def everybody_at_work(directory: Path, diary: Diary, errors: Diary, amount: int) -> None:
    """Nobody is killed: what is planted is enough."""
    weather = storm.Storm(directory, diary, errors, drawn("planted"))
    try:
        for role in storm.ROLES:
            weather.start(role)
        weather.more(amount)
    finally:
        weather.end()
    storm.check(directory, diary)


def test_random_verbs_find_tokens_that_are_not_compared(monkeypatch: pytest.MonkeyPatch):
    tokens_not_compared(monkeypatch)
    few = hypothesis.settings(
        test_model.TestTwoHandles.settings, derandomize=True, database=None, phases=[hypothesis.Phase.generate],
        print_blob=False,
    )  # fmt: skip
    with pytest.raises(FOUND):
        run_state_machine_as_test(test_model.TwoHandles, settings=few)


@pytest.mark.parametrize("verb", ["ack", "extend"])
def test_a_holder_that_was_stopped_finds_tokens_that_are_not_compared(
    queue_dir: Path, diary: Diary, errors: Diary, monkeypatch: pytest.MonkeyPatch, verb: str
):
    tokens_not_compared(monkeypatch)
    with pytest.raises(AssertionError):
        test_stopped.test_a_holder_that_is_stopped_past_its_deadline(queue_dir, diary, errors, verb, "is at it")


def test_a_storm_finds_locks_that_are_not_taken(
    queue_dir: Path, diary: Diary, errors: Diary, monkeypatch: pytest.MonkeyPatch
):
    locks_not_taken(monkeypatch)
    with pytest.raises(FOUND):
        everybody_at_work(queue_dir, diary, errors, 200_000)


def test_harmed_lock_files_find_that_nobody_looks_at_their_paths(
    queue_dir: Path, diary: Diary, errors: Diary, monkeypatch: pytest.MonkeyPatch
):
    paths_not_looked_at(monkeypatch)
    opening = storm.open_queue
    monkeypatch.setattr(
        storm, "open_queue", lambda directory, **options: opening(directory, lock_timeout=1.0, **options)
    )
    with pytest.raises(FOUND):
        test_storm.test_caches_and_lock_files_harmed_under_load(queue_dir, diary, errors)


def test_clocks_that_jump_find_tokens_by_the_clock(
    queue_dir: Path, diary: Diary, errors: Diary, monkeypatch: pytest.MonkeyPatch
):
    tokens_by_the_clock(monkeypatch)
    with pytest.raises(FOUND):
        test_clocks.test_processes_whose_clocks_jump(queue_dir, diary, errors)


def test_forks_find_children_that_give_nothing_up(queue_dir: Path, errors: Diary, monkeypatch: pytest.MonkeyPatch):
    children_give_nothing_up(monkeypatch)
    with pytest.raises(FOUND):
        test_forks.test_a_parent_and_its_children_write_at_the_same_time(queue_dir, errors)


def test_programs_that_are_started_find_descriptors_that_are_inherited(
    queue_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    descriptors_are_inherited(monkeypatch)
    with pytest.raises(FOUND):
        test_forks.test_a_program_that_is_started_holds_nothing_of_the_queue(queue_dir, "fork and exec")


@needs_root
def test_a_full_disk_finds_short_writes_taken_for_whole(
    tmp_path: Path, diary: Diary, errors: Diary, monkeypatch: pytest.MonkeyPatch
):
    short_writes_taken_for_whole(monkeypatch)
    with tmpfs(tmp_path / "mount", 12_000_000) as disk, pytest.raises(FOUND):
        test_full_disk.test_writers_workers_and_readers_on_a_disk_that_fills_up_and_gets_space_again(
            disk, tmp_path, diary, errors
        )


def test_refused_calls_find_writes_that_are_not_taken_back(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    refused_writes_not_taken_back(monkeypatch)
    with pytest.raises(FOUND):
        test_system_calls.sweep(fast_path / "queue", SCRIPTS["brief"], errno.ENOSPC, ALL, short=True)


def test_a_last_call_finds_an_old_log_that_goes_too_early(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    def body(script: Script) -> None:
        script.enqueue("job")
        script.compact()

    old_log_unlinked_before_the_pointer(monkeypatch)
    with pytest.raises(PointerError):
        for at in itertools.count(100):
            assert test_system_calls.killed_at(fast_path / "queue", body, at), "it has run to its end"


def test_real_refusals_find_unknown_outcomes_said_to_be_none(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    planted = """
from nobroker_django import OutcomeUnknownError
OutcomeUnknownError.stored = property(lambda error: False, lambda error, value: None)
"""
    monkeypatch.setattr(test_strace, "PROGRAM", planted + test_strace.PROGRAM)
    with pytest.raises(AssertionError, match="refused"):
        test_strace.sweep(fast_path, "fdatasync", "error=EIO", range(1, 10))
