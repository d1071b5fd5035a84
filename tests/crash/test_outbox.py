"""Processes that are killed between the call and the write, at every step: no job is lost, none is there twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
PARTS = ("alone", "first", "second")
pytestmark = pytest.mark.contract("DJ-02")


@pytest.fixture
def crashes(database, fast_path: Path):
    """What ``outbox_kills`` finds with this database; what is killed needs no disk."""

    def run(*parts):
        options = {"OUTBOX": True, "RETENTION": 0, "QUEUES": {"default": {}}}
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
            "NOBROKER_TESTS_DIR": str(fast_path),
            "NOBROKER_TESTS_OPTIONS": json.dumps(options),
        }
        if database is not None:
            environment["NOBROKER_TESTS_DATABASE"] = json.dumps(database)
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.outbox_kills", *parts],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def check(rounds):
    """Each job of a committed transaction ran once, none of another."""
    for one in rounds:
        expected = [f"{one['number']} {part}" for part in PARTS] if one["committed"] else []
        assert sorted(one["ran"]) == sorted(expected), one
        assert one["rows_left"] == 0, one
    assert [one["killed"] for one in rounds] == [True] * (len(rounds) - 1) + [False]


def test_a_kill_at_every_step_of_a_transaction_and_of_what_follows_it(crashes):
    report = crashes("committed", "rolled back")
    rounds, events = report["committed"]["rounds"], report["committed"]["events"]
    check(rounds)
    steps = [event for event in events if event in ("after INSERT", "after COMMIT", "before pwrite", "before DELETE")]
    assert steps.index("before DELETE") > steps.index("before pwrite") > steps.index("after COMMIT")
    assert len(rounds) == len(events) + 1
    killed = [one for one in rounds if one["killed"]]
    assert any(not one["committed"] for one in killed)
    # Between commit and write; after a write and before its row was deleted; in the middle of the two calls.
    assert any(one["committed"] and one["rows"] == 2 and not one["there_before_the_sweep"] for one in killed)
    assert any(one["rows"] == 2 and one["there_before_the_sweep"] == 1 for one in killed)
    assert any(one["rows"] == 1 and one["there_before_the_sweep"] == 3 for one in killed)

    check(report["rolled back"]["rounds"])
    assert not any(one["committed"] or one["rows"] for one in report["rolled back"]["rounds"])


def test_a_kill_at_every_step_of_a_sweep_and_several_sweeps_at_once(crashes):
    report = crashes("swept", "many")
    rounds = report["swept"]["rounds"]
    check(rounds)
    assert all(one["committed"] for one in rounds)
    assert any(one["rows"] == 2 and not one["there_before_the_sweep"] for one in rounds)
    assert any(one["rows"] == 2 and one["there_before_the_sweep"] == 3 for one in rounds)

    many = report["many"]
    assert set(many["codes"]) == {0}
    assert many["rows_left"] == 0
    assert sorted(many["ran"]) == sorted(f"{number} {part}" for number in range(4000, 4040) for part in PARTS)
    assert set(many["ran"].values()) == {1}
