"""Two or three writers whose system calls interleave as a seed says; then a power cut, at every moment of it."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.crashing import Findings, drawn, recover_draws
from tests.support.interleaving import interleaved
from tests.support.states import recover_piece

pytestmark = [
    pytest.mark.contract("LOG-05", "LOG-06", "LOG-09", "ENQ-01", "ENQ-05", "LEASE-02", "LEASE-03", "COMP-02")
]


def recovered(directory: Path, seeds: range, *, old: bool = False) -> Findings:
    findings = Findings()
    for seed in seeds:
        trace = interleaved(directory / f"queue-{seed}", seed, old=old)
        recover_draws(trace, directory / "scratch", drawn(("writers", seed, old)), 1, findings)
    findings.check()
    return findings


@pytest.mark.parametrize("first", range(0, 8, 2))
def test_writers_that_interleave(fast_path: Path, first: int):
    assert recovered(fast_path, range(first, first + 2)).images > 100


@pytest.mark.contract("LEASE-06")
def test_a_lease_that_takes_a_dead_workers_job_back_and_is_refused_then():
    """It says that nothing of it was stored; that the job was taken back stays. (Met in a run of 100,000 states.)"""
    assert not recover_piece(("writers", 153)).broken


@pytest.mark.contract("LOG-03")
@pytest.mark.parametrize("first", range(0, 4, 2))
def test_writers_that_find_a_queue_of_version_1(fast_path: Path, first: int):
    assert recovered(fast_path, range(first, first + 2), old=True).images > 100


@pytest.mark.contract("LEASE-06")
def test_a_worker_is_among_them(fast_path: Path):
    """The records that only workers write are in some of the first runs, of which the power cuts meet them all."""
    written = Counter[str]()
    for seed in range(8):
        written += interleaved(fast_path / f"queue-{seed}", seed).trace[-1].arguments[0]
    assert all(written[name] for name in ("STARTED", "RELEASE", "RECLAIM+", "DEAD+")), written


def test_the_same_seed_is_the_same_run(fast_path: Path):
    """A seed that a failing run has printed shows the failure again."""
    calls = [
        [
            (event.kind, event.arguments[1:2])
            for event in interleaved(fast_path / name, 5).trace
            if event.kind != "ledger"
        ]
        for name in ("one", "two")
    ]
    kinds = [[(kind, len(str(numbers))) if kind == "write" else kind for kind, numbers in run] for run in calls]
    assert kinds[0] == kinds[1]
