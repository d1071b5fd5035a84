"""Payloads: what comes back equal, what is refused and where, against the table of what JSON codecs do."""

import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import re
import uuid
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
from django.utils.safestring import mark_safe
from hypothesis import given, settings
from hypothesis import strategies as st

from nobroker_django import JobState, SerializationError, Worker
from nobroker_django.engine import payload as module
from nobroker_django.engine.payload import decode_payload, encode_payload, payload_digest
from tests.contract.helpers import live_log, read_log
from tests.support.bytes import log_end


def exactly_equal(a, b) -> bool:
    """Equal in every type and every digit; a tuple counts as the list that it becomes."""
    if type(a) is tuple:
        a = list(a)
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return bool(a.hex() == b.hex())
    if type(a) is list:
        return len(a) == len(b) and all(map(exactly_equal, a, b))
    if type(a) is dict:
        return list(a) == list(b) and all(exactly_equal(a[key], b[key]) for key in a)
    return bool(a == b)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**639), 10**639)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.tuples(inner, inner) | st.dictionaries(text, inner, max_size=5),
    max_leaves=25,
)


@given(values)
@settings(max_examples=300)
def test_any_json_value_comes_back_exactly_equal(value):
    assert exactly_equal(value, decode_payload(encode_payload(value)))


@given(values)
@settings(max_examples=100)
def test_what_is_stored_is_strict_json_of_one_line_in_utf8(value):
    """C24, C25: for readers that know nothing of this package and read line by line."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    data = encode_payload(value)
    assert b"\n" not in data
    assert b"\0" not in data
    json.loads(data.decode("utf-8"), parse_constant=refuse)


odd = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        b"x",
        bytearray(b"x"),
        {1},
        frozenset(),
        object(),
        1j,
        10**640,
        "\ud800",
        range(3),
        ...,
    ]
)


@given(
    st.recursive(scalars | odd, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4))
)
@settings(max_examples=200)
def test_a_value_is_either_refused_or_comes_back_exactly_equal(value):
    try:
        data = encode_payload(value)
    except SerializationError as error:
        assert error.path.startswith("payload")  # noqa: PT017
        assert error.stored is False  # noqa: PT017
    else:
        assert exactly_equal(value, decode_payload(data))


# --- the table of details.md, row by row


class Text(str):
    pass


class Number(int):
    pass


class Fraction(float):
    pass


class Colour(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    YES = "yes"


class Shade(enum.Enum):
    DARK = "dark"


@dataclasses.dataclass
class Point:
    x: int = 1


class Model:
    """Named like a model's base class."""


class Photo(Model):
    pass


class QuerySet:
    pass


class HttpRequest:
    pass


@pytest.mark.parametrize(
    "value",
    [2**63, 2**64, -(2**63) - 1, 10**100, -(10**639), 10**640 - 1, 9007199254740993],
)
def test_integers_of_more_than_64_bits_are_exact(value):
    assert exactly_equal([value], decode_payload(encode_payload([value])))


@pytest.mark.parametrize("value", [10**640, -(10**640), 10**5000], ids=["640", "-640", "5000"])
def test_integers_of_more_than_640_digits_are_refused(value):
    with pytest.raises(SerializationError, match="640 digits") as refused:
        encode_payload({"n": [value]})
    assert refused.value.path == 'payload["n"][0]'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -math.nan])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [(lambda v: v, "payload"), (lambda v: [[v]], "payload[0][0]"), (lambda v: {"a": (0, v)}, 'payload["a"][1]')],
)
def test_nan_and_infinity_are_refused_at_any_depth(value, wrap, path):
    """C24."""
    with pytest.raises(SerializationError, match=r"nan|inf") as refused:
        encode_payload(wrap(value))
    assert refused.value.path == path


@pytest.mark.parametrize("key", [1, 0, -5, True, False, None, 1.5, (1, 2), b"k", Text("k"), Word.YES, Colour.RED])
@pytest.mark.parametrize("depth", [0, 2])
def test_keys_that_are_no_plain_text_are_refused(key, depth):
    """C22."""
    value: Any = {"good": 1, key: "a"}
    path = "payload"
    for _ in range(depth):
        value, path = [value], f"{path}[0]"
    with pytest.raises(SerializationError, match="key") as refused:
        encode_payload(value)
    assert refused.value.path == path


def test_two_keys_that_json_would_make_one_are_refused_and_none_is_dropped():
    """C22."""
    for value in ({1: "a", "1": "b"}, {True: 1, None: 2}, {"None": 1, None: 2}):
        with pytest.raises(SerializationError):
            encode_payload(value)


@pytest.mark.parametrize(
    "value",
    [
        b"x", bytearray(b"x"), memoryview(b"x"), Text("x"), Number(1), Fraction(1.5), Colour.RED, Word.YES, Shade.DARK,
        {1}, frozenset([1]), uuid.uuid4(), decimal.Decimal("1.50"), datetime.date(2026, 1, 1),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.time(1), datetime.timedelta(1), pathlib.Path("x"),
        defaultdict(list), OrderedDict(a=1), Point(), Photo(), QuerySet(), HttpRequest(), object(), int, len, iter([]),
        iter(()), range(3), 1j, ..., NotImplemented, {}.keys(), Exception("x"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_other_types_are_refused_naming_type_and_path(value):
    """C20."""
    with pytest.raises(SerializationError) as refused:
        encode_payload({"user": [0, value]})
    assert refused.value.path == 'payload["user"][1]'
    assert type(value).__qualname__ in str(refused.value)
    assert "Nothing was stored" in str(refused.value)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Photo(), "primary key"),
        (QuerySet(), "list of primary keys"),
        (HttpRequest(), "values that the task needs"),
        (Text("x"), "str.__str__(value)"),
        (uuid.uuid4(), "as text"),
        (defaultdict(list), "dict(value)"),
        (Colour.RED, "int(value)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_types_that_people_often_pass_come_with_a_next_step(value, hint):
    with pytest.raises(SerializationError) as refused:
        encode_payload(value)
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [mark_safe("<b>"), Text("x"), Number(1), Fraction(1.5), Colour.RED, Word.YES, defaultdict(list), OrderedDict(a=1)],
)
def test_whoever_follows_the_hint_for_a_subclass_is_not_refused_again(value):
    with pytest.raises(SerializationError) as refused:
        encode_payload(value)
    advice = re.search(r"pass (\S+\(value\))\)", str(refused.value))[1]
    assert decode_payload(encode_payload(eval(advice, {"value": value}))) == value


@pytest.mark.parametrize("depth", [0, 1])
def test_lazy_translations_are_refused_with_a_hint_and_never_stored_as_their_repr(queue, depth):
    """C19."""
    from django.utils.functional import lazystr
    from django.utils.text import format_lazy
    from django.utils.translation import gettext_lazy, override

    with override("de"):
        for lazy in (gettext_lazy("Hello"), format_lazy("{}!", gettext_lazy("Hello")), lazystr("x")):
            for value in (lazy, {"a": lazy}, {lazy: "a"}):
                with pytest.raises(SerializationError) as refused:
                    queue.enqueue(value if not depth else [value])
                if not isinstance(value, dict) or "a" in value:
                    assert "lazy translation: pass str(value)" in str(refused.value)
        with pytest.raises(SerializationError, match=r"pass str\.__str__\(value\)"):
            queue.enqueue(mark_safe("<b>"))
        assert queue.get(queue.enqueue(str(gettext_lazy("January"))).id).payload == "Januar"
    assert len(queue) == 1


@pytest.mark.parametrize("value", [chr(0xD800), f"a{chr(0xDFFF)}b", chr(0xDCFF), chr(0xD83D)])
def test_lone_surrogates_are_refused_in_text_and_in_keys(value):
    with pytest.raises(SerializationError, match="surrogate") as refused:
        encode_payload([{"a": value}])
    assert refused.value.path == 'payload[0]["a"]'
    with pytest.raises(SerializationError, match="surrogate") as refused:
        encode_payload([{value: 1}])
    assert refused.value.path == "payload[0]"
    str(refused.value).encode()


@pytest.mark.parametrize(
    "value",
    [
        "\x00",
        "\x1e\x1f\x7f\x80\x9f",
        "\u2028\u2029",
        "\ufeff",
        "\uffff\ufffe",
        "\r\n",
        "\U0001f600\U0010ffff",
        "e\u0301",
        '"\\/',
    ],
)
def test_odd_characters_come_back_exactly_in_text_and_keys(queue, value):
    """C25."""
    payload = {"text": value, value: [value]}
    job = queue.enqueue(payload)
    queue.compact()
    leased = queue.lease_one()
    assert leased.payload == payload
    queue.nack(leased, error=ValueError(value), delay=0)
    assert queue.get(job.id).last_error == f"ValueError: {value}"
    queue.ack(queue.lease_one(), result=value)
    assert queue.get(job.id).result == value


def test_a_number_beyond_every_float_in_a_foreign_record_is_read_and_does_not_stop_the_queue():
    """``1e400``: version 1 could not write it, another program may."""
    assert decode_payload(b"[1e400]") == [math.inf]


def test_duplicate_keys_of_a_foreign_record_the_last_counts():
    """C29."""
    assert decode_payload(b'{"id":1,"id":2}') == {"id": 2}


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"k": inner}, lambda inner: (inner,)])
def test_200_levels_come_back_and_201_are_refused(make):
    value: Any = 1
    for _ in range(200):
        value = make(value)
    assert exactly_equal(value, decode_payload(encode_payload(value)))
    with pytest.raises(SerializationError, match="more than 200 levels deep") as refused:
        encode_payload(make(value))
    assert refused.value.path.startswith("payload[")


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_very_deep_nesting_is_refused_without_a_recursion_error(depth):
    value: Any = None
    for _ in range(depth):
        value = [value]
    with pytest.raises(SerializationError, match="levels deep"):
        encode_payload(value)
    while value:  # taken apart by hand: an interpreter of its own depth frees it otherwise
        value = value.pop()


def test_a_value_that_holds_itself_is_refused():
    circle: dict = {}
    circle["again"] = [circle]
    with pytest.raises(SerializationError, match="levels deep"):
        encode_payload(circle)


def test_a_small_value_that_stands_for_an_endless_one_is_given_up_at_the_number_that_could_fit(monkeypatch):
    monkeypatch.setattr(module, "_MAX_VALUES", 10_000)
    bomb: Any = "x"
    for _ in range(100):
        bomb = [bomb, bomb]
    with pytest.raises(SerializationError, match="more than 10000 values"):
        encode_payload(bomb)


def test_tuples_become_lists_at_every_depth():
    """C22."""
    assert decode_payload(encode_payload((1, (2, {"a": (3,)}), []))) == [1, [2, {"a": [3]}], []]


# --- C27: sizes


@pytest.mark.parametrize("fill", ["x", "é", "€", "\U0001f600", "\x00"])
def test_the_limit_counts_bytes_of_json(fill):
    limit = 10_002
    width = len(json.dumps(fill, ensure_ascii=False).encode()) - 2
    fitting = fill * (10_000 // width)
    fitting += "x" * (10_000 - width * (10_000 // width))
    assert len(encode_payload(fitting, limit=limit)) == limit
    with pytest.raises(SerializationError, match=r"takes 10003 bytes as JSON, the limit is 10002"):
        encode_payload(fitting + "x", limit=limit)


@pytest.mark.parametrize("value", ["x" * 50_000_000, [0] * 5_000_000, {"a": ["y" * 1000] * 20_000}])
def test_fifty_megabytes_are_refused_at_the_call_and_small_jobs_go_on(queue, queue_dir, value):
    before = log_end(live_log(queue_dir))
    with pytest.raises(SerializationError, match=r"limit|cannot fit"):
        queue.enqueue(value)
    assert log_end(live_log(queue_dir)) == before
    assert queue.enqueue("small").created


def test_ten_thousand_keyword_arguments_are_stored(queue):
    kwargs = {f"argument_{number}": number for number in range(10_000)}
    assert queue.get(queue.enqueue({"task": "t", "args": [], "kwargs": kwargs}).id).payload["kwargs"] == kwargs


def test_all_jobs_of_one_call_together_have_a_limit_too(queue, queue_dir, monkeypatch):
    from nobroker_django.engine import records

    before = log_end(live_log(queue_dir))
    monkeypatch.setattr(records, "MAX_BATCH_BYTES", 10_000)
    with pytest.raises(SerializationError, match=r"the limit is 10000|limit is 268435456") as refused:
        queue.enqueue_many(["x" * 1000] * 20)
    assert "several calls" in str(refused.value)
    assert log_end(live_log(queue_dir)) == before


# --- C30: results


@pytest.mark.parametrize("fill", ["x", "€"])
def test_a_result_of_a_mebibyte_is_stored_and_one_byte_more_is_refused_with_the_job_still_leased(
    queue, queue_dir, fill
):
    """C27."""
    job = queue.enqueue("x")
    leased = queue.lease_one()
    room = module.MAX_RESULT_BYTES - 2
    largest = "x" * (room % len(fill.encode())) + fill * (room // len(fill.encode()))
    before = log_end(live_log(queue_dir))
    with pytest.raises(SerializationError, match="result") as refused:
        queue.ack(leased, result=largest + "x")
    assert refused.value.path == "result"
    assert log_end(live_log(queue_dir)) == before
    assert queue.get(job.id).state is JobState.LEASED
    queue.ack(leased, result=largest)
    assert queue.get(job.id).result == largest


class Trap(dict):
    def __iter__(self):
        raise RuntimeError("do not look")

    keys = items = values = __iter__


@pytest.mark.parametrize(
    "result",
    [datetime.datetime(2026, 1, 1), {1}, object(), iter(()), Trap(a=1), {1: 2}, math.nan, b"x"],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_cannot_be_stored_is_refused_with_its_path_and_the_job_can_be_failed(queue, result):
    """C30."""
    job = queue.enqueue("x", max_attempts=1)
    leased = queue.lease_one()
    with pytest.raises(SerializationError) as refused:
        queue.ack(leased, result=result)
    assert refused.value.path == "result"
    assert queue.nack(leased, error=refused.value).state is JobState.DEAD
    assert "result" in queue.get(job.id).last_error


@given(values)
@settings(max_examples=25)
def test_results_come_back_exactly_as_payloads_do(value):
    assert exactly_equal(value, decode_payload(encode_payload(value, what="result", limit=module.MAX_RESULT_BYTES)))


def test_a_worker_goes_on_behind_a_payload_of_any_kind(queue):
    values = [None, "", 0, [], {}, {"task": 5}, "\x00", [[[]]], 10**100]
    queue.enqueue_many(values)
    seen = []
    stats = Worker(queue, lambda job: seen.append(job.payload), max_jobs=len(values)).run()
    assert (seen, stats.succeeded) == (values, len(values))


# --- meta and digests


def test_meta_is_a_small_dict_kept_beside_the_payload(queue):
    job = queue.enqueue("x", meta={"task": "t", "n": [1.5]})
    assert (queue.get(job.id).meta, queue.get(job.id).payload) == ({"task": "t", "n": [1.5]}, "x")
    assert queue.get(queue.enqueue("y").id).meta is None
    for meta in ([1], "x", 5, OrderedDict(a=1), {"a": {1}}, {"a": "x" * 9000}, {1: 1}):
        with pytest.raises(SerializationError, match=r"^meta") as refused:
            queue.enqueue("x", meta=meta)
        assert refused.value.path.startswith("meta")


def test_meta_does_not_count_for_the_identity_of_a_job(queue):
    queue.enqueue("x", job_id="a", meta={"v": 1})
    assert queue.enqueue("x", job_id="a", meta={"v": 2}).meta == {"v": 1}


@given(st.dictionaries(text, scalars, max_size=6))
def test_the_digest_does_not_depend_on_the_order_of_keys(value):
    turned = dict(reversed(value.items()))
    assert payload_digest(encode_payload(value)) == payload_digest(encode_payload(turned))


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), ("1", 1), ([], {}), (None, "null"), ([1, 2], [2, 1])]
)
def test_values_that_differ_in_type_have_different_digests(a, b):
    assert payload_digest(encode_payload(a)) != payload_digest(encode_payload(b))
    assert len(payload_digest(encode_payload(a))) == 64


def test_paths_show_long_and_odd_keys_shortened_and_escaped():
    with pytest.raises(SerializationError) as refused:
        encode_payload({"k" * 100: [{'a"\n\x1b': {1}}]})
    assert refused.value.path == 'payload["' + "k" * 40 + '…"][0]["a"\\n\\x1b"]'


def test_the_payload_stands_in_the_log_as_readable_json(queue, queue_dir):
    queue.enqueue({"grüße": ["ü", 1.5]})
    assert read_log(live_log(queue_dir))[-1].body["payload"] == {"grüße": ["ü", 1.5]}
    assert "grüße".encode() in live_log(queue_dir).read_bytes()
