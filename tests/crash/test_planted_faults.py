"""The oracles are not blind: engines with a planted fault are found out.

Each fault is one that a change of the engine could bring in; the list grows with every kind of fault that was found.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import CorruptLogError, Queue
from nobroker_django.engine import deciding, framing, records, recovery
from nobroker_django.engine.control import Control, Words
from nobroker_django.engine.durability import Promise
from nobroker_django.engine.held import Held
from nobroker_django.engine.log import Log
from nobroker_django.engine.new_log import NewLog
from tests.crash.test_damage import Original, check_flip, cut_everywhere, original
from tests.crash.test_room import a_writer_dies_beside_another, words_say_another_end
from tests.support.crashing import Findings, drawn, recover_draws, traced
from tests.support.faulty import Call, Hooked, Watched
from tests.support.procs import Diary
from tests.support.scripts import SCRIPTS, open_queue, run

Plant = Callable[[pytest.MonkeyPatch], None]


def no_log_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "datasync", lambda self: None)


def no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watched, "sync_directory", lambda self, path: None)


def words_of_any_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Words, "belong_to", lambda self, log_id, generation: self.log_id == log_id)


def promises_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Promise, "keep", Promise.drop)


def batches_in_pieces(patch: pytest.MonkeyPatch) -> None:
    whole = records.batch_fields

    def each_alone(kind: int, body: bytes, offset: int) -> tuple[int, int]:
        fields = whole(kind, body, offset)
        return (1, fields[1]) if fields else (1, 0)

    patch.setattr("nobroker_django.engine.recovery.batch_fields", each_alone)


def cut_bytes_thrown_away(patch: pytest.MonkeyPatch) -> None:
    keep: Callable[..., Path] = recovery.keep_aside

    def keep_nothing(*arguments: Any) -> Path:
        path = keep(*arguments)
        path.write_bytes(b"")
        return path

    patch.setattr(recovery, "keep_aside", keep_nothing)


def tokens_without_the_opening(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "fencing_token", lambda open_seq, seq: f"{0:016x}{seq:012x}")


def new_generation_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewLog, "sync", NewLog.flush)


def damage_always_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_judged", lambda log, tail: tail)


def power_cuts_taken_for_corruption(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_looks_like_a_power_cut", lambda log, damage, size: damage.cut_short)


@pytest.mark.parametrize(
    ("plant", "script"),
    [
        (no_log_sync, "brief"),
        (no_directory_sync, "compaction"),
        (words_of_any_generation, "compaction"),
        (promises_not_kept, "brief"),
        (batches_in_pieces, "brief"),
        (cut_bytes_thrown_away, "brief"),
        (tokens_without_the_opening, "leases"),
        (new_generation_not_synced, "compaction"),
        (power_cuts_taken_for_corruption, "brief"),
    ],
)
def test_power_cuts_find(fast_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, script: str):
    plant(monkeypatch)
    findings = Findings()
    recover_draws(traced(fast_path / "queue", SCRIPTS[script]), fast_path / "scratch", drawn(script), 4, findings)
    assert findings.broken


def poison_is_not_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Control, "set_poisoned", lambda self, flag: None)
    patch.setattr(Control, "begin_sync", lambda self: None)


def verified_bytes_not_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_write_again", lambda *arguments: None)


@pytest.mark.parametrize("plant", [poison_is_not_set, verified_bytes_not_written_again])
def test_power_cuts_after_failed_syncs_find(fast_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant):
    plant(monkeypatch)
    findings = Findings()
    for failing in range(2, 7):
        trace = traced(fast_path / f"queue-{failing}", SCRIPTS["brief"], fail_syncs=frozenset([failing]))
        recover_draws(trace, fast_path / "scratch", drawn(failing), 4, findings)
    assert findings.broken


def test_cut_logs_find_control_words_that_are_not_believed(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(fast_path / "queue", SCRIPTS["brief"])
    found = original(fast_path / "queue")
    monkeypatch.setattr(Words, "belong_to", lambda self, log_id, generation: False)
    with pytest.raises(AssertionError, match="opened, although"):
        cut_everywhere(found, fast_path / "copy", range(200, len(found.data), 50))


def test_flipped_bits_find_that_damage_is_always_cut(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(fast_path / "queue", SCRIPTS["brief"])
    found = original(fast_path / "queue")
    damage_always_cut(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_flip(found, fast_path / "copy", len(found.data) - 5, 3)


def checksums_ignored(patch: pytest.MonkeyPatch) -> None:
    class NoSum:
        @staticmethod
        def crc32(data: bytes, start: int = 0) -> int:
            return 0

    patch.setattr(framing, "zlib", NoSum)


def test_flipped_bits_find_missing_checksums(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    checksums_ignored(monkeypatch)
    run(fast_path / "queue", SCRIPTS["brief"])
    directory = fast_path / "queue"
    with open_queue(directory) as queue:
        jobs, log = queue.list_jobs(), queue.path
    found = Original(directory, log, log.read_bytes(), jobs)
    at = found.data.index(b"xxxx")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_flip(found, fast_path / "copy", at, 0)


def published_before_written(patch: pytest.MonkeyPatch) -> None:
    def append(self: Held, data: bytes, last: int) -> int:
        start = self.end
        self.lock_file.control.publish(self.log.position(start + len(data)), self.log.position(start))
        self.log.append(data, start)
        self.end = start + len(data)
        return start

    patch.setattr(Held, "append", append)


class Ended(BaseException):
    """The process ended here."""


def sync_while_another_writes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process is about to write, and dies; meanwhile another one, which waits, syncs what is published."""
    waiting: list[Promise] = []
    files = Hooked()
    with open_queue(directory) as one, open_queue(directory, files) as two:
        with monkeypatch.context() as patch:
            patch.setattr(Queue, "_keep", lambda self, promise: waiting.append(promise))
            one.enqueue({"k": "waits"})

        def die(call: Call) -> None:
            if call.kind == "pwrite" and call.path.endswith(".log"):
                files.hook = None
                waiting[0].keep()
                raise Ended

        files.hook = die
        with contextlib.suppress(Ended):
            two.enqueue({"k": "dies"})
        one.enqueue({"k": "goes on"})
        with open_queue(directory) as three:
            assert {job.payload["k"] for job in three.list_jobs()} == {"waits", "goes on"}


@pytest.mark.contract("LOG-06", "LOG-09")
def test_a_sync_while_another_process_is_about_to_write(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    sync_while_another_writes(fast_path / "queue", monkeypatch)


def test_that_finds_what_is_published_before_it_is_written(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    published_before_written(monkeypatch)
    with pytest.raises((CorruptLogError, AssertionError)):
        sync_while_another_writes(fast_path / "queue", monkeypatch)


def every_end_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "ends_at", lambda self, end: True)


def ends_believed_by_their_last_byte(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "ends_at", lambda self, end: self.peek(end - 1, 1) == b"}")


def ends_believed_by_what_follows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "ends_at", lambda self, end: not self.peek(end, 9).strip(b"\0"))


def torn_tails_left_in_the_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "truncate", lambda self, size: None)


def room_taken_for_data(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "data_end", Log.size)


@pytest.mark.parametrize(
    "plant", [every_end_believed, ends_believed_by_their_last_byte, torn_tails_left_in_the_room, room_taken_for_data]
)
def test_writers_that_die_beside_others_find(
    fast_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant
):
    errors = Diary(tmp_path / "errors")
    a_writer_dies_beside_another(fast_path / "sound", errors, "x" * 9001, 5000)
    plant(monkeypatch)
    with pytest.raises((CorruptLogError, AssertionError)):
        a_writer_dies_beside_another(fast_path / "queue", errors, "x" * 9001, 5000)
    errors.close()


@pytest.mark.parametrize("plant", [every_end_believed, ends_believed_by_what_follows])
def test_words_that_point_elsewhere_find(fast_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant):
    plant(monkeypatch)
    with pytest.raises((CorruptLogError, AssertionError)):
        words_say_another_end(fast_path / "queue", "there too")
