"""The rules of docs/reference/contract.md and the rules that tests carry are the same set (read with ``ast``)."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "docs" / "reference" / "contract.md"
TESTS = ROOT / "tests"

RULE = re.compile(r"\*\*([A-Z]+-\d\d)\*\*")
ID = re.compile(r"[A-Z]+-\d\d")


def documented_rules() -> list[str]:
    return RULE.findall(CONTRACT.read_text(encoding="utf-8"))


def marker_arguments(tree: ast.Module) -> list[tuple[int, ast.expr]]:
    """Line and expression of each argument of each ``pytest.mark.contract(...)``."""
    return [
        (node.lineno, argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.contract"
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]
    ]


def carried_rules() -> dict[str, list[str]]:
    """Each rule that a test carries, with the places that carry it.

    Raises:
        AssertionError: an argument is not the id of a rule, written out.
    """
    carried: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for line, argument in marker_arguments(tree):
            place = f"{path.relative_to(ROOT)}:{line}"
            assert isinstance(argument, ast.Constant), f"{place}: write the rule's id out"
            assert isinstance(argument.value, str), f"{place}: write the rule's id out"
            assert ID.fullmatch(argument.value), f"{place}: {argument.value!r} is not the id of a rule"
            carried.setdefault(argument.value, []).append(place)
    return carried


def test_no_rule_is_listed_twice():
    rules = documented_rules()
    assert sorted(set(rules)) == sorted(rules)


def test_every_rule_has_a_test():
    assert sorted(set(documented_rules()) - set(carried_rules())) == []


def test_every_rule_that_a_test_carries_is_documented():
    documented = documented_rules()
    assert {rule: places for rule, places in carried_rules().items() if rule not in documented} == {}


def test_markers_are_found_wherever_they_can_stand():
    tree = ast.parse(
        """
pytestmark = [pytest.mark.contract("A-01")]
@pytest.mark.contract("A-02", "A-03")
class TestX:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.contract("A-04"))])
    def test_y(self, x): ...
"""
    )
    found = {argument.value for _, argument in marker_arguments(tree) if isinstance(argument, ast.Constant)}
    assert found == {"A-01", "A-02", "A-03", "A-04"}
