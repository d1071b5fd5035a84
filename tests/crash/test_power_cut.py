"""After a power cut, whatever of the unsynced writes reached the disk, in any order: what was acknowledged is there.

The images are drawn by ``tests.support.powercut``; each is opened by the real queue, which must need no person.
"""

import itertools
from pathlib import Path

import pytest

from nobroker_django.engine import log
from tests.support.crashing import Findings, drawn, recover_all, recover_draws, recover_recoveries, traced
from tests.support.ledger import Script
from tests.support.scripts import SCRIPTS

pytestmark = [pytest.mark.contract("LOG-05", "LOG-06", "ENQ-01", "ENQ-05", "LEASE-03", "COMP-02")]


@pytest.fixture(params=["enough room", "little room"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How much room a log has behind its last record: as always, or so little that it is used up all the time."""
    if request.param == "little room":
        monkeypatch.setattr(log, "LEAST_ROOM_BYTES", 300)
        monkeypatch.setattr(log, "MOST_ROOM_BYTES", 700)
    return str(request.param)


def more(script: Script) -> None:
    """What the next process does."""
    script.enqueue("z1")
    script.lease(1)
    script.enqueue("z2", "z3")


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("openings", [1, 2])
def test_every_image_of_a_script_recovers(fast_path: Path, name: str, openings: int):
    findings = Findings()
    trace = traced(fast_path / "queue", *[SCRIPTS[name], more][:openings])
    recover_draws(trace, fast_path / "scratch", drawn((name, openings)), 6, findings)
    findings.check()
    assert findings.images > 100


@pytest.mark.parametrize("room", ["little room"], indirect=True)
@pytest.mark.parametrize("name", ["every verb", "compaction"])
def test_every_image_where_the_room_is_used_up_again_and_again(fast_path: Path, name: str, room: str):
    findings = Findings()
    trace = traced(fast_path / "queue", SCRIPTS[name], more)
    assert sum(event.kind == "allocate" for event in trace.trace) > 5
    recover_draws(trace, fast_path / "scratch", drawn((name, room)), 2, findings)
    findings.check()
    assert findings.images > 60


def test_all_images_of_a_brief_script(fast_path: Path, room: str):
    findings = Findings()
    trace = traced(fast_path / "queue", SCRIPTS["brief"])
    assert any(event.kind == "allocate" for event in trace.trace)
    recover_all(trace, fast_path / "scratch", 150, findings)
    findings.check()
    assert findings.images > 150


@pytest.mark.contract("LOG-09")
@pytest.mark.parametrize("failing", [(0,), (2,), (3,), (4,), (5,), (6,), (4, 5), (3, 4, 5, 6), (5, 8)])
def test_a_failed_sync_before_the_power_cut(fast_path: Path, failing: tuple[int, ...]):
    findings = Findings()
    trace = traced(fast_path / "queue", SCRIPTS["brief"], more, fail_syncs=frozenset(failing))
    recover_draws(trace, fast_path / "scratch", drawn(failing), 3, findings)
    findings.check()
    assert findings.images > 15


@pytest.mark.parametrize("kill_at", range(0, 60, 3))
def test_a_killed_process_then_another_then_the_power_cut(fast_path: Path, kill_at: int):
    findings = Findings()
    trace = traced(fast_path / "queue", SCRIPTS["brief"], more, kill_at=kill_at)
    recover_draws(trace, fast_path / "scratch", drawn(kill_at), 1, findings)
    findings.check()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_second_power_cut_while_the_first_is_recovered_from(fast_path: Path, name: str):
    findings = Findings()
    trace = traced(fast_path / "queue", SCRIPTS[name], more)
    recover_recoveries(trace, fast_path / "scratch", drawn(name), 12, 1, findings)
    findings.check()
    assert findings.images > 50


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("seed", range(4))
def test_many_images_of_a_script(fast_path: Path, name: str, seed: int, room: str):
    findings = Findings()
    rng = drawn((name, seed, room))
    trace = traced(fast_path / "queue", SCRIPTS[name], more)
    recover_draws(trace, fast_path / "scratch", rng, 12, findings)
    recover_recoveries(trace, fast_path / "again", rng, 60, 2, findings)
    findings.check()


@pytest.mark.long
def test_all_images_of_all_scripts(fast_path: Path, room: str):
    findings = Findings()
    for name, body in SCRIPTS.items():
        recover_all(traced(fast_path / name, body, more), fast_path / "scratch", 300, findings)
    findings.check()


@pytest.mark.long
@pytest.mark.contract("LOG-09")
def test_every_pair_of_failed_syncs(fast_path: Path):
    findings = Findings()
    for pair in itertools.combinations(range(12), 2):
        trace = traced(fast_path / "queue-{}-{}".format(*pair), SCRIPTS["brief"], more, fail_syncs=frozenset(pair))
        recover_draws(trace, fast_path / "scratch", drawn(pair), 2, findings)
    findings.check()


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_killed_at_every_change_then_the_power_cut(fast_path: Path, name: str, room: str):
    findings = Findings()
    for kill_at in itertools.count():
        trace = traced(fast_path / f"queue-{kill_at}", SCRIPTS[name], more, kill_at=kill_at)
        recover_draws(trace, fast_path / "scratch", drawn((name, kill_at, room)), 1, findings)
        if not any(event.kind == "killed" for event in trace.trace):
            break
    findings.check()
