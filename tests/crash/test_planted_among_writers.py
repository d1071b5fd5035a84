"""The oracles are not blind, continued: planted faults that only several writers show.

Each scenario also runs on the engine as it is, and finds nothing.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from nobroker_django import OutcomeUnknownError, Queue
from nobroker_django.engine import recovery
from nobroker_django.engine.control import Control, Words, offset_of
from nobroker_django.engine.durability import Promise
from nobroker_django.engine.liveness import Census
from nobroker_django.engine.lockfile import LockFile
from nobroker_django.engine.log import Log
from nobroker_django.engine.recovery import Tail
from nobroker_django.engine.syncing import SyncLock
from tests.crash.test_failed_cut import recover_halves, refused_writes
from tests.support.crashing import Findings, noting, recover_draws, traced
from tests.support.interleaving import interleaved
from tests.support.ledger import Ledger, Script
from tests.support.powercut import Killed, TraceFiles
from tests.support.scripts import SCRIPTS, open_queue

Plant = Callable[[pytest.MonkeyPatch], None]


def words_believed_unexamined(patch: pytest.MonkeyPatch) -> None:
    examine = recovery.examine

    def believe(log: Log, words: Words) -> Tail:
        if not words.belong_to(log.log_id, log.generation):
            return examine(log, words)
        end = offset_of(words.end)
        return Tail(end, end, log.data_end(), 0, end, None)

    patch.setattr(recovery, "examine", believe)


def synced_raised_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(self: SyncLock, log: Log, lock_file: LockFile, goal: int) -> None:
        lock_file.control.set_synced(goal)
        log.datasync()

    patch.setattr(SyncLock, "sync", sync)


def sync_lock_let_go_before_synced_is_raised(patch: pytest.MonkeyPatch) -> None:
    def sync(self: SyncLock, log: Log, lock_file: LockFile, goal: int) -> None:
        lock_file.control.begin_sync()
        log.datasync()
        log.sync_unlock()
        lock_file.control.set_synced(goal)

    patch.setattr(SyncLock, "sync", sync)


def workers_taken_for_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Census, "is_dead", lambda self, holder: True)


@pytest.mark.parametrize(
    "plant",
    [
        words_believed_unexamined,
        synced_raised_before_the_sync,
        sync_lock_let_go_before_synced_is_raised,
        workers_taken_for_dead,
    ],
)
def test_interleaved_writers_find(fast_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant):
    """In one of few runs; which one it is changes with every call that the engine makes."""
    plant(monkeypatch)
    for seed in range(30):
        findings = Findings()
        try:
            trace = interleaved(fast_path / f"queue-{seed}", seed)
            recover_draws(trace, fast_path / "scratch", Random(seed), 2, findings)
        except Exception as error:
            findings.broken.append(repr(error))
        if findings.broken:
            print(f"seed {seed}: {findings.broken[0]}")
            return
    pytest.fail("not found")


def no_open_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "encode_batch", lambda *arguments: (b"", 0, []))


def test_power_cuts_find_a_missing_open_record(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_open_record(monkeypatch)
    findings = Findings()
    recover_draws(traced(fast_path / "queue", SCRIPTS["leases"]), fast_path / "scratch", Random(1), 4, findings)
    assert findings.broken


def killed_beside_another(directory: Path, kill_at: int) -> tuple[TraceFiles, bool]:
    """One writer is killed before its ``kill_at``-th change, or in it if that is a sync; another one goes on."""
    ledger = Ledger()
    other_files = TraceFiles(directory)
    other = open_queue(directory, other_files)
    files = TraceFiles(directory, other_files, kill_at=kill_at)
    queue = None
    try:
        queue = open_queue(directory, files)
        script = Script(queue, ledger, noting(files))
        script.enqueue("a-long-key", "another-long-key", "a-third-long-key")
        script.enqueue("a-fourth-long-key")
    except Killed:
        ledger.unknown([key for key, states in ledger.maybe.items() if states])
    finally:
        if queue is not None:
            queue._session.cache.drop()
        files.bury()
    script = Script(other, ledger, noting(other_files))
    script.enqueue("k")
    script.enqueue("s")
    assert not script.failures, script.failures
    other._session.cache.drop()
    other_files.bury()
    with open_queue(directory) as queue:
        problems = ledger.problems(queue.list_jobs())
        assert not problems, problems
    return other_files, any(event.kind == "killed" for event in other_files.trace)


def kills_beside_another(directory: Path, step: int = 1) -> Iterator[str]:
    """What goes wrong, at every ``step``-th change."""
    kill_at, killed = 0, True
    while killed:
        findings = Findings()
        try:
            trace, killed = killed_beside_another(directory / f"queue-{kill_at}", kill_at)
            recover_draws(trace, directory / "scratch", Random(kill_at), 3, findings)
        except Exception as error:
            findings.broken.append(repr(error))
        yield from findings.broken
        kill_at += step


def end_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "ends_at", lambda self, end: True)


def unfinished_syncs_ignored(patch: pytest.MonkeyPatch) -> None:
    read = Control.read
    patch.setattr(Control, "read", lambda self: read(self)._replace(syncing=0))


@pytest.mark.contract("LOG-06", "LOG-09")
def test_a_writer_killed_at_some_changes_beside_another(fast_path: Path):
    assert list(kills_beside_another(fast_path, step=4)) == []


@pytest.mark.long
@pytest.mark.contract("LOG-06", "LOG-09")
def test_a_writer_killed_at_every_change_beside_another(fast_path: Path):
    assert list(kills_beside_another(fast_path)) == []


@pytest.mark.parametrize("plant", [end_not_looked_at, unfinished_syncs_ignored])
def test_that_finds(fast_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant):
    plant(monkeypatch)
    assert next(kills_beside_another(fast_path), None) is not None


def a_write_and_its_undoing_fail(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Findings:
    """One verb waits for its sync; another's write fails, and so does the sync when that is taken back."""
    waiting: list[Promise] = []
    ledger, findings = Ledger(), Findings()
    files = TraceFiles(directory / "queue")
    one = open_queue(directory / "queue", files)
    other_files = TraceFiles(directory / "queue", files, fail_writes=frozenset([0]), fail_syncs=frozenset([0]))
    two = open_queue(directory / "queue", other_files)
    ledger.begin({"waits": ("ready", 0), "refused": ("ready", 0)})
    files.note("ledger", ledger.copy())
    with monkeypatch.context() as patch:
        patch.setattr(Queue, "_keep", lambda self, promise: waiting.append(promise))
        one.enqueue({"k": "waits"})
    with pytest.raises(OutcomeUnknownError):
        two.enqueue({"k": "refused"})
    ledger.unknown(["refused"])
    waiting[0].keep()
    ledger.end({"waits": ("ready", 0)})
    files.note("ledger", ledger.copy())
    one.close()
    two.close()
    recover_draws(files, directory / "scratch", Random(1), 4, findings)
    return findings


def poison_ignored(patch: pytest.MonkeyPatch) -> None:
    read = Control.read
    patch.setattr(Control, "read", lambda self: read(self)._replace(poisoned=0))


@pytest.mark.contract("LOG-09")
def test_a_write_and_its_undoing_fail(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    a_write_and_its_undoing_fail(fast_path, monkeypatch).check()


def test_that_finds_ignored_poison(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    poison_ignored(monkeypatch)
    assert a_write_and_its_undoing_fail(fast_path, monkeypatch).broken


def cut_while_somebody_waits(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed sync takes the bytes away that a verb is waiting for; another writer fills their place."""
    waiting: list[Promise] = []
    with open_queue(directory) as one, open_queue(directory) as two:
        with monkeypatch.context() as patch:
            patch.setattr(Queue, "_keep", lambda self, promise: waiting.append(promise))
            one.enqueue({"k": "waits"})
        promise = waiting[0]
        with promise.log.path.open("r+b") as file:  # as a system that drops the pages of a failed sync
            file.seek(promise.witness_offset)
            file.write(bytes(promise.end - promise.witness_offset))
        promise.lock_file.control.set_poisoned(True)
        two.enqueue({"k": "fills the place", "filler": "x" * 500})
        with pytest.raises(OutcomeUnknownError):
            promise.keep()


@pytest.mark.contract("LOG-09")
def test_what_was_cut_while_somebody_waited_is_not_acknowledged(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    cut_while_somebody_waits(fast_path, monkeypatch)


def test_that_finds_a_witness_not_compared(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Promise, "_compare", lambda self: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        cut_while_somebody_waits(fast_path, monkeypatch)


def cuts_not_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "blank", lambda self, end: None)


@pytest.mark.parametrize("jobs", [4, pytest.param(40, marks=pytest.mark.long)])
def test_that_finds_cuts_that_are_not_written_again(fast_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int):
    """And what comes of them: a queue that needs a person after a power cut."""
    cuts_not_written_again(monkeypatch)
    findings = Findings()
    for story in refused_writes(fast_path, tuple(f"lost{number}" for number in range(jobs))):
        if story.end():
            recover_halves(story, fast_path / "scratch", findings)
    assert any("not the trace of a crash" in text for text in findings.broken)
