"""Values of every type that an annotation may name: JSON and back, equal and of the same type, or refused."""

import dataclasses
import enum
import inspect
import json
import math
import re
import typing
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pytest
from django.contrib.auth.models import User
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from nobroker_django.annotations import AmbiguousError, UnresolvedError, UnsupportedError, converter_of
from nobroker_django.engine.errors import SerializationError
from nobroker_django.engine.payload import encode_payload
from nobroker_django.misfits import Misfit

BERLIN = ZoneInfo("Europe/Berlin")
T = TypeVar("T")
UserId = NewType("UserId", int)


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "one"


class Colour(enum.Enum):
    RED = "red"


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


class Mixed(enum.Enum):
    A = (1, 2)


class Size(models.TextChoices):
    SMALL = "s", gettext_lazy("Small")


class Level(models.IntegerChoices):
    LOW = 1, "Low"


class Text(str):
    __slots__ = ()


class Count(int):
    pass


@dataclasses.dataclass
class Point:
    x: int = 1
    at: datetime | None = None


@dataclasses.dataclass
class Place(Point):
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Tree:
    value: Decimal
    branches: "tuple[Tree, ...]" = ()


@dataclasses.dataclass
class Positive:
    number: int

    def __post_init__(self):
        if self.number <= 0:
            raise ValueError("must be positive")


@dataclasses.dataclass
class Broken:
    number: int

    def __post_init__(self):
        raise KeyError("no such number")


class Order(msgspec.Struct, frozen=True):
    number: uuid.UUID
    price: Decimal


class Pair(NamedTuple):
    day: date
    many: int = 0


class Choice(TypedDict):
    since: date
    limit: NotRequired[int]


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text form")

    __str__ = __repr__


SUMMER, WINTER = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)

GOOD: list[tuple[Any, Any, Any]] = [
    (int, 2**70, 2**70),
    (float, 0.1, 0.1),
    (str, "ä\x00\u2028", "ä\x00\u2028"),
    (bool, True, True),
    (None, None, None),
    (bytes, b"\x00\xffx", "AP94"),
    (bytearray, bytearray(b"x"), "eA=="),
    (date, date(1, 1, 1), "0001-01-01"),
    (date, date.max, "9999-12-31"),
    (time, time(1, 2, 3, 4), "01:02:03.000004"),
    (time, time(1, tzinfo=UTC), "01:00:00Z"),
    (datetime, datetime(2030, 1, 1, 12), "2030-01-01T12:00:00"),
    (datetime, datetime(2030, 1, 1, 12, 0, 0, 1, tzinfo=UTC), "2030-01-01T12:00:00.000001Z"),
    (datetime, datetime.min, "0001-01-01T00:00:00"),
    (datetime, datetime.max, "9999-12-31T23:59:59.999999"),
    (datetime, datetime(2030, 1, 1, tzinfo=timezone(-timedelta(hours=3, minutes=30))), "2030-01-01T00:00:00-03:30"),
    (datetime, SUMMER, "2026-10-25T02:30:00+02:00"),
    (datetime, WINTER, "2026-10-25T02:30:00+01:00"),
    (timedelta, timedelta(1), "P1D"),
    (timedelta, timedelta(days=-1, microseconds=3), "-PT86399.999997S"),
    (timedelta, timedelta.max, "P999999999DT86399.999999S"),
    (timedelta, timedelta.min, "-P999999999D"),
    (uuid.UUID, uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Decimal, Decimal("1.10"), "1.10"),
    (Decimal, Decimal("-1E+400"), "-1E+400"),
    (Decimal, Decimal("NaN"), "NaN"),
    (Decimal, Decimal("sNaN"), "sNaN"),
    (Path, Path("/tmp/ä"), "/tmp/ä"),
    (PurePosixPath, PurePosixPath("a/b"), "a/b"),
    (Number, Number.ONE, 1),
    (Word, Word.ONE, "one"),
    (Colour, Colour.RED, "red"),
    (Right, Right.READ | Right.WRITE, 3),
    (Size, Size.SMALL, "s"),
    (Level, Level.LOW, 1),
    (Literal["a", 1, None], "a", "a"),
    (UserId, 5, 5),
    (Annotated[int, msgspec.Meta(ge=1)], 1, 1),
    (Annotated[datetime, msgspec.Meta(tz=True)], datetime(2030, 1, 1, tzinfo=UTC), "2030-01-01T00:00:00Z"),
    (Point, Point(2, datetime(2030, 1, 1)), {"x": 2, "at": "2030-01-01T00:00:00"}),
    (Tree, Tree(Decimal(1), (Tree(Decimal(2)),)), {"value": "1", "branches": [{"value": "2", "branches": []}]}),
    (Order, Order(uuid.UUID(int=1), Decimal(5)), {"number": "00000000-0000-0000-0000-000000000001", "price": "5"}),
    (Pair, Pair(date(2030, 1, 1)), ["2030-01-01", 0]),
    (Choice, {"since": date(2030, 1, 1)}, {"since": "2030-01-01"}),
    (date | None, None, None),
    (int | datetime | None, datetime(2030, 1, 1), "2030-01-01T00:00:00"),
    (int | float, 1, 1),
    (int | float, 1.0, 1.0),
    (int | str | list[date], [date(2030, 1, 1)], ["2030-01-01"]),
    (list[date], [date(2030, 1, 1)], ["2030-01-01"]),
    (list[list[int]], [[1], []], [[1], []]),
    (tuple[int, ...], (1, 2), [1, 2]),
    (tuple[int, date], (1, date(2030, 1, 1)), [1, "2030-01-01"]),
    (tuple, (1, "a"), [1, "a"]),
    (set[str], {"b", "a"}, ["a", "b"]),
    (frozenset[Colour], frozenset({Colour.RED}), ["red"]),
    (AbstractSet[int], {2, 1}, [1, 2]),
    (dict[str, timedelta], {"a": timedelta(1)}, {"a": "P1D"}),
    (dict[int, str], {1: "x", -2: "y"}, {"1": "x", "-2": "y"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}, {"00000000-0000-0000-0000-000000000001": 1}),
    (dict[Colour, date], {Colour.RED: date(2030, 1, 1)}, {"red": "2030-01-01"}),
    (Mapping[str, date], {"a": date(2030, 1, 1)}, {"a": "2030-01-01"}),
    (Sequence[date], [date(2030, 1, 1)], ["2030-01-01"]),
    (Collection[int], [1], [1]),
    (Iterable[date], [date(2030, 1, 1)], ["2030-01-01"]),
    (dict[str, list[Point | None]], {"a": [Point(), None]}, {"a": [{"x": 1, "at": None}, None]}),
    (list[float], [1.5, -0.0], [1.5, -0.0]),
]


def shown(value):
    """A parameter's id for pytest, the same in every process: no addresses, no order of a set."""
    if isinstance(value, str | int | float | bytes | type) or value is None:
        return ascii(value)[:60]
    return ascii(str(value))[:60] if typing.get_origin(value) is not None else type(value).__name__


@pytest.mark.contract("DJ-03")
@pytest.mark.parametrize(("annotation", "value", "stored"), GOOD, ids=shown)
def test_a_value_of_the_annotated_type_is_json_on_disk_and_comes_back_equal_in_its_type(annotation, value, stored):
    """C20."""
    converter = converter_of(annotation, {})
    found = value if type(value) in converter.exact else converter.to_json(value, "x")
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == stored
    read = json.loads(text)
    back = read if type(read) in converter.exact else converter.from_json(read, "x")
    assert type(back) is type(value)
    if isinstance(value, datetime):
        # Not ``==``: of two zones it says no in the repeated hour of an autumn night (PEP 495).
        assert back.replace(tzinfo=None) == value.replace(tzinfo=None, fold=0)
        assert back.utcoffset() == value.utcoffset()
    elif isinstance(value, Decimal):
        assert repr(back) == repr(value)
    else:
        assert back == value


BAD: list[tuple[Any, Any, str]] = [
    (int, "1", "x: is of type str, where int is needed"),
    (int, True, "x: is of type bool, where int is needed"),
    (int, 1.0, "x: is of type float, where int is needed"),
    (int, None, "x: is of type None, where int is needed"),
    (bool, 1, "x: is of type int, where bool is needed"),
    (str, 1, "x: is of type int, where str is needed"),
    (str, b"x", "x: is of type bytes, where str is needed"),
    (float, "1.5", "x: is of type str, where float is needed"),
    (float, True, "x: is of type bool, where float is needed"),
    (float, 2**60 + 1, "x: would not come back as it is: 1152921504606846977 would arrive as 1.15"),
    (list[float], [1, math.nan], r"x\[1\]: is nan, which JSON cannot hold"),
    (None, 1, "x: is of type int, where None is needed"),
    (bytes, "eA==", "x: is of type str and would arrive as bytes"),
    (bytes, bytearray(b"x"), "x: is of type bytearray and would arrive as bytes"),
    (date, datetime(2030, 1, 1), "x: is of type datetime.datetime, where datetime.date is needed"),
    (datetime, date(2030, 1, 1), "x: is of type datetime.date, where datetime.datetime is needed"),
    (datetime, "2030-01-01T00:00:00", "x: is of type str and would arrive as datetime.datetime"),
    (datetime, "soon", "x: is of type str, where datetime.datetime is needed: invalid RFC3339"),
    (datetime, 1893456000, "x: is of type int, where datetime.datetime is needed"),
    (datetime, WINTER.replace(tzinfo=None), "x: would not come back as it is"),
    (datetime, datetime(1890, 1, 1, tzinfo=BERLIN), "x: would not come back as it is"),
    (time, time(1, tzinfo=BERLIN), "x: would not come back as it is"),
    (time, time(1, fold=1), "x: would not come back as it is"),
    (Annotated[datetime, msgspec.Meta(tz=True)], datetime(2030, 1, 1), "x: .*timezone"),
    (timedelta, 5, "x: is of type int, where datetime.timedelta is needed"),
    (uuid.UUID, str(uuid.UUID(int=1)), "x: is of type str and would arrive as uuid.UUID"),
    (Decimal, 1, "x: is of type int and would arrive as decimal.Decimal"),
    (Decimal, 1.5, "x: is of type float and would arrive as decimal.Decimal"),
    (Decimal, "1.5", "x: is of type str and would arrive as decimal.Decimal"),
    (Path, "/tmp", "x: is of type str and would arrive as pathlib.PosixPath"),
    (Path, 3, "x: is of type int, where pathlib.Path is needed"),
    (Path, PurePosixPath("/tmp"), "x: is of type pathlib.PurePosixPath and would arrive as pathlib.PosixPath"),
    (Number, 1, "x: is of type int and would arrive as .*Number"),
    (Word, "one", "x: is of type str and would arrive as .*Word"),
    (Colour, "blue", "x: is of type str, where .*Colour is needed: invalid enum value 'blue'"),
    (Colour, Word.ONE, "x: is of type .*Word, where .*Colour is needed: invalid enum value 'one'"),
    (Literal["a", 1], True, r"x: is of type bool, where Literal\['a', 1\] is needed"),
    (Literal["a"], "b", r"x: is of type str, where Literal\['a'\] is needed: invalid enum value 'b'"),
    (Annotated[int, msgspec.Meta(ge=1)], 0, "x: .*expected int >= 1"),
    (Point, {"x": 1}, "x: is of type dict and would arrive as .*Point"),
    (Point, Place(), "x: is of type .*Place and would arrive as .*Point"),
    (Point, Point("1"), r"x\.x: is of type str, where int is needed"),  # type: ignore[arg-type]
    (Point, Point(1, object()), r"x\.at: is of type object, which JSON cannot hold"),  # type: ignore[arg-type]
    (Positive, None, "x: is of type None, where .*Positive is needed"),
    (Tree, Tree(Decimal(1), (Tree(Decimal(1)), Tree(1))), r"x\.branches\[1\]\.value: is of type int and would"),  # type: ignore[arg-type]
    (Pair, Pair("monday"), r"x\.day: is of type str: invalid RFC3339 encoded date"),  # type: ignore[arg-type]
    (Pair, (date(2030, 1, 1), 0), "x: is of type tuple and would arrive as .*Pair"),
    (Choice, {"since": date(2030, 1, 1), "until": 1}, 'x: has the key "until", which would be lost'),
    (Choice, {"limit": 1}, "x: .*missing required field since"),
    (list[date], [date(2030, 1, 1), "x"], r"x\[1\]: is of type str: invalid RFC3339"),
    (list[int], {1}, "set"),
    (list[date], {date(2030, 1, 1)}, "x: is of type set and would arrive as list"),
    (set[int], [1], "x: is of type list and would arrive as set"),
    (set[int], {1, "a"}, r"expected int, got str"),
    (frozenset[int], {1}, "x: is of type set and would arrive as frozenset"),
    (tuple[int, ...], [1], "x: is of type list and would arrive as tuple"),
    (tuple[int, int], (1,), "x: .*length 2"),
    (dict[str, dict[str, int]], {"a": {}, "b": {"c": 1, "d": "x"}}, r'x\["b"\]\["d"\]: is of type str, where int'),
    (dict[str, list[date]], {"a": [date(2030, 1, 1)], "b": [1]}, r'x\["b"\]\[0\]: is of type int, where date'),
    (Annotated[dict[str, int], msgspec.Meta(min_length=2)], {"a": 1, "b": "x"}, r"x\[(\"b\"|\.\.\.)\]: "),
    (dict[int, str], {"1": "x"}, 'x: has the key "1", which would not come back as it is'),
    (dict[int | str, str], {1: "a", "1": "b"}, "x: has the key .*1"),
    (dict[int, date], {1: date(2030, 1, 1), "a": None}, "x: "),
    (dict[date, int], {"soon": 1}, "x: has a key that does not fit"),
    (dict[str, Any], {"a": date(2030, 1, 1)}, r'x\["a"\]: is of type datetime.date'),
    (dict[str, Any], {"a": {1: 2}}, r'x\["a"\]: has the key 1 of type int'),
    (dict[str, Any] | date, {"a": date(2030, 1, 1)}, r'x\["a"\]: is of type datetime.date and would arrive as str'),
    (Sequence[str], "abc", "x: is of type str, where .*Sequence.str. is needed"),
    (Iterable[str], "abc", "x: is of type str, where .*Iterable.str. is needed"),
    (str, Text("x"), "subclass of str"),
    (str, mark_safe("x"), "subclass of str"),
    (str, gettext_lazy("Monday"), "lazy translation"),
    (datetime | None, gettext_lazy("Monday"), "x: .*lazy translation"),
    (list[date], [gettext_lazy("Monday")], r"x\[0\]: .*lazy translation"),
    (int, Count(3), "subclass of int"),
    (int, Number.ONE, "Number"),
    (str, Size.SMALL, "Size"),
    (datetime, User(username="ann"), "x: .*primary key"),
    (list[date], [User(username="ann")], r"x\[0\]: .*primary key"),
    (Point, HttpRequest(), "x: .*values that the task needs"),
    (Point, Unprintable(), "x: .*Unprintable"),
    (date, {Unprintable(): 1}, "x: has a key that JSON cannot hold"),
    (list[date], [[[object()]]], r"x\[0\]\[0\]\[0\]: is of type object"),
]


def refusal(annotation, value):
    """What a caller is told, by the converter or by the engine, to which plain JSON is left."""
    converter = converter_of(annotation, {})
    try:
        stored = value if converter is None or type(value) in converter.exact else converter.to_json(value, "x")
        encode_payload(stored, what="x")
    except Misfit as misfit:
        return f"{misfit.path}: {misfit.reason}"
    except SerializationError as error:
        return str(error)
    return f"accepted as {stored!r}"


@pytest.mark.contract("DJ-03")
@pytest.mark.parametrize(("annotation", "value", "text"), BAD, ids=shown)
def test_a_value_that_would_arrive_as_something_else_is_refused_with_place_and_reason(annotation, value, text):
    """C20, C22."""
    assert re.match(text if text.startswith("x") else f".*{text}", refusal(annotation, value), re.DOTALL)


def test_a_value_that_is_too_deep_or_holds_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for annotation in (list, list[Any] | date, set[Any] | None, Point):
        for value in (loop, deep):
            assert "nested" in refusal(annotation, value)
    for annotation in (list[Any] | date, set[Any] | None, Point):
        assert refusal(annotation, deep) == "x: is nested too deeply"


def test_what_a_class_of_the_project_raises_is_the_reason():
    value = Positive(1)
    value.number = -1
    assert refusal(Positive, value) == "x: is of type {0}, where {0} is needed: must be positive".format(
        f"{Positive.__module__}.Positive"
    )
    made = object.__new__(Broken)
    made.number = 1
    assert refusal(Broken, made).startswith("x: cannot be made: KeyError: ")


def test_equal_sets_are_equal_payloads():
    converter = converter_of(dict[str, set[str]], {})
    words = [f"word {n}" for n in range(100)]
    one, two = ({"a": set(some)} for some in (words, reversed(words)))
    assert converter.to_json(one, "x") == converter.to_json(two, "x") == {"a": sorted(words)}


def test_members_of_a_set_that_have_no_order_are_stored_as_they_come():
    converter = converter_of(set[int | str], {})
    assert converter.from_json(converter.to_json({1, "a"}, "x"), "x") == {1, "a"}


def test_a_dictionary_keeps_its_order():
    for annotation in (dict[str, int], dict[str, date], dict[str, Any]):
        value: dict[str, Any] = {"b": date(2030, 1, 1), "a": date(2030, 1, 2)}
        if annotation != dict[str, date]:
            value = {"b": 1, "a": 2}
        assert list(converter_of(annotation, {}).to_json(value, "x")) == ["b", "a"]


@pytest.mark.parametrize("annotation", [int, str, bool, float, None, str | None, int | str | None, UserId], ids=shown)
def test_plain_types_need_no_conversion(annotation):
    assert converter_of(annotation, {}).exact


@pytest.mark.parametrize("annotation", [Any, object, T, "Any", ...], ids=shown)
def test_any_json_value_is_passed_on_as_it_is(annotation):
    given = inspect.Parameter.empty if annotation is ... else annotation
    assert converter_of(given, {"Any": Any}) is None


@pytest.mark.parametrize(
    "annotation",
    [
        str | uuid.UUID,
        datetime | str,
        bytes | str,
        date | datetime,
        Colour | str,
        Decimal | str,
        "str | UUID",
        list[int] | tuple[int, ...],
        set[int] | list[int],
        dict[str, int] | Point,
        Point | Place,
        list[str | uuid.UUID],
    ],
    ids=shown,
)
def test_types_that_json_cannot_tell_apart_are_refused_together(annotation):
    with pytest.raises(AmbiguousError, match="may not contain more than one"):
        converter_of(annotation, {"UUID": uuid.UUID})


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (User, "primary key"),
        (list[User], "primary key"),
        (QuerySet, "list of primary keys"),
        (HttpRequest, "values that the task needs"),
        (HttpRequest | None, "values that the task needs"),
        (Callable[[int], str], "a name by which"),
        (complex, "pass what it is made of"),
        (range, "pass what it is made of"),
        (Path | str, "custom type"),
        (memoryview, "pass what it is made of"),
        (dict[tuple[int, int], str], "list of pairs"),
        (Mixed, "all str or all int"),
        (Literal[b"x"], "Literal"),
        (3, "no JSON"),
        ("not a type", "is no type"),
    ],
    ids=shown,
)
def test_types_that_no_json_stands_for_are_refused_with_what_to_pass_instead(annotation, text):
    with pytest.raises(UnsupportedError, match=text):
        converter_of(annotation, {})


@pytest.mark.parametrize("annotation", ["Missing", "list[Missing]", "int | Missing", "missing.Missing"], ids=shown)
def test_a_name_that_is_not_there_is_for_later(annotation):
    with pytest.raises(UnresolvedError, match=r"NameError: name '(M|m)issing' is not defined"):
        converter_of(annotation, {})
    if "." not in str(annotation):
        assert converter_of(annotation, {"Missing": date}) is not None
