"""The outbox holds in every order of its steps, and needs each of its rules."""

from typing import Any

import pytest

from .exploring import Found, explore
from .outbox_model import RULES, OutboxModel, start

WAYS: list[dict[str, Any]] = [
    {"sweeps": (1, 1), "kills": 1, "rollbacks": 1},
    {"sweeps": (1, 1), "kills": 1, "cuts": 1},
    {"sweeps": (1,), "kills": 1, "others": 1},
    {"writers": 2, "sweeps": ()},
]
MORE: list[dict[str, Any]] = [
    {"writers": 2, "sweeps": (1,), "kills": 1},
    {"writers": 2, "sweeps": (1,), "others": 1},
    {"sweeps": (1, 1), "kills": 2, "others": 2},
]

# What each rule needs to be missed.
SHOWN_BY: dict[str, dict[str, Any]] = {
    "the row is part of the transaction": {"kills": 1},
    "what is written is committed": {"rollbacks": 1},
    "a row is deleted once its job is durable": {"cuts": 1},
    "the job is kept until its write can come no more": {"kills": 1},
    "a write that comes later is refused": {"kills": 1},
    "that is decided under the lock": {"kills": 1},
    "the id is free for others after the retention": {"writers": 2},
    "what takes the place of a job remembers its write": {"kills": 1, "others": 1},
}


@pytest.mark.contract("DJ-02")
@pytest.mark.parametrize("way", [*WAYS, *(pytest.param(way, marks=pytest.mark.long) for way in MORE)], ids=str)
def test_no_job_is_lost_and_none_is_made_twice(way):
    found = explore(OutboxModel(), start(**way))
    print(found.states)
    assert found.problem is None, str(found)
    assert found.states > 100


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_this_rule_it_does_not_hold(rule: str):
    found: Found = explore(OutboxModel(RULES - {rule}), start(**SHOWN_BY[rule]))
    assert found.problem is not None, f"{found.states} states, and nothing is wrong"
    print(found)
