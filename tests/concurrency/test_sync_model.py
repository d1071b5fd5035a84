"""Appending, sharing syncs and securing hold in every order of their steps, and need each of their rules."""

import pytest

from .exploring import Found, explore
from .sync_model import LEASE, LOOK, PLAIN, RULES, SyncModel, start

pytestmark = [pytest.mark.contract("LOG-05", "LOG-06", "LOG-09", "ENQ-01", "ENQ-05", "LEASE-03")]

Verbs = tuple[tuple[tuple[str, str], ...], ...]
ONE_EACH: Verbs = ((("a", PLAIN),), (("b", PLAIN),))
TWO = ((("a", PLAIN),), (("b", PLAIN), ("c", PLAIN)))
LOOKING = ((("a", PLAIN),), (("b", LOOK), ("c", PLAIN)))
FOUR = ((("a", PLAIN), ("d", LEASE)), (("b", PLAIN), ("c", LOOK)))
LEASING = ((("a", PLAIN),), (("b", LEASE), ("c", LEASE)))

# What each rule needs to be missed: the verbs, and the faults.
SHOWN_BY: dict[str, tuple[Verbs, dict[str, int]]] = {
    "an unpublished write is noticed": (TWO, {"kills": 1}),
    "a write is published after it was written": (TWO, {"kills": 1}),
    "nobody writes while the queue is poisoned": (TWO, {"kills": 1, "failures": 1}),
    "a failed sync poisons": (TWO, {"failures": 1}),
    "a sync that was left unfinished is noticed": (TWO, {"kills": 1, "failures": 1}),
    "one sync at a time": (TWO, {"failures": 1}),
    "the goal of a sync is read before it": (ONE_EACH, {}),
    "securing takes the sync lock": (TWO, {"kills": 1, "failures": 1}),
    "poison comes first when securing, and goes last": (TWO, {"kills": 2, "failures": 1}),
    "what was verified is written again": (TWO, {"failures": 1}),
    "what was cut is written again": (TWO, {"kills": 1, "failures": 1}),
    "the cut is on the disk before anything follows": (TWO, {"kills": 1}),
    "OPEN is on the disk before the words speak of it": (LEASING, {"kills": 1}),
    "who waits compares at the end": (TWO, {"failures": 1, "evictions": 1}),
    "who only looked waits as well": (LOOKING, {}),
    "taking a write back is synced": (TWO, {"refusals": 1}),
    "taking a write back leaves older doubts": (TWO, {"failures": 1, "refusals": 1, "kills": 1}),
}


@pytest.mark.parametrize("verbs", [TWO, FOUR, LEASING, LOOKING], ids=["two", "four", "leasing", "looking"])
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"kills": 2, "failures": 2}, id="killed, failed syncs"),
        pytest.param({"kills": 1, "failures": 1, "evictions": 1, "refusals": 1}, id="one of each"),
        pytest.param({"kills": 1, "failures": 1, "emptied": 1}, id="words lost"),
        pytest.param({"kills": 1, "restored": 1}, id="words of an earlier moment"),
    ],
)
def test_nothing_acknowledged_is_lost_and_nobody_waits_for_ever(verbs: Verbs, faults: dict[str, int]):
    found = explore(SyncModel(verbs), start(len(verbs), **faults))
    print(found.states)
    assert found.problem is None, str(found)
    assert found.states > 1000


@pytest.mark.long
@pytest.mark.parametrize("verbs", [TWO, FOUR, LEASING, LOOKING], ids=["two", "four", "leasing", "looking"])
def test_with_more_faults(verbs: Verbs):
    faults = {"kills": 2, "failures": 2, "evictions": 2, "refusals": 1}
    found = explore(SyncModel(verbs), start(2, **faults), most=20_000_000)
    assert found.problem is None, str(found)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_this_rule_it_does_not_hold(rule: str):
    verbs, faults = SHOWN_BY[rule]
    found: Found = explore(SyncModel(verbs, RULES - {rule}), start(len(verbs), **faults))
    assert found.problem is not None, f"{found.states} states, and nothing is wrong"
    print(found)
