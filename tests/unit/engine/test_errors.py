"""The sentences of errors: whole, with one full stop, and in the number that is meant."""

import ast
from pathlib import Path

import pytest

import nobroker_django
from nobroker_django import CompactionResult, InvalidOptionError, RecoveryReport, StorageError
from nobroker_django.engine.errors import storing_nothing

PACKAGE = Path(nobroker_django.__file__).parent


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        ("is wrong", "is wrong", "x: is wrong. Nothing was stored."),
        ("is wrong.", "is wrong", "x: is wrong. Nothing was stored."),
        ("is wrong. Is it?", "is wrong. Is it?", "x: is wrong. Is it? Nothing was stored."),
    ],
)
def test_a_wrong_option_says_once_what_became_of_the_data(message, reason, text):
    error = InvalidOptionError("x", message)
    assert (error.option, error.reason, str(error)) == ("x", reason, text)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_who_refuses_an_option_leaves_it_to_the_error_to_say_what_was_stored(path):
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "InvalidOptionError"
    ]
    texts = [node.value for call in calls for node in ast.walk(call) if isinstance(node, ast.Constant)]
    assert [text for text in texts if isinstance(text, str) and "othing was " in text] == []


def test_where_nothing_was_to_be_stored_that_is_not_said():
    with pytest.raises(InvalidOptionError) as raised, storing_nothing():
        raise InvalidOptionError("x", "is wrong")
    assert str(raised.value) == "x: is wrong"


@pytest.mark.parametrize(("count", "text"), [(1, "1 job of this call is"), (2, "2 jobs of this call are")])
def test_what_was_done_before_is_counted_in_words(count, text):
    error = StorageError("write", "/x", OSError(28, "No space left on device"))
    error.comes_after(count)
    assert str(error).startswith(f"{text} dealt with, the rest is not: ")
    assert error.stored is None


def test_reports_count_in_words():
    assert ", kept 1 job, dropped 0 finished" in compaction(1).describe()
    assert ", kept 2 jobs, dropped 0 finished" in compaction(2).describe()
    assert RecoveryReport(records_applied=1, bytes_scanned=1).describe() == "whole, 1 record (1 byte) checked"


def compaction(kept):
    return CompactionResult(bytes_before=10, bytes_after=5, jobs_kept=kept, jobs_dropped=0)
