"""Killed at every system call of a creation, a conversion of version 1, a compaction and its flip, beside producers.

The course of events is drawn from a seed, the call at which the victim ends is counted up. Nobody has to help: what
was acknowledged is there, once, in order, and one complete generation is live, at once and after a power cut as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nobroker_django.engine import conversion, creation, flip
from nobroker_django.engine.files import write_all
from nobroker_django.engine.generations import Layout, flip_pointer, list_generations, write_pointer
from nobroker_django.engine.log import beginning
from nobroker_django.engine.new_log import BEGINNING_BYTES, NewLog
from tests.support.crashing import Findings, Recoverer, cuts, drawn, recover_around_kills
from tests.support.victims import PROTOCOLS, killed_beside_producers

pytestmark = pytest.mark.contract("LOG-03", "LOG-05", "LOG-06", "LOG-10", "ENQ-01", "ENQ-05", "COMP-02", "COMP-03")


def killed_at(
    directory: Path, what: str, seed: int, kill_at: int, findings: Findings, *, half: bool = False, draws: int = 1
) -> bool:
    """Kill the victim at this call; whether it has one. ``draws``: that often the power is cut then as well."""
    before = len(findings.broken)
    rng = Random(f"{what} {seed} {kill_at} {half}")
    try:
        trace, killed = killed_beside_producers(directory / "queue", what, seed, kill_at, half=half)
        recover_around_kills(trace, directory / "scratch", rng, draws, findings)
    except Exception as error:
        findings.broken.append(f"{type(error).__name__}: {str(error)[:400]}")
        killed = True
    finally:
        shutil.rmtree(directory / "queue", ignore_errors=True)
    here = f"{what} {seed}, killed at {kill_at}"
    findings.broken[before:] = [f"{here}: {text}" for text in findings.broken[before:]]
    return killed


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("what", PROTOCOLS)
def test_killed_at_a_call(fast_path: Path, what: str, half: bool):
    findings, step = Findings(), 29
    kill_at = drawn((what, half)).randrange(step)
    while killed_at(fast_path, what, int(half), kill_at, findings, half=half):
        kill_at += step
    findings.check()
    assert kill_at > 3 * step


def test_killed_in_the_middle_of_each_write_of_a_compaction(fast_path: Path):
    """What is left of the new log goes with the next compaction, however it ends."""
    files, _ = killed_beside_producers(fast_path / "whole", "compaction", 0, 1 << 30)
    writes = [
        number
        for number, call in enumerate(files.counted)
        if call.kind in ("write", "pwrite") and (".compact." in call.path or "000002" in call.path)
    ]
    findings = Findings()
    assert all(killed_at(fast_path, "compaction", 0, number, findings, half=True) for number in writes)
    findings.check()
    assert len(writes) > 4


def power_cuts_where_a_log_is_finished(scratch: Path, seed: int, draws: int) -> Findings:
    """Around each moment at which the beginning of a log is set, in a compaction beside producers."""
    trace, _ = killed_beside_producers(scratch / "queue", "compaction", seed, 1 << 30)
    findings, rng, soon = Findings(), drawn(seed), 0
    recoverer, events = Recoverer(scratch / "scratch", findings), [e for e in trace.trace if e.kind != "found"]
    for number, (event, (disk, ledger, _)) in enumerate(zip(events, cuts(trace), strict=True)):
        soon = 4 if event.kind == "write" and event.arguments[1] == 0 else soon - 1
        if soon > 0:
            for _ in range(draws):
                recoverer.try_image(disk.draw(rng), ledger, f"event {number}")
    return findings


@pytest.mark.parametrize("seed", [0, 4])
def test_a_power_cut_in_a_compaction_leaves_nothing_that_the_next_one_does_not_remove(fast_path: Path, seed: int):
    findings = power_cuts_where_a_log_is_finished(fast_path, seed, 25)
    findings.check()
    assert findings.images > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_power_cuts_in_compactions_beside_producers(fast_path: Path, seed: int):
    power_cuts_where_a_log_is_finished(fast_path, seed, 200).check()


def number_of_copies_before_the_copies(patch: pytest.MonkeyPatch) -> None:
    def finish(self: NewLog) -> None:
        self.flush()
        self._snapshot.copies = self.records
        write_all(self.files, self.fd, beginning(self.generation, self._snapshot, BEGINNING_BYTES), 0)
        self.files.datasync(self.fd)

    patch.setattr(NewLog, "finish", finish)


def test_power_cuts_find_a_number_of_copies_that_comes_before_them(fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    number_of_copies_before_the_copies(monkeypatch)
    assert power_cuts_where_a_log_is_finished(fast_path, 0, 25).broken


@pytest.mark.long
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("what", PROTOCOLS)
def test_killed_at_every_call(fast_path: Path, what: str, seed: int, half: bool):
    findings = Findings()
    calls = next(n for n in count() if not killed_at(fast_path, what, seed, n, findings, half=half))
    print(f"{what}, seed {seed}: killed at each of {calls} calls")
    findings.check()
    assert calls > 80


Plant = Callable[[pytest.MonkeyPatch], None]


def pointer_before_the_first_log(patch: pytest.MonkeyPatch) -> None:
    write_first_log = creation._write_first_log

    def pointer_first(files: Any, layout: Layout, now: float, mode: int) -> None:
        write_pointer(files, layout, 1, mode)
        write_first_log(files, layout, now, mode)

    patch.setattr(creation, "_write_first_log", pointer_first)


def pointer_before_the_name_of_the_new_log(patch: pytest.MonkeyPatch) -> None:
    class NamedFirst(NewLog):
        def take_name(self) -> None:
            write_pointer(self.files, self.layout, self.generation, 0o600)
            super().take_name()

    patch.setattr(conversion, "NewLog", NamedFirst)


def _unlink_older(files: Any, layout: Layout) -> None:
    for generation in list_generations(files, layout)[:-1]:
        files.unlink(layout.log(generation))


def old_log_unlinked_before_the_pointer(patch: pytest.MonkeyPatch) -> None:
    def unlinked_first(files: Any, layout: Layout, prepared: Path) -> None:
        _unlink_older(files, layout)
        flip_pointer(files, layout, prepared)

    patch.setattr(flip, "flip_pointer", unlinked_first)


def old_log_unlinked_before_the_sync_of_the_pointer(patch: pytest.MonkeyPatch) -> None:
    def unlinked_between(files: Any, layout: Layout, prepared: Path) -> None:
        files.rename(prepared, layout.pointer)
        _unlink_older(files, layout)
        files.sync_directory(layout.directory)

    patch.setattr(flip, "flip_pointer", unlinked_between)


@pytest.mark.parametrize(
    ("plant", "what", "draws"),
    [
        (pointer_before_the_first_log, "creation", 0),
        (pointer_before_the_name_of_the_new_log, "conversion", 0),
        (old_log_unlinked_before_the_pointer, "compaction", 0),
        (old_log_unlinked_before_the_sync_of_the_pointer, "compaction", 30),
    ],
)
def test_that_finds(fast_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, what: str, draws: int):
    """Tried are the calls around the one that changes the pointer, as the engine is and with the fault."""
    files, _ = killed_beside_producers(fast_path / "whole", what, 0, 1 << 30)
    around = [
        number + distance
        for number, call in enumerate(files.counted)
        for distance in range(-2, 5)
        if call.kind == "rename" and call.arguments[0].endswith(".current")
    ]
    assert around
    sound = Findings()
    assert all(killed_at(fast_path, what, 0, number, sound) for number in around)
    sound.check()
    plant(monkeypatch)
    findings = Findings()
    assert any(killed_at(fast_path, what, 0, at, findings, draws=draws) and findings.broken for at in reversed(around))
    print(findings.broken[0])
