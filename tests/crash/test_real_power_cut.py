"""The power of a real ext4 is cut under producers, workers and compactors: what was acknowledged is there afterwards.

What they were told stands in a diary on another file system. The simulator of ``test_power_cut.py`` tries every legal
state; this shows that a real kernel, journal and page cache leave none that it does not know.
"""

import errno
import faulthandler
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nobroker_django import Queue, StorageError
from nobroker_django.engine.files import Files
from nobroker_django.engine.verification import verify_queue
from tests.support.crashing import drawn
from tests.support.disks import Disk, ext4, needs_root
from tests.support.procs import Diary
from tests.support.storm import ROLES, Storm, check, open_queue, producer

pytestmark = [needs_root, pytest.mark.contract("ENQ-01", "LOG-05", "LEASE-03")]

SIZE_BYTES = 96 * 1024 * 1024
KINDS = {
    "as it comes": ("", ""),
    "fast commits": ("fast_commit", ""),
    "writeback": ("", "data=writeback"),
    "data journalled": ("", "data=journal"),
    "no delayed allocation": ("", "nodelalloc"),
}


def gone(path: Path) -> bool:
    """Whether the power of the disk that ``path`` is on was cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        return error.errno == errno.EIO
    finally:
        os.close(fd)
    return False


def until_the_cut(role: Callable[[Path, Diary, str], None]) -> Callable[[Path, Diary, str], None]:
    """The role, ending in silence when the disk is gone."""

    def until(directory: Path, diary: Diary, seed: str) -> None:
        faulthandler.disable()  # SQLite maps its index of the WAL: a page of it that cannot be read is a SIGBUS
        try:
            role(directory, diary, seed)
        except StorageError:
            if not gone(directory.parent):
                raise

    return until


def one_round(
    disk: Disk, diary: Diary, errors: Diary, rng: random.Random, roles: list[Callable[..., None]], told: int
) -> int:
    """Let them work until ``told`` bytes were told, cut the power, mount the disk again; how much was told at last."""
    weather = Storm(disk.path / "queue", diary, errors, rng)
    before = diary.size()
    try:
        for role in roles:
            weather.start(until_the_cut(role))
        weather.more(told)
        disk.cut()
    finally:
        weather.end()
    disk.unmount()
    disk.mount()
    return diary.size() - before


def power_cuts(tmp_path: Path, diary: Diary, errors: Diary, kind: str, *, rounds: int, seed: str = "") -> None:
    features, options = KINDS[kind]
    rng = drawn(f"power {kind} {seed}")
    with ext4(tmp_path / "mount", tmp_path / "image", SIZE_BYTES, features=features, options=options) as disk:
        for _ in range(rounds):
            told = one_round(
                disk, diary, errors, rng, ROLES, rng.choice((0, 1, 30, 1000, 3000, rng.randrange(10_000)))
            )
            print(kind, told, check(disk.path / "queue", diary))
            assert not verify_queue(disk.path / "queue", "default").findings
        with open_queue(disk.path / "queue") as queue:
            queue.enqueue({"k": "after all"})
            queue.compact()
        assert len(list((disk.path / "queue").glob("*.log"))) == 1
        assert not list((disk.path / "queue").glob("*.tmp"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_power_is_cut_under_load(tmp_path: Path, diary: Diary, errors: Diary, kind: str):
    power_cuts(tmp_path, diary, errors, kind, rounds=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_the_power_is_cut_again_and_again(tmp_path: Path, diary: Diary, errors: Diary, kind: str, seed: int):
    power_cuts(tmp_path, diary, errors, kind, rounds=30, seed=str(seed))


def test_a_power_cut_finds_that_nothing_is_synced(
    tmp_path: Path, diary: Diary, errors: Diary, monkeypatch: pytest.MonkeyPatch
):
    """The fault is planted: without the sync of the log, what was acknowledged since the last sync is gone."""
    monkeypatch.setattr(Files, "datasync", lambda files, fd: None)
    with ext4(tmp_path / "mount", tmp_path / "image", SIZE_BYTES) as disk:
        queue_dir = disk.path / "queue"
        with Queue(queue_dir) as queue:
            queue.enqueue({"k": "first"})
        one_round(disk, diary, errors, drawn("planted"), [producer], told=1000)
        with pytest.raises(AssertionError, match="lost: "):
            check(queue_dir, diary)
