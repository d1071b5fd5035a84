"""Who opens first and who closes last: it holds in every order of its steps, and needs each of its rules."""

import pytest

from .exploring import explore
from .session_model import RULES, SessionModel, State

pytestmark = [pytest.mark.contract("LOG-06", "PROC-01", "PROC-03", "LOG-03")]


@pytest.mark.parametrize(
    "start",
    [State(kills=1, cuts=1, lives=(2, 1, 1)), State(cuts=2, lives=(2, 1, 0)), State(kills=2, lives=(2, 2, 1))],
    ids=["killed, power cut", "two power cuts", "two killed"],
)  # fmt: skip
def test_nobody_writes_behind_a_hole_or_by_a_damaged_projection(start: State):
    found = explore(SessionModel(), start)
    print(found.states)
    assert found.problem is None, str(found)
    assert found.states > 1000


def test_where_all_close_in_order_somebody_is_the_last():
    found = explore(SessionModel(orderly=True), State())
    assert found.problem is None, str(found)


@pytest.mark.long
def test_with_more_faults():
    found = explore(SessionModel(), State(kills=2, cuts=2), most=20_000_000)
    assert found.problem is None, str(found)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_this_rule_it_does_not_hold(rule: str):
    orderly = rule == "a closer lets the session go before the log"
    faults = 0 if orderly else 1
    found = explore(SessionModel(RULES - {rule}, orderly=orderly), State(kills=faults, cuts=faults))
    assert found.problem is not None
    print(found)
