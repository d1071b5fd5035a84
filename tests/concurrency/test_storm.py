"""Many processes on one queue, killed at random: nothing acknowledged is lost, nothing is done twice, tokens rise."""

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from tests.support.crashing import drawn
from tests.support.procs import Diary
from tests.support.storm import ROLES, Storm, check, compactor, patient, producer, visitor, worker

pytestmark = [pytest.mark.contract("PROC-01", "LEASE-01", "LEASE-02", "LEASE-03", "LOG-06", "COMP-03")]


def storm(directory: Path, diary: Diary, errors: Diary, seed: str, *, rounds: int, kills: int) -> None:
    rng = drawn(seed)
    weather = Storm(directory, diary, errors, rng)
    try:
        for _ in range(rounds):
            for role in ROLES:
                weather.start(role)
            weather.more(2000)
            for _ in range(kills):
                weather.more(rng.randrange(1, 1500))
                weather.kill_some()
            weather.more(500)
            weather.end()
            print(check(directory, diary), f"{weather.births} processes")
    finally:
        weather.end()
    logs = list(directory.glob("*.log"))
    assert len(logs) <= 2, logs  # the last compaction may have been killed before it removed the old one


def test_a_storm(queue_dir: Path, diary: Diary, errors: Diary):
    """C12."""
    storm(queue_dir, diary, errors, "storm", rounds=2, kills=8)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_long_storm(queue_dir: Path, diary: Diary, errors: Diary, seed: int):
    storm(queue_dir, diary, errors, f"long {seed}", rounds=5, kills=25)


def sabotage(directory: Path, rng: random.Random, number: int) -> str:
    """Harm a cache or a lock file, as a careless person or a temporary-file cleaner would."""
    run = directory / "default.run"
    builds = sorted(run.glob("*.index")) if run.is_dir() else []
    what: str = rng.choice(
        ("remove run", "remove index", "replace index", "empty index", "remove wal", "move lock", "remove lock")
    )
    with contextlib.suppress(FileNotFoundError):  # it went meanwhile
        harm(directory, rng, number, what, builds)
    return what


def harm(directory: Path, rng: random.Random, number: int, what: str, builds: list[Path]) -> None:
    run = directory / "default.run"
    match what:
        case "remove run":
            shutil.rmtree(run, ignore_errors=True)
        case "remove index":
            for path in builds:
                path.unlink(missing_ok=True)
        case "replace index" if builds:
            garbage = directory / f"garbage-{number}"
            garbage.write_bytes(rng.randbytes(10_000))
            garbage.rename(builds[-1])
        case "empty index" if builds:
            with builds[-1].open("r+b") as file:
                file.truncate(0)
        case "remove wal" if builds:
            builds[-1].with_name(builds[-1].name + "-wal").unlink(missing_ok=True)
        case "move lock":
            (directory / "default.lock").rename(directory / f"moved-{number}")
        case "remove lock":
            (directory / "default.lock").unlink(missing_ok=True)
            (directory / "default.lock").touch()


@pytest.mark.contract("PROC-03")
def test_caches_and_lock_files_harmed_under_load(queue_dir: Path, diary: Diary, errors: Diary):
    rng = drawn("sabotage")
    weather = Storm(queue_dir, diary, errors, rng)
    done = []
    try:
        for role in (producer, producer, worker, worker, compactor, visitor):
            weather.start(patient(role))  # a cache may be gone in the middle of a verb: that is said, and nothing lost
        weather.more(1000)
        for number in range(40):
            weather.more(rng.randrange(1, 400))
            done.append(sabotage(queue_dir, rng, number))
            if number % 10 == 9:
                weather.kill_some()
        weather.more(1000)
        weather.end()
        print(check(queue_dir, diary), done)
    finally:
        weather.end()


@pytest.mark.long
@pytest.mark.contract("PROC-03")
@pytest.mark.parametrize("seed", range(10))
def test_caches_and_lock_files_harmed_for_long(queue_dir: Path, diary: Diary, errors: Diary, seed: int):
    rng = drawn(f"sabotage {seed}")
    weather = Storm(queue_dir, diary, errors, rng)
    try:
        for role in (producer, producer, worker, worker, compactor, visitor):
            weather.start(patient(role))
        weather.more(1000)
        for number in range(100):
            weather.more(rng.randrange(1, 400))
            sabotage(queue_dir, rng, number)
            if number % 10 == 9:
                weather.kill_some()
        weather.end()
        print(check(queue_dir, diary))
    finally:
        weather.end()
