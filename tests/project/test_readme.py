"""The README's two commands, and that the check run calls the very same."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
COMMANDS = dict(re.findall(r"<!-- command: (\w+) -->\n```sh\n(.*?)\n```\n", README, re.DOTALL))


def test_the_readme_has_exactly_two_commands_of_one_line_each():
    assert set(COMMANDS) == {"demo", "tests"}
    assert all("\n" not in command for command in COMMANDS.values())


@pytest.mark.parametrize("name", ["demo", "tests"])
def test_the_check_run_takes_the_command_from_the_readme(name):
    done = subprocess.run(["bash", ".ci/run", "--readme", name], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.rstrip("\n")) == (0, COMMANDS[name])
    assert re.search(rf"^run_readme {name}$", CI, re.MULTILINE), "the check run does not call it"


def test_the_commands_do_their_own_setup_in_the_checkout():
    for command in COMMANDS.values():
        make, install, run = command.split(" && ")
        assert make == "python3 -m venv .venv"
        (extra,) = re.findall(r"^\.venv/bin/pip install -e '\.\[(\w+)\]'$", install)
        assert extra in EXTRAS
        assert run.startswith(".venv/bin/python ")


def test_the_commands_run_the_demo_and_the_suite():
    assert COMMANDS["demo"].endswith("example_project/manage.py demo")
    assert COMMANDS["tests"].endswith("-m pytest")


def test_an_unknown_name_is_refused():
    done = subprocess.run(
        ["bash", ".ci/run", "--readme", "none"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "no command named 'none'" in done.stderr
