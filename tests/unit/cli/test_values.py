"""What options take, and the sentence for what they do not."""

import argparse
import time

import pytest

from nobroker_django.cli import values


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("15m", 900), ("6h", 21_600), ("30d", 2_592_000)]
)
def test_ages_are_numbers_with_a_unit(text, expected):
    assert values.age(text) == expected


@pytest.mark.parametrize("text", ["", "d", "-1", "1y", "1 d", "inf", "nan", "1e3", "٣d"])
def test_anything_else_is_no_age(text):
    with pytest.raises(argparse.ArgumentTypeError, match="30d"):
        values.age(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200M", 200 * 1024**2),
        ("1.5G", 3 * 1024**3 // 2),
        ("300000000", 300_000_000),
        ("64k", 65_536),
        ("1GiB", 1024**3),
        ("2MB", 2 * 1024**2),
        ("1T", 1024**4),
        ("512b", 512),
    ],
)
def test_sizes_are_numbers_of_bytes_with_a_unit(text, expected):
    assert values.size(text) == expected


@pytest.mark.parametrize("text", ["", "M", "-1M", "0", "0.1", "1X", "1 M", "1e9", "inf", "nan", "1Mi B", "٣M", "1i"])
def test_anything_else_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="200M"):
        values.size(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-02", 86_400),
        ("1970-01-01T01:00", 3600),
        ("1970-01-01T01:00Z", 3600),
        ("1970-01-01 01:00+01:00", 0),
    ],
)
def test_moments_are_iso_times_in_utc_unless_they_say_otherwise(text, moment):
    assert values.since(text) == moment


def test_moments_may_be_ages():
    before = time.time()
    assert before - 3600 <= values.since("1h") <= time.time() - 3600


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "12:00"])
def test_anything_else_is_no_moment(text):
    with pytest.raises(argparse.ArgumentTypeError, match="neither an age"):
        values.since(text)


def test_json_options_say_what_they_want():
    assert values.json_list('[1, "a"]') == [1, "a"]
    assert values.json_object('{"a": null}') == {"a": None}
    for function, text in [
        (values.json_list, "{}"),
        (values.json_list, "1,2"),
        (values.json_object, "[]"),
        (values.json_value, "NaN"),
        (values.json_value, "[" * 100_000),
    ]:
        with pytest.raises(argparse.ArgumentTypeError, match="is no JSON"):
            function(text)


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ('{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("42", 42),
        ('"42"', "42"),
        ("plain text", "plain text"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("{a: 1}", "{a: 1}"),
        ("", ""),
    ],
)
def test_a_payload_is_json_or_else_the_text_itself(text, payload):
    assert values.payload(text) == payload
