"""Arguments: what JSON would change is refused naming task, parameter and place; the rest arrives equal."""

import dataclasses
import enum
import uuid
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, QueryDict
from django.test import RequestFactory
from django.utils import translation
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy

from nobroker_django import SerializationError, arguments, payloads
from nobroker_django.engine.payload import MAX_PAYLOAD_BYTES
from nobroker_django.execution import Outcome, execute
from nobroker_django.queues import get_queue

from .sample import add, keep


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "one"


class Colour(enum.Enum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Count(int):
    pass


@dataclasses.dataclass
class Point:
    x: int = 1


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text form")

    __str__ = __repr__


STRANGE = {
    "uuid": uuid.UUID(int=1),
    "decimal": Decimal("1.10"),
    "date": date(2030, 1, 1),
    "datetime": datetime(2030, 1, 1, tzinfo=UTC),
    "timedelta": timedelta(1),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "set": {1},
    "frozenset": frozenset({1}),
    "IntEnum": Number.ONE,
    "StrEnum": Word.ONE,
    "Enum": Colour.RED,
    "dataclass": Point(),
    "model": User(username="ann"),
    "path": Path("/tmp"),
    "defaultdict": defaultdict(list),
    "OrderedDict": OrderedDict(a=1),
    "str subclass": Text("x"),
    "int subclass": Count(3),
    "safe text": mark_safe("<b>x</b>"),
    "lazy text": gettext_lazy("Hello"),
    "lazy format": format_lazy("{}", "x"),
    "complex": 1j,
    "generator": (n for n in "ab"),
    "object": object(),
    "function": len,
    "class": int,
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "surrogate": "\ud800",
    "huge integer": 10**5000,
    "no text form": Unprintable(),
}


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in STRANGE.items()])
@pytest.mark.parametrize("deferred", [False, True], ids=["now", "on commit"])
def test_a_value_that_json_would_change_is_refused_with_task_parameter_and_place(value, deferred, request):
    """C20."""
    if deferred:
        request.getfixturevalue("db")
    for wrapped, place in ((value, ""), ([0, {"deep": value}], r'named\[1\]\["deep"\]: ')):
        with pytest.raises(
            arguments.ArgumentError, match=rf"^keep: parameter 'named': {place}.*Nothing was stored"
        ) as raised:
            keep.enqueue(1, named=wrapped)
        assert (raised.value.task, raised.value.parameter, raised.value.stored) == ("keep", "named", False)
    with pytest.raises(SerializationError, match="parameter 'a'"):
        add.enqueue(value)
    assert get_queue().stats().total == 0


def test_query_sets_and_requests_are_refused_with_a_hint():
    """C20."""
    with pytest.raises(SerializationError, match="list of primary keys"):
        keep.enqueue(User.objects.all())
    with pytest.raises(SerializationError, match="values that the task needs"):
        keep.enqueue(HttpRequest())
    with pytest.raises(SerializationError, match="values that the task needs"):
        keep.enqueue(RequestFactory().get("/"))
    with pytest.raises(SerializationError, match="primary key"):
        keep.enqueue(User(username="ann"))


def test_the_user_of_a_request_is_refused_with_the_hint_that_models_get():
    user = SimpleLazyObject(lambda: User(username="ann"))
    with pytest.raises(SerializationError, match=r"request\.user: pass the primary key"):
        keep.enqueue(user)


@pytest.mark.parametrize(
    "value", [OrderedDict(a=1), defaultdict(int, a=1), QueryDict("a=1")], ids=["ordered", "default", "query"]
)
def test_of_a_kind_of_dict_is_said_what_to_pass_and_nothing_that_cannot_help(value):
    with pytest.raises(SerializationError, match=r"a subclass of dict: pass dict\(value\)") as raised:
        keep.enqueue(value)
    assert "Annotate" not in str(raised.value)
    assert keep.enqueue(dict(value)).created


def test_a_lazy_translation_is_refused_in_any_language_also_as_a_key():
    """C19."""
    with translation.override("de"):
        for value in (gettext_lazy("Monday"), {"x": gettext_lazy("Monday")}, {gettext_lazy("Monday"): 1}):
            with pytest.raises(SerializationError):
                keep.enqueue(value)
    assert get_queue().stats().total == 0


@pytest.mark.parametrize(
    "value", [{1: "x"}, {1: "a", "1": "b"}, {True: 1, None: 2}, {1.5: 1}, {(1, 2): 3}, {Text("k"): 1}, [{"a": {2: 3}}]]
)
def test_keys_that_are_not_text_are_refused(value):
    """C22."""
    with pytest.raises(SerializationError, match="key"):
        keep.enqueue(value)
    assert get_queue().stats().total == 0


def round_trip(*args, **kwargs):
    result = keep.enqueue(*args, **kwargs)
    job = get_queue().lease_one()
    assert execute(get_queue(), job).outcome is Outcome.SUCCEEDED
    result.refresh()
    return result.return_value


ODD_TEXT = [
    "\x00",
    "\x1e",
    "\u2028",
    "\ufeff",
    "\uffff",
    "\n",
    "\r\n",
    "😀",
    "e\u0301",
    "\u202e",
    "\x1b[2J",
    "</script>",
    '"\\',
    "",
]


@pytest.mark.parametrize("text", ODD_TEXT)
def test_odd_text_arrives_as_it_was_in_values_keys_and_names(text):
    """C25."""
    assert round_trip(text, [text], {text: text}, **{text: text}) == [[text, [text], {text: text}], {text: text}]


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -1, 2**70, -(2**70), 0.1, 1e308, 5e-324, -0.0, [], {}, [[]], {"a": {"b": [None]}}, "ä"],
)
def test_json_values_arrive_equal_and_of_the_same_type(value):
    [back], _ = round_trip(value)
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_tuples_arrive_as_lists():
    assert round_trip((1, (2, 3)), x=()) == [[[1, [2, 3]]], {"x": []}]


def test_ten_thousand_keyword_arguments_arrive():
    """C27."""
    named = {f"name{n}": n for n in range(10_000)}
    assert round_trip(**named) == [[], named]


@pytest.mark.parametrize("deferred", [False, True], ids=["now", "on commit"])
@pytest.mark.parametrize("letter", ["a", "é", "😀"])
def test_the_size_limit_counts_bytes_and_is_kept_at_the_call(deferred, letter, request):
    """C27."""
    if deferred:
        request.getfixturevalue("db")
    width = len(letter.encode())
    empty = len('{"task":"keep","args":[""],"kwargs":{}}')
    letters = (MAX_PAYLOAD_BYTES - empty) // width
    keep.enqueue(letter * letters)
    with pytest.raises(SerializationError, match=f"keep: .*the limit is {MAX_PAYLOAD_BYTES}"):
        keep.enqueue(letter * (letters + 1))
    assert get_queue().stats().total == (0 if deferred else 1)


def test_a_payload_that_is_too_large_names_the_parameter_if_one_alone_is():
    with pytest.raises(SerializationError, match=r"parameter 'values\[1\]'"):
        keep.enqueue("small", "x" * MAX_PAYLOAD_BYTES * 2)
    half = "x" * (MAX_PAYLOAD_BYTES // 2 + 1)
    with pytest.raises(SerializationError, match="the arguments together"):
        keep.enqueue(half, half)


def test_nesting_too_deep_is_refused_at_the_call():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SerializationError, match="nested"):
        keep.enqueue(value)


def test_a_value_that_holds_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(SerializationError, match="nested"):
        keep.enqueue(loop)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        "text",
        [],
        {},
        {"task": "keep"},
        {"task": "keep", "args": [], "kwargs": {}, "more": 1},
        {"task": 3, "args": [], "kwargs": {}},
        {"task": "keep", "args": {}, "kwargs": {}},
        {"task": "keep", "args": [], "kwargs": []},
    ],
)
def test_a_payload_of_another_shape_is_no_task(payload):
    with pytest.raises(payloads.NotATaskError, match="not a task"):
        payloads.parse(payload)
