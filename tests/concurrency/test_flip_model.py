"""The compaction's protocol holds in every order of its steps, and needs each of its rules."""

import pytest

from .flip_model import RULES, State, explore

pytestmark = [pytest.mark.contract("COMP-02", "COMP-03", "LOG-06")]

RIVAL = State(rival="begin", kills=0, failures=0)
NEEDS_A_RIVAL = {
    "the new log is still the one that was written",
    "the live log is still the one that was copied",
}


@pytest.mark.parametrize("start", [State(), State(kills=2, failures=0), RIVAL], ids=["faults", "two killed", "rival"])
def test_nothing_acknowledged_is_lost_and_nobody_waits_for_ever(start: State):
    found = explore(start)
    assert found.problem is None, str(found)
    assert found.states > 10_000


@pytest.mark.long
def test_with_more_faults():
    for start in (State(kills=3, failures=2), State(rival="begin", kills=2, failures=1)):
        found = explore(start)
        assert found.problem is None, str(found)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_this_rule_it_does_not_hold(rule: str):
    found = explore(RIVAL if rule in NEEDS_A_RIVAL else State(), RULES - {rule})
    assert found.problem is not None
    assert "for ever" not in found.problem, str(found)
    print(found)
