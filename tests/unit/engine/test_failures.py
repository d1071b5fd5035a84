"""Failure texts: whatever an exception does, its failure can be recorded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nobroker_django.engine.failures import MAX_MESSAGE_BYTES, MAX_TRACEBACK_BYTES, describe


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


class StrRaises(Exception):
    def __str__(self):
        raise ValueError("no")


class StrExits(Exception):
    def __str__(self):
        raise SystemExit(3)


class StrIsNoStr(Exception):
    def __str__(self):
        return 5


class StrRecurses(Exception):
    def __str__(self):
        return str(self)


class ReprRaises(Exception):
    def __repr__(self):
        raise ValueError("no")

    __str__ = __repr__


class OddNotes(Exception):
    __notes__: Any = 42


class NotesRaise(Exception):
    def __getattribute__(self, name):
        if name == "__notes__":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class NoteStrRaises(Exception):
    __notes__: Any = [StrRaises()]


@pytest.mark.contract("RETRY-04")
@pytest.mark.parametrize(
    "kind", [StrRaises, StrExits, StrIsNoStr, StrRecurses, ReprRaises, OddNotes, NotesRaise, NoteStrRaises]
)
def test_an_exception_that_fights_being_shown_is_described_by_its_class(kind):
    """C31."""
    text = describe(raised(kind("x")))
    assert text.error_class.endswith(kind.__name__)
    assert isinstance(text.message, str)
    assert text.message == "x" or kind.__name__ in text.message
    assert text.traceback is None or "test_failures.py" in text.traceback


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("own"), MemoryError()]
)
def test_any_base_exception_is_described(error):
    """C32."""
    text = describe(raised(error))
    assert text.error_class == type(error).__name__
    assert text.message == str(error)
    assert "in raised" in text.traceback


def test_class_names_are_qualified_outside_builtins():
    class Inner(Exception):
        pass

    assert describe(ValueError("x")).error_class == "ValueError"
    assert describe(Inner()).error_class.endswith("test_class_names_are_qualified_outside_builtins.<locals>.Inner")
    assert describe(Inner()).error_class.startswith(__name__.partition(".")[0])


def test_text_and_nothing_are_taken_as_they_are():
    class Text(str):
        def __str__(self):
            raise ValueError("no")

    assert describe(None).message is None
    assert describe("plain").message == "plain"
    assert (describe("plain").error_class, describe("plain").traceback) == (None, None)
    assert describe(Text("plain")).message == "plain"
    assert (
        "its text cannot be had" in describe(object.__new__(type("Odd", (), {"__str__": lambda self: 1 / 0}))).message
    )


@pytest.mark.contract("RETRY-04")
@given(st.text(st.characters(), max_size=50), st.integers(1, 400))
def test_any_text_is_recordable_and_cut_at_8_kib_with_a_marker(piece, times):
    text = (piece or "x") * times
    message = describe(text).message
    assert len(message.encode()) <= MAX_MESSAGE_BYTES
    whole = text.encode("utf-8", "backslashreplace")
    if len(whole) <= MAX_MESSAGE_BYTES:
        assert message.encode() == whole
    else:
        assert message.endswith(" … [cut]")
        assert whole.startswith(message.removesuffix(" … [cut]").encode())


@pytest.mark.parametrize("fill", ["x", "€", "\U0001f600", "\ud800", "\x00"])
@pytest.mark.parametrize("size", [8190, 8191, 8192, 8193, 100_000])
def test_the_cut_never_splits_a_character(fill, size):
    message = describe(fill * (size // len(fill.encode("utf-8", "backslashreplace")))).message
    message.encode()
    assert "\ufffd" not in message


def test_lone_surrogates_are_escaped_and_control_characters_kept():
    """C25, C35: escaping for people is the business of what shows them."""
    assert describe(ValueError("a\ud800b")).message == "a\\ud800b"
    assert describe(ValueError("\x00\x1b[2J\r\n\u202e\x07")).message == "\x00\x1b[2J\r\n\u202e\x07"


@pytest.mark.contract("RETRY-04")
def test_tracebacks_are_cut_at_64_kib_and_the_innermost_frames_stay():
    def deep(depth):
        if depth:
            return deep_too(depth - 1)
        raise ValueError("here")

    def deep_too(depth):
        return deep(depth)

    names: dict[str, Any] = {"deep": deep, "deep_too": deep_too}
    for number in range(300):  # different lines, so that Python does not shorten repetitions
        exec(
            f"def f{number}(depth):{chr(10) * (number + 1)}  return " + (f"f{number - 1}(0)" if number else "deep(2)"),
            names,
        )
    with pytest.raises(ValueError, match="here") as raising:
        names["f299"](0)
    text = describe(raising.value)
    assert len(text.traceback.encode()) <= MAX_TRACEBACK_BYTES
    assert "in deep" in text.traceback
    assert text.traceback.rstrip().endswith("ValueError: here")


def test_chained_exceptions_are_in_the_traceback():
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise ValueError("second") from first
    except ValueError as error:
        text = describe(error)
    assert "KeyError: 'first'" in text.traceback
    assert text.traceback.rstrip().endswith("ValueError: second")
    assert text.message == "second"


def test_exception_groups_are_described():
    text = describe(raised(ExceptionGroup("several", [ValueError("a"), KeyError("b")])))
    assert (text.error_class, text.message) == ("ExceptionGroup", "several (2 sub-exceptions)")
    assert "ValueError: a" in text.traceback
