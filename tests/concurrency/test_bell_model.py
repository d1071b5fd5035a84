"""Listening and ringing hold in every order of their steps, and need each of their rules."""

import pytest

from .bell_model import RULES, RULES_OF_THE_SUPERVISED, BellModel, start
from .exploring import Found, explore

# Jobs of each producer, jobs that each listener takes.
ONE = ((1,), (1,))
TWO_OF_ONE = ((2,), (1, 1))
TWO_EACH = ((1, 1), (1, 1))
AGAIN = ((1, 1), (2, 1))
THREE = ((3,), (1, 1, 1))

# What each rule needs to be missed: who there is, and the faults.
SHOWN_BY: dict[str, tuple[tuple[tuple[int, ...], tuple[int, ...]], dict[str, int]]] = {
    "the FIFO is there before the word": (ONE, {}),
    "who listens looks again after the word": (ONE, {}),
    "what was seen is from before the lease": (ONE, {}),
    "who appends reads the words after publishing": (ONE, {}),
    "who leaves jobs behind rings": (TWO_OF_ONE, {}),
    "a byte waits for who comes to it": (ONE, {}),
    "who drains looks for work": (ONE, {}),
    "who waits looks once in a while": (ONE, {"removals": 1}),
    "who waits tells the supervisor before it looks again": (ONE, {"removals": 1}),
    "the supervisor looks before it asks whom to tell": (((1, 1), (2,)), {"expiries": 1, "removals": 1}),
    "who is told looks for work": (ONE, {"removals": 1}),
    "who has lost its supervisor leaves": (ONE, {"kills": 1, "removals": 1}),
}


@pytest.mark.parametrize("who", [ONE, TWO_OF_ONE, TWO_EACH, AGAIN, THREE], ids=str)
def test_nobody_waits_while_there_is_a_job(who):
    found = explore(BellModel(), start(*who))
    print(found.states)
    assert found.problem is None, str(found)
    assert found.states > 20


FAULTS = [{"kills": 1}, {"removals": 1}, {"expiries": 1}, {"kills": 1, "removals": 1}, {"kills": 1, "expiries": 1}]


@pytest.mark.parametrize(
    ("who", "faults", "supervised"),
    [
        pytest.param(
            who, faults, supervised, marks=[pytest.mark.long] if many else [], id=f"{who} {faults} {supervised}"
        )
        for who in (ONE, TWO_OF_ONE)
        for faults in FAULTS
        for supervised in (False, True)
        for many in [supervised and who == TWO_OF_ONE and len(faults) > 1]  # a million states
    ],
)
def test_nor_for_longer_than_until_the_next_look_when_somebody_dies_or_the_fifo_goes(who, faults, supervised):
    found = explore(BellModel(), start(*who, supervised=supervised, **faults))
    print(found.states)
    assert found.problem is None, str(found)
    assert found.states > 40


@pytest.mark.parametrize("rule", sorted(RULES | RULES_OF_THE_SUPERVISED))
def test_without_this_rule_it_does_not_hold(rule: str):
    who, faults = SHOWN_BY[rule]
    producers, listeners = who
    supervised = rule in RULES_OF_THE_SUPERVISED
    rules = (RULES | RULES_OF_THE_SUPERVISED) - {rule}
    found: Found = explore(BellModel(rules), start(producers, listeners, supervised=supervised, **faults))
    assert found.problem is not None, f"{found.states} states, and nobody waits in vain"
    print(found)
