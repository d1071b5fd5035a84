"""The command line in this process: what it prints and the code it ends with."""

import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from nobroker_django.cli.main import main


@dataclass
class Ended:
    """How a command ended: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> dict[str, Any]:
        (line,) = self.lines
        document: dict[str, Any] = json.loads(line)
        assert document["schema"] == 1
        return document


@pytest.fixture
def cli(queue_dir, capsys):
    """``cli("stats", "--json")`` on the test's directory."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main(["--dir", str(queue_dir), *arguments])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture(autouse=True)
def logging_as_before():
    """``main`` sends the engine's log to standard error, for as long as its process lives."""
    logger = logging.getLogger("nobroker_django")
    handlers, propagate = logger.handlers[:], logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
