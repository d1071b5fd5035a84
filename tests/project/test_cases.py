"""Each case of docs/explanation/cases.md is tried by a test that carries its number, or has a reason beside it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "cases.md"
CASE = re.compile(r"\bC\d\d\b")

# Nobody takes a case off the page unnoticed.
CASES = {
    "A": "C01 C03 C05 C06 C09 C11 C12",
    "B": "C13 C14 C16 C18",
    "C": "C19 C20 C22 C24 C25 C27 C29 C30",
    "D": "C31 C32 C35",
    "E": "C37 C38",
    "F": "C40 C43 C44",
    "G": "C47 C48 C50 C51",
    "H": "C52 C54 C56 C58 C60",
    "I": "C61 C63 C64 C66 C67 C69 C72",
    "J": "C73 C75 C76 C78 C81",
    "K": "C82 C83 C84",
    "L": "C86 C87 C89 C91",
    "M": "C93 C95",
}


def documented() -> dict[str, tuple[str, str]]:
    """Section and text of each case on the page."""
    found, section = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3]
        if case := re.match(r"- \*\*(C\d\d)\*\* (.+)", line):
            assert case[1] not in found
            found[case[1]] = section, case[2]
    return found


def tried() -> set[str]:
    """The cases that docstrings of tests name."""
    found: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.update(CASE.findall(ast.get_docstring(node) or ""))
    return found


def test_all_cases_are_on_the_page():
    expected = {case: section for section, cases in CASES.items() for case in cases.split()}
    assert {case: section for case, (section, _) in documented().items()} == expected


def test_a_case_is_tried_by_a_test_or_has_a_reason_why_not():
    carried = tried()
    for case, (_, text) in documented().items():
        reason = re.search(r"(Not tried|Cannot happen): \w+", text)
        assert (case in carried) is not bool(reason), f"{case}: {text}"
        assert bool(reason) is not ("Tested" in text), f"{case}: {text}"
