"""At least a hundred thousand different states that a power cut may leave, each recovered by the real queue.

pytest -m long -s tests/crash/test_many_states.py
"""

import os

import pytest

from tests.support.states import recover_many


@pytest.mark.long
@pytest.mark.contract("LOG-05", "LOG-06", "LOG-09", "ENQ-01", "ENQ-05", "LEASE-03", "LEASE-08", "COMP-02", "LOG-03")
def test_a_hundred_thousand_states_after_a_power_cut():
    findings, done = recover_many(100_000, os.cpu_count() or 1)
    seeds = {kind: sum(piece[0] == kind for piece in done) for kind in dict.fromkeys(piece[0] for piece in done)}
    print(f"{len(findings.seen)} different states recovered; pieces, whose numbers are their seeds: {seeds}")
    findings.check()
    assert len(findings.seen) >= 100_000
