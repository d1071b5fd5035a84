"""Lines, JSON, remarks and questions."""

import io
import json

import pytest

from nobroker_django.cli.output import Output, dumps


def test_json_is_one_line_of_ascii():
    stream = io.StringIO()
    assert Output(stream).json({"text": "é\n\x1b[2J\ud800"})
    assert stream.getvalue() == '{"schema": 1, "text": "\\u00e9\\n\\u001b[2J\\ud800"}\n'


def test_json_is_valid_whatever_version_1_has_stored():
    document = {"a": [float("nan"), float("inf"), -float("inf")], "b": 10**5000, "c": (1, 2.5, "x"), "d": True}

    def refuse(name):
        raise AssertionError(name)

    assert json.loads(dumps([float("nan")]), parse_constant=refuse) == ["nan"]
    assert json.loads(dumps(document), parse_constant=refuse) == {
        "a": ["nan", "inf", "-inf"],
        "b": hex(10**5000),
        "c": [1, 2.5, "x"],
        "d": True,
    }


@pytest.mark.parametrize(
    ("answer", "meant"),
    [("y", True), ("YES ", True), ("n", False), ("", False), ("yep", False)],
)
def test_only_yes_is_a_yes(answer, meant, monkeypatch):
    remarks = io.StringIO()
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    assert Output(io.StringIO(), remarks).confirmed("Forget\x1b it?") is meant
    assert remarks.getvalue() == "Forget\\x1b it? [y/N] "


def test_no_answer_is_a_no(monkeypatch):
    def end(prompt):
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    assert Output(None, io.StringIO()).confirmed("Sure?") is False


def test_a_lost_reader_is_remembered():
    stream = io.StringIO()
    out = Output(stream)
    assert out.line("x")
    assert not out.lost
    stream.close()
    assert out.line("y") is False
    assert out.lost
