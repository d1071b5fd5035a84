"""The page on durability and the suite say the same: commands run tests that exist, no planted fault is missing."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "durability.md"


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]


def commands() -> list[str]:
    return re.findall(r"`(pytest [^`]+)`", text())


def test_every_command_names_tests_that_exist():
    missing = []
    for word in re.findall(r"tests/\S+\.py(?:::\w+)?", " ".join(commands())):
        path, _, name = word.partition("::")
        there = [""]
        if (ROOT / path).exists():
            there += [function.name for function in functions(ROOT / path)]
        if not (ROOT / path).exists() or name not in there:
            missing.append(word)
    assert missing == []
    assert len(commands()) > 30


def test_every_file_of_the_crash_tests_has_its_command():
    named = " ".join(commands())
    files = [path.name for path in (ROOT / "tests" / "crash").glob("test_*.py")]
    assert [name for name in files if f"tests/crash/{name}" not in named] == []


def test_every_planted_fault_is_on_the_page_and_no_other():
    planted = {
        function.name
        for path in (ROOT / "tests" / "crash").glob("test_*.py")
        for function in functions(path)
        if [ast.unparse(one.annotation) for one in function.args.args if one.annotation] == ["pytest.MonkeyPatch"]
        and not function.name.startswith("test_")
    }
    listed = re.findall(r"^\| `(\w+)` \|", text(), re.MULTILINE)
    assert sorted(listed) == sorted(planted)
