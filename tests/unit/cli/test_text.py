"""Text for terminals: safe, aligned, in words that people use."""

import io
import os

import pytest

from nobroker_django.cli.text import duration, escape, iso, shorten, table, write_line
from nobroker_django.engine.wording import count_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 😀", "plain é 😀"),
        ("a\r\nb", r"a\r\nb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\u202eabc", r"\u202eabc"),
        ("\u2028", r"\u2028"),
        ("\x00\x85", r"\x00\x85"),
        ("\ud800", r"\ud800"),
        ("\ufeff", r"\ufeff"),
    ],
)
def test_control_characters_are_escaped_and_text_stays(text, shown):
    assert escape(text) == shown
    assert len(escape(text).splitlines()) == 1


def test_what_the_stream_cannot_encode_is_escaped():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    assert write_line(stream, "é 😀")
    assert raw.getvalue() == b"\\xe9 \\U0001f600\n"


def test_a_reader_that_has_gone_away_is_no_error_now_or_at_the_end():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        assert write_line(stream, "x") is False
        write_line(stream, "y")


def test_a_full_device_is_no_error():
    with open("/dev/full", "w") as stream:
        assert write_line(stream, "x") is False
        write_line(stream, "y")


def test_a_closed_or_missing_stream_is_no_error():
    stream = io.StringIO()
    stream.close()
    assert write_line(stream, "x") is False
    assert write_line(None, "x") is False


def test_times_are_shown_in_utc():
    assert iso(0.5) == "1970-01-01T00:00:00.500Z"
    assert iso(None) is None
    assert iso(1e20) is None


def test_tables_are_aligned_and_escaped():
    assert table([("A", "N"), ("x\n", "10"), ("yy", "5")], right=[1]) == ["A     N", r"x\n  10", "yy    5"]


def test_long_text_is_cut_with_a_mark():
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "ab…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (59.9, "59.9s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (90_000, "1d01h"),
        (1e7, "115d17h"),
    ],
)
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text


def test_a_number_has_its_noun():
    assert [count_of(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
    assert count_of(3, "delivery", "deliveries") == "3 deliveries"
