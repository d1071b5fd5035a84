"""What people pass to tasks, and what tasks return, that other queues stumble over; plain and typed."""

import json
import math
import re
from datetime import date, datetime
from typing import Any

import pytest
from django.utils import translation
from django.utils.safestring import mark_safe
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy

from nobroker_django import InvalidOptionError, SerializationError, TaskArgumentError, task
from nobroker_django.conf import get_settings
from nobroker_django.engine.payload import MAX_PAYLOAD_BYTES
from nobroker_django.execution import Outcome, execute
from nobroker_django.queues import close_queues, get_queue
from tests.support.bytes import log_bytes, parse
from tests.support.procs import Child, Diary, run_all

from .sample import add, keep
from .test_commands import run
from .test_payloads import ODD_TEXT


def deliver():
    return execute(get_queue(), get_queue().lease_one())


def log():
    """The frames of the log; a parser that takes no NaN reads them."""
    [path] = get_settings().dir.glob("default.*.log")
    frames = parse(log_bytes(path))
    for frame in frames:
        json.dumps(frame.body, allow_nan=False)
    return frames


LAZY = {
    "gettext_lazy": gettext_lazy("Monday"),
    "format_lazy": format_lazy("{} {}", "on", gettext_lazy("Monday")),
    "SafeString": mark_safe("<b>Monday</b>"),
}


@pytest.mark.parametrize("value", LAZY.values(), ids=LAZY)
@pytest.mark.parametrize("annotation", [Any, str, str | None, list[str], dict[str, str], dict[str, date], date])
def test_a_lazy_text_is_refused_whatever_the_annotation_says(make, value, annotation):
    """C19."""

    def work(text, **more) -> None: ...

    work.__annotations__.update(text=annotation, more=annotation)
    made = make(work)
    with translation.override("de"):
        for wrapped in (value, [value], {"a": value}, {value: "a"}):
            for args, kwargs in (((wrapped,), {}), ((), {"text": wrapped}), ((1,), {"more": wrapped})):
                with pytest.raises((SerializationError, TaskArgumentError)) as raised:
                    made.enqueue_many([made.s(*args, **kwargs)])
                assert str(raised.value).startswith("the task: parameter '")
                assert "proxy__ object" not in str(raised.value)
    assert get_queue().stats().total == 0


@pytest.mark.parametrize(
    "value", [{1: "a"}, {1: "a", "1": "b"}, {True: 1, None: 2}, [{"a": {2: 3}}], {(1, 2): 3}], ids=str
)
def test_keys_that_are_no_text_are_refused_in_results_too(make, value):
    """C22."""

    def work() -> Any:
        return value

    with pytest.raises(SerializationError, match="key"):
        keep.enqueue(value)
    result = make(work, max_attempts=1).enqueue()
    assert deliver().outcome is Outcome.DEAD
    result.refresh()
    assert "key" in result.errors[-1].message


def test_keys_and_tuples_keep_their_types_where_the_annotation_names_them(make):
    """C22."""
    table = {1: (1, 2), -3: ()}

    def work(table: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        assert table == {1: (1, 2), -3: ()}
        return table

    result = make(work).enqueue(table)
    assert deliver().outcome is Outcome.SUCCEEDED
    result.refresh()
    assert result.return_value == table
    with pytest.raises(SerializationError):
        make(work).enqueue({1: (1,), "1": (2,)})


WRONG = {
    "delay": [math.nan, math.inf, -math.inf, "10", True, -1],
    "priority": [math.nan, math.inf, -math.inf, "10", True, 1.5, 101],
    "max_attempts": [math.nan, math.inf, -math.inf, "10", True, 1.5, -1, 0],
    "visibility_timeout": [math.nan, math.inf, -math.inf, "10", True, -1, 0],
    "run_after": [math.nan, 10, "10", True],
}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in WRONG.items() for value in values]
)
def test_options_that_are_no_numbers_are_refused_by_name(option, value):
    """C24."""
    with pytest.raises(InvalidOptionError, match=option) as raised:
        add.using(**{option: value})
    assert raised.value.option == option
    if option not in ("delay", "run_after"):
        with pytest.raises(InvalidOptionError, match=option):
            task(**{option: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused_at_any_depth_and_the_log_stays_strict_json(make, value):
    """C24."""

    def work(number: float, numbers: list[dict[str, float]], anything: Any) -> None: ...

    made = make(work)
    made.enqueue(1.5, [{"a": 1e308}], {"b": [5e-324]})
    calls: list[tuple[Any, ...]] = [(value, [], None)]
    calls += [(1.5, [{"a": 1.0}, {"b": value}], None), (1.5, [], {"b": [value]})]
    for args in calls:
        with pytest.raises(SerializationError, match="the task: parameter"):
            made.enqueue(*args)
    assert [frame.body["payload"] for frame in log() if "payload" in frame.body] == [
        {"task": "the task", "args": [1.5, [{"a": 1e308}], {"b": [5e-324]}], "kwargs": {}}
    ]


@pytest.mark.parametrize("text", ODD_TEXT, ids=ascii)
def test_a_job_with_any_text_in_it_can_fail_and_is_one_line_for_people(make, text):
    """C25."""

    def work(one: str, table: dict[str, list[str]], **named: str) -> str:
        assert (one, table, named) == (text, {text: [text]}, {text: text})
        raise ValueError(text)

    made = make(work, max_attempts=1)
    result = made.enqueue(text, {text: [text]}, **{text: text})
    assert deliver().outcome is Outcome.DEAD
    result.refresh()
    assert result.errors[-1].message == text
    assert result.errors[-1].error_class == "ValueError"
    assert len(run("nobroker_dlq").splitlines()) == 1
    assert json.loads(run("nobroker_dlq", "--json"))["jobs"][0]["payload"]["args"] == [text, {text: [text]}]
    assert len(run("nobroker_list", "--json").splitlines()) == 1


@pytest.mark.parametrize(
    ("annotation", "value", "width"),
    [(str, "a", 1), (str, "é", 2), (str, "😀", 4), (bytes, b"abc", 4), (list[int], [7], 2)],
    ids=["ascii", "two bytes", "four bytes", "base64", "list"],
)
def test_the_limit_is_that_of_what_is_on_the_disk(make, annotation, value, width):
    """C27."""

    def work(value) -> None: ...

    work.__annotations__["value"] = annotation
    made = make(work)
    empty = len(json.dumps({"task": "the task", "args": [""], "kwargs": {}}, separators=(",", ":")))
    most = (MAX_PAYLOAD_BYTES - empty) // width
    made.enqueue(value * most)
    with pytest.raises(SerializationError, match=f"the task: .* takes .*the limit is {MAX_PAYLOAD_BYTES}"):
        made.enqueue(value * (most + 2))
    with pytest.raises(SerializationError, match=r"the task: parameter 'value': (takes|holds more than)"):
        made.enqueue(value * most * 2)
    assert get_queue().stats().total == 1


def test_what_is_far_too_large_does_not_get_in_the_way_of_what_is_small(tmp_path):
    """C27."""
    close_queues()
    errors = Diary(tmp_path / "errors")

    def small():
        for number in range(100):
            add.enqueue(number)

    def large():
        text = "x" * 50 * 1024 * 1024
        for _ in range(3):
            with pytest.raises(SerializationError, match="the limit is"):
                keep.enqueue(text)
        with pytest.raises(SerializationError, match="the limit is"):
            keep.enqueue(**{f"name{n}": "x" * 1000 for n in range(10_000)})

    run_all([Child(small, errors=errors), Child(large, errors=errors), Child(small, errors=errors)])
    assert get_queue().stats().total == 200
    assert sum("payload" in frame.body for frame in log()) == 200
    errors.close()


@pytest.mark.parametrize(
    "payload",
    [
        {"task": "the task", "args": [1], "kwargs": {}, "extra": 1},
        {"task": "the task", "args": [1]},
        {"task": ["the task"], "args": [1], "kwargs": {}},
        {"task": "the task", "args": "1", "kwargs": {}},
        {"task": "the task", "args": [1], "kwargs": {"n": 1}},
        {"task": "the task", "args": ["1"], "kwargs": {}},
        {"task": "the task", "args": [], "kwargs": {"x": 1}},
        {"job": "something else"},
        [1],
    ],
    ids=str,
)
def test_a_job_that_another_program_wrote_harms_no_other(make, payload):
    """C29."""

    def work(n: int) -> int:
        return n

    made = make(work)
    foreign = get_queue().enqueue(payload, max_attempts=1, priority=1)
    result = made.enqueue(2)
    assert deliver().outcome is Outcome.DEAD
    assert deliver().outcome is Outcome.SUCCEEDED
    dead = get_queue().get(foreign.id)
    assert dead.payload == payload
    assert re.search(r"(NotATaskError|ArgumentsChangedError)$", dead.errors[-1].error_class)
    result.refresh()
    assert result.return_value == 2


class Refusing(dict[str, int]):
    def __iter__(self):
        raise RuntimeError("not to be looked at")

    items = keys = values = __iter__


RESULTS = {
    "datetime": lambda: datetime(2030, 1, 1),
    "set": lambda: {1},
    "object": object,
    "generator": lambda: (n for n in range(3)),
    "100 MB": lambda: "x" * 100_000_000,
    "dict that raises": lambda: Refusing(a=1),
    "nan": lambda: math.nan,
    "surrogate": lambda: "\ud800",
}


@pytest.mark.parametrize("annotation", [None, Any, int, dict[str, date], list[date] | None], ids=str)
@pytest.mark.parametrize("made_by", RESULTS.values(), ids=RESULTS)
def test_a_result_that_cannot_be_stored_is_the_failure_of_its_job(make, made_by, annotation):
    """C30."""
    ran = []

    def work():
        ran.append(1)
        return made_by()

    work.__annotations__["return"] = annotation
    result = make(work, max_attempts=2, backoff={"base": 0}).enqueue()
    after = add.using(priority=-1).enqueue(1)
    assert [deliver().outcome for _ in range(3)] == [Outcome.FAILED, Outcome.DEAD, Outcome.SUCCEEDED]
    assert len(ran) == 2
    result.refresh()
    assert result.errors[-1].error_class == "nobroker_django.execution.ReturnValueError"
    after.refresh()
    assert after.return_value == 2
