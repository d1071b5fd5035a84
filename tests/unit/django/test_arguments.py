"""Arguments of tasks in the types of their annotations, from the call to the function and back."""

import asyncio
import functools
import sys
import types
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    Unpack,
    no_type_check,
)

import msgspec
import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest

from nobroker_django import (
    InvalidOptionError,
    JobState,
    NobrokerError,
    SerializationError,
    TaskArgumentError,
    registry,
    task,
)
from nobroker_django.arguments import AnnotationError, ArgumentError
from nobroker_django.decorators import Task
from nobroker_django.execution import Outcome, execute
from nobroker_django.queues import get_queue

from .sample import add

if TYPE_CHECKING:
    from fractions import Fraction

SEEN: list[Any] = []
WHEN, WHO = datetime(2030, 1, 1, 12, tzinfo=UTC), uuid.UUID(int=1)


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()


def remind(when: datetime, *who: uuid.UUID, amount: Decimal = Decimal("1.10"), **pauses: timedelta) -> date:
    SEEN.append((when, who, amount, pauses))
    return when.date()


async def remind_later(
    when: datetime, *who: uuid.UUID, amount: Decimal = Decimal("1.10"), **pauses: timedelta
) -> date:
    SEEN.append((when, who, amount, pauses))
    return when.date()


def deliver():
    job = get_queue().lease_one()
    return execute(get_queue(), job)


def stored():
    return [job.payload for job in get_queue().list_jobs()]


# --- from the call to the function


@pytest.mark.contract("DJ-03")
@pytest.mark.parametrize("function", [remind, remind_later])
def test_arguments_are_json_on_disk_and_arrive_in_their_types(make, function):
    """C20."""
    made = make(function)
    result = made.enqueue(WHEN, WHO, amount=Decimal("2.50"), first=timedelta(hours=1))
    assert stored() == [
        {
            "task": "the task",
            "args": ["2030-01-01T12:00:00Z", "00000000-0000-0000-0000-000000000001"],
            "kwargs": {"amount": "2.50", "first": "PT3600S"},
        }
    ]
    assert deliver().outcome is Outcome.SUCCEEDED
    assert [(WHEN, (WHO,), Decimal("2.50"), {"first": timedelta(hours=1)})] == SEEN
    result.refresh()
    assert result.return_value == date(2030, 1, 1)
    assert made.get_result(result.id).return_value == date(2030, 1, 1)


@pytest.mark.contract("DJ-03")
def test_arguments_by_keyword_and_defaults(make):
    made = make(remind)
    made.enqueue(when=WHEN)
    assert stored()[0]["kwargs"] == {"when": "2030-01-01T12:00:00Z"}
    assert deliver().outcome is Outcome.SUCCEEDED
    assert [(WHEN, (), Decimal("1.10"), {})] == SEEN


def test_every_way_to_enqueue_stores_the_same(make):
    made = make(remind)
    made.enqueue(WHEN)
    asyncio.run(made.aenqueue(WHEN))
    made.enqueue_many([made.s(WHEN), made.s(when=WHEN)])
    payloads = stored()
    assert payloads[0] == payloads[1] == payloads[2]
    assert payloads[3]["kwargs"] == {"when": "2030-01-01T12:00:00Z"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.contract("DJ-03")
def test_after_a_commit_too_and_the_value_is_the_one_of_the_call(make):
    def work(days: list[date]) -> None:
        SEEN.append(days)

    days = [date(2030, 1, 1)]
    made = make(work)
    with transaction.atomic():
        made.enqueue(days)
        days.append(date(2030, 1, 2))
    deliver()
    assert [[date(2030, 1, 1)]] == SEEN


def test_a_parameter_without_a_type_takes_json_as_it_is(make):
    def work(anything, whatever: Any, thing: object, *rest: Any, **more: Any):
        SEEN.append([anything, whatever, thing, rest, more])

    made = make(work)
    made.enqueue({"a": [1]}, "2030-01-01", 3, None, x=1.5)
    deliver()
    assert SEEN == [[{"a": [1]}, "2030-01-01", 3, (None,), {"x": 1.5}]]
    with pytest.raises(ArgumentError, match="Annotate the parameter with its type, and it arrives in that type"):
        made.enqueue(WHEN, 1, 2)
    with pytest.raises(ArgumentError) as raised:
        made.enqueue(object(), 1, 2)
    assert "Annotate" not in str(raised.value)


def test_names_of_parameters_do_not_get_in_each_others_way(make):
    def work(first: date, /, args: int, *rest: date, only: date, **more: timedelta) -> None:
        SEEN.append((first, args, rest, only, more))

    day = date(2030, 1, 1)
    make(work).enqueue(day, 2, day, only=day, first=timedelta(1), rest=timedelta(2), more=timedelta(3))
    deliver()
    assert [(day, 2, (day,), day, {"first": timedelta(1), "rest": timedelta(2), "more": timedelta(3)})] == SEEN


class Filters(TypedDict):
    day: date
    size: NotRequired[Decimal | None]


class Choices(Filters, total=False):
    key: Required[uuid.UUID]
    parts: Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], "of it"]


def choose(number: int, **choices: Unpack[Choices]) -> None:
    SEEN.append((number, choices))


@pytest.mark.contract("DJ-03", "DJ-04")
def test_keyword_arguments_that_a_typed_dictionary_names_are_checked_and_arrive_in_their_types(make):
    made = make(choose)
    given: Choices = {"day": date(2030, 1, 1), "key": WHO, "size": Decimal("1.50"), "parts": [1, 2]}
    result = made.enqueue(1, **given)
    made.enqueue(2, key=WHO, day=date(2030, 1, 1))
    assert get_queue().get(result.id).payload["kwargs"] == {
        "day": "2030-01-01", "key": str(WHO), "size": "1.50", "parts": [1, 2]
    }  # fmt: skip
    assert [deliver().outcome for _ in range(2)] == [Outcome.SUCCEEDED] * 2
    assert [(1, given), (2, {"key": WHO, "day": date(2030, 1, 1)})] == SEEN
    for wrong in ({"day": None}, {"day": "2030-01-01"}, {"size": 1}, {"parts": [0]}, {"key": str(WHO)}):
        with pytest.raises(ArgumentError) as raised:
            made.enqueue(1, **{**given, **wrong})
        assert raised.value.parameter in wrong
    for args, kwargs in (((1,), {"key": WHO}), ((1,), {**given, "more": 1}), ((1, 2), given)):
        with pytest.raises(TaskArgumentError, match=r"the task\(number: int, \*, day: .*parts: .* = \.\.\.\)"):
            made.enqueue(*args, **kwargs)
    assert get_queue().stats().ready == 0


def test_what_is_not_given_of_a_typed_dictionary_is_other_work_than_none(make):
    made = make(choose, unique=True)
    given: Choices = {"day": date(2030, 1, 1), "key": WHO}
    calls: list[Choices] = [given, {**given, "size": None}, given, {**given, "size": Decimal(1)}]
    assert [made.enqueue(1, **call).created for call in calls] == [True, True, False, True]
    by_name = make(choose, name="by name", unique=["day", "size"])
    assert [by_name.enqueue(1, **call).created for call in calls] == [True, True, False, True]


def test_a_typed_dictionary_that_cannot_work_is_refused_at_the_decoration(make):
    class Doubled(TypedDict):
        number: int

    class Unpassable(TypedDict):
        request: HttpRequest

    for kind, text in ((Doubled, "duplicate parameter name"), (Unpassable, "parameter 'request'.*values that the")):

        def work(number: int, **rest) -> None: ...

        work.__annotations__["rest"] = Unpack[kind]
        with pytest.raises(AnnotationError, match=text):
            make(work)

        make(no_type_check(work), name=f"plain {kind.__name__}").enqueue(1, anything={"a": 1})


def test_a_function_behind_another_decorator_keeps_its_annotations(make):
    def logged(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs)

        return inner

    make(logged(remind)).enqueue(WHEN)
    deliver()
    assert SEEN[0][0] == WHEN


def test_annotations_can_be_switched_off(make):
    @no_type_check
    def work(when: "not a type", request: HttpRequest):
        SEEN.append((when, request))

    make(work).enqueue("x", 1)
    deliver()
    assert SEEN == [("x", 1)]


# --- refused at the call


@pytest.mark.contract("DJ-04")
@pytest.mark.parametrize("deferred", [False, True], ids=["now", "on commit"])
@pytest.mark.parametrize(
    ("args", "kwargs", "parameter", "path", "reason"),
    [
        (("soon",), {}, "when", "when", "is of type str, where datetime.datetime is needed"),
        ((WHEN, "ann"), {}, "who[0]", "who[0]", "is of type str, where uuid.UUID is needed: invalid UUID"),
        ((WHEN, WHO, 5), {}, "who[1]", "who[1]", "is of type int, where uuid.UUID is needed"),
        ((WHEN,), {"amount": 1.5}, "amount", "amount", "is of type float and would arrive as decimal.Decimal"),
        ((WHEN,), {"first": 60}, "first", "first", "is of type int, where datetime.timedelta is needed"),
    ],
)
def test_a_wrong_argument_is_refused_at_the_call(make, args, kwargs, parameter, path, reason, deferred, request):
    if deferred:
        request.getfixturevalue("db")
    made = make(remind)
    for call in (
        lambda: made.enqueue(*args, **kwargs),
        lambda: asyncio.run(made.using(on_commit=False).aenqueue(*args, **kwargs)),
        lambda: made.s(*args, **kwargs),
        lambda: made.enqueue_many([made.s(WHEN), made.s(*args, **kwargs)]),
    ):
        with pytest.raises(ArgumentError) as raised:
            call()
        error = raised.value
        assert isinstance(error, TaskArgumentError)
        assert isinstance(error, SerializationError)
        assert (error.task, error.parameter, error.path, error.stored) == ("the task", parameter, path, False)
        where = "" if path == parameter else f"{path}: "
        assert str(error).startswith(f"the task: parameter '{parameter}': {where}{reason}")
        assert str(error).endswith("Nothing was stored.")
    assert get_queue().stats().total == 0


@pytest.mark.contract("DJ-04")
def test_the_place_inside_a_value_is_named(make):
    def work(plan: dict[str, list[date]]) -> None: ...

    with pytest.raises(
        ArgumentError, match=r"the task: parameter 'plan': plan\[\"b\"\]\[1\]: is of type str"
    ) as raised:
        make(work).enqueue({"a": [], "b": [date(2030, 1, 1), "x"]})
    assert raised.value.path == 'plan["b"][1]'


def test_numbers_are_not_made_of_text_or_truth(make):
    for value in ("1", True, 1.0, None):
        with pytest.raises(ArgumentError, match="parameter 'a'"):
            add.enqueue(value)  # type: ignore[arg-type]


# --- annotations that cannot work


@pytest.mark.contract("DJ-03")
@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (str | uuid.UUID, "may not contain more than one str-like type"),
        (datetime | str | None, "may not contain more than one str-like type"),
        (bytes | str, "may not contain more than one str-like type"),
        (User, "pass the primary key"),
        (HttpRequest, "pass the values that the task needs"),
        (list[User], "pass the primary key"),
        (complex, "pass what it is made of"),
    ],
)
def test_an_annotation_that_cannot_work_is_refused_at_the_decoration(make, annotation, text):
    def work(number: int, thing) -> None: ...

    work.__annotations__["thing"] = annotation
    with pytest.raises(
        AnnotationError, match=f"the task: parameter 'thing': its annotation .* cannot work: .*{text}"
    ) as raised:
        make(work)
    assert (raised.value.task, raised.value.parameter) == ("the task", "thing")
    assert registry.find("the task") is None


def test_one_that_nobody_has_to_pass_hurts_only_him_who_does(make):
    def work(number: int, client: HttpRequest | None = None, user: User = None, *rest: HttpRequest, **more: User):
        SEEN.append((number, client))

    made = make(work)
    made.enqueue(1)
    made.enqueue(2, None, None)
    deliver(), deliver()
    assert SEEN == [(1, None), (2, None)]
    for args, kwargs, parameter in (
        ((1, HttpRequest()), {}, "client"),
        ((1,), {"user": User()}, "user"),
        ((1,), {"user": 3}, "user"),
        ((1, None, None, 5), {}, "rest[0]"),
        ((1,), {"other": 5}, "other"),
    ):
        with pytest.raises(ArgumentError, match=r"has the annotation .*no JSON stands for") as raised:
            made.enqueue(*args, **kwargs)
        assert raised.value.parameter == parameter
    assert get_queue().stats().ready == 0


def test_one_for_which_none_can_be_passed_hurts_only_him_who_passes_another(make):
    def work(client: HttpRequest | None, user: Optional["User"]) -> None:
        SEEN.append((client, user))

    made = make(work)
    made.enqueue(None, None)
    deliver()
    assert SEEN == [(None, None)]
    with pytest.raises(ArgumentError, match="no JSON stands for"):
        made.enqueue(HttpRequest(), None)
    with pytest.raises(AnnotationError, match="list of pairs"):
        make(with_pairs, name="pairs")


def with_pairs(table: dict[tuple[int, int], str] | None) -> None: ...


def test_an_int_for_a_float_is_the_same_work_as_that_float(make):
    def work(ratio: float) -> None: ...

    made = make(work, unique=True)
    assert [made.enqueue(ratio).created for ratio in (1.0, 1, 1.5)] == [True, False, True]
    assert [made.using(job_id="one").enqueue(ratio).created for ratio in (2, 2.0)] == [True, False]


def test_a_union_that_cannot_work_is_refused_also_where_it_need_not_be_passed(make):
    def work(key: str | uuid.UUID | None = None) -> None: ...

    with pytest.raises(AnnotationError):
        make(work)


# --- names that come later


def module_with(source: str) -> types.ModuleType:
    module = types.ModuleType("late_module")
    sys.modules["late_module"] = module
    exec(source, module.__dict__)
    return module


@pytest.fixture
def late():
    yield module_with
    sys.modules.pop("late_module", None)
    for name in registry.names():
        if name.startswith("late_module.") and (known := registry.find(name)) is not None:
            registry.unregister(known)


LATER = """
from __future__ import annotations
from dataclasses import dataclass
from nobroker_django import task

@task
def work(thing: Thing, things: list[Thing] | None = None) -> Thing:
    return thing

@dataclass
class Thing:
    number: int
"""


# What Python 3.14 has in the place of a name that it cannot find yet.
REFERENCES = LATER.replace("from __future__ import annotations", "from typing import ForwardRef").replace(
    "thing: Thing, things: list[Thing] | None = None) -> Thing",
    'thing: ForwardRef("Thing"), things: list[ForwardRef("Thing")] | None = None) -> ForwardRef("Thing")',
)
NOT_YET_EVALUATED = pytest.param(
    LATER.replace("from __future__ import annotations", ""),
    marks=pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once"),
)
SOURCES = pytest.mark.parametrize(
    "source", [LATER, REFERENCES, NOT_YET_EVALUATED], ids=["text", "references", "not evaluated"]
)


OPTIONS = """
from __future__ import annotations
from datetime import date
from typing import TypedDict, Unpack
from nobroker_django import task

@task
def work(**options: Unpack[Options]) -> list[date]:
    return [options["day"]]

class Options(TypedDict):
    day: Day
"""


@pytest.mark.contract("DJ-03")
def test_a_typed_dictionary_further_down_is_found_at_the_first_use(late):
    module = late(OPTIONS)
    for _ in range(2):  # neither the class of the key is there
        with pytest.raises(ArgumentError, match=r"has the annotation Unpack\[Options\], which cannot be looked up"):
            module.work.enqueue(day=date(2030, 1, 1))
    assert list(module.work.arguments.unusable()) == ["options"]
    module.Day = date
    result = module.work.enqueue(day=date(2030, 1, 1))
    with pytest.raises(TaskArgumentError, match="missing a required"):
        module.work.enqueue()
    with pytest.raises(ArgumentError):
        module.work.enqueue(day="2030-01-01")
    assert module.work.arguments.unusable() == {}
    assert deliver().outcome is Outcome.SUCCEEDED
    result.refresh()
    assert result.return_value == [date(2030, 1, 1)]


def test_which_keys_are_required_is_known_where_annotations_are_text_too(late):
    source = OPTIONS.replace("    day: Day\n", "    day: Required[date]\n    size: NotRequired[int]\n    note: str\n")
    module = late(source.replace("TypedDict, Unpack", "NotRequired, Required, TypedDict, Unpack"))
    module.work.enqueue(day=date(2030, 1, 1), note="x")
    for missing in ({"note": "x"}, {"day": date(2030, 1, 1), "size": 1}):
        with pytest.raises(TaskArgumentError, match="missing a required"):
            module.work.enqueue(**missing)
    source = source.replace("(TypedDict)", "(TypedDict, total=False)")
    optional = late(source.replace("TypedDict, Unpack", "NotRequired, Required, TypedDict, Unpack"))
    optional.work.enqueue(day=date(2030, 1, 1))
    with pytest.raises(TaskArgumentError, match=r"missing a required .*'day'"):
        optional.work.enqueue(size=1)


def test_the_keys_of_one_further_down_count_for_unique_work(late):
    module = late(OPTIONS.replace("@task", "@task(unique=True)"))
    module.Day = date
    days = (date(2030, 1, 1), date(2030, 1, 1), date(2030, 1, 2))
    assert [module.work.enqueue(day=day).created for day in days] == [True, False, True]


def test_one_further_down_that_cannot_be_passed_is_refused_at_every_use(late):
    module = late(OPTIONS)
    module.Day = HttpRequest
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"parameter 'day'.* no JSON stands for"):
            module.work.enqueue(day=1)


@pytest.mark.contract("DJ-03")
@SOURCES
def test_a_class_further_down_in_the_module_is_found_at_the_first_use(late, source):
    module = late(source)
    result = module.work.enqueue(module.Thing(3), things=[])
    assert deliver().outcome is Outcome.SUCCEEDED
    result.refresh()
    assert result.return_value == module.Thing(3)
    with pytest.raises(ArgumentError):
        module.work.enqueue({"number": 3})
    assert module.work.arguments.unusable() == {}


@SOURCES
def test_a_name_that_is_never_there_is_said_as_it_is_written(late, source):
    module = late(source.partition("@dataclass")[0])
    with pytest.raises(ArgumentError, match=r"'thing': has the annotation Thing, which cannot be looked up"):
        module.work.enqueue(1)
    assert "has the annotation Thing" in module.work.arguments.unusable()["thing"]


@SOURCES
def test_a_class_further_down_that_cannot_be_passed_is_refused_at_every_use(late, source):
    module = late(source.replace("@dataclass", ""))
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"cannot work: no JSON stands for late_module\.Thing"):
            module.work.enqueue(1)
    assert list(module.work.arguments.unusable()) == ["thing"]


def test_a_name_that_only_the_type_checker_knows_is_named_at_the_call(make):
    def work(number: int, part: "Fraction | None" = None) -> None:
        SEEN.append((number, part))

    made = make(work)
    made.enqueue(1)
    deliver()
    assert SEEN == [(1, None)]
    with pytest.raises(ArgumentError, match=r"'part': .* annotation Fraction.*NameError.*not for the type checker"):
        made.enqueue(1, 2)
    assert list(made.arguments.unusable()) == ["part"]


# --- what is stored and what the function takes have come apart


def deploy(name: str, function: Any, **options: Any) -> Task[Any, Any]:
    """The task of that name as another release has it."""
    known = registry.find(name)
    if known is not None:
        registry.unregister(known)
    made: Task[Any, Any] = task(name=name, **options)(function)
    return made


@pytest.fixture
def release():
    yield deploy
    for name in registry.names():
        if name.startswith("release."):
            known = registry.find(name)
            assert known is not None
            registry.unregister(known)


@pytest.mark.contract("DJ-05")
def test_a_job_whose_task_no_longer_takes_its_arguments_ends_as_a_dead_letter_and_runs_after_the_fix(
    release, settings
):
    """C38, with an argument whose type has changed."""
    settings.NOBROKER = {**settings.NOBROKER, "BACKOFF": {"BASE": 0}}

    def old(who: uuid.UUID) -> None: ...

    def new(who: int) -> None: ...

    def fixed(who: uuid.UUID) -> None:
        SEEN.append(who)

    result = release("release.work", old, max_attempts=2).enqueue(WHO)
    before = get_queue().get(result.id).payload
    release("release.work", new)
    assert deliver().outcome is Outcome.FAILED
    assert deliver().outcome is Outcome.DEAD
    dead = get_queue().get(result.id)
    assert (dead.state, dead.attempts, dead.payload) == (JobState.DEAD, 2, before)
    assert dead.errors[-1].error_class == "nobroker_django.execution.ArgumentsChangedError"
    assert "who: is of type str, where int is needed" in dead.errors[-1].message
    release("release.work", fixed)
    get_queue().requeue_dead(result.id)
    assert deliver().outcome is Outcome.SUCCEEDED
    assert SEEN == [WHO]


@pytest.mark.contract("DJ-05")
def test_a_parameter_in_the_middle_or_one_that_is_gone_binds_no_value_to_the_wrong_name(release, settings):
    """C38."""
    settings.NOBROKER = {**settings.NOBROKER, "BACKOFF": {"BASE": 0}}

    def old(a: date, b: Decimal, flag: bool = True) -> None: ...

    def new(a: date, site: uuid.UUID, b: Decimal, flag: bool = False) -> None:
        SEEN.append("wrong")

    def without(a: date, b: Decimal) -> None:
        SEEN.append("wrong")

    made = release("release.work", old, max_attempts=1)
    with pytest.raises(TaskArgumentError):
        made.enqueue(date(2030, 1, 1))
    positional = made.enqueue(date(2030, 1, 1), Decimal("1.5"), False)
    release("release.work", new)
    assert deliver().outcome is Outcome.DEAD
    named = made.enqueue(a=date(2030, 1, 1), b=Decimal(1), flag=True)
    release("release.work", without)
    assert deliver().outcome is Outcome.DEAD
    assert SEEN == []
    payloads = [get_queue().get(result.id).payload for result in (positional, named)]
    assert payloads[0]["args"] == ["2030-01-01", "1.5", False]
    assert payloads[1]["kwargs"] == {"a": "2030-01-01", "b": "1", "flag": True}
    release("release.work", old)
    assert get_queue().requeue_dead() == 2
    assert [deliver().outcome, deliver().outcome] == [Outcome.SUCCEEDED, Outcome.SUCCEEDED]


def test_values_of_a_release_without_annotations_still_run(release):
    def old(when, limits, ratio, tags) -> None: ...

    def new(when: datetime, limits: tuple[int, ...], ratio: float, tags: set[str]) -> None:
        SEEN.append((when, limits, ratio, tags))

    release("release.work", old).enqueue(WHEN.isoformat(), [1, 2], 1, ["a", "a"])
    release("release.work", new)
    assert deliver().outcome is Outcome.SUCCEEDED
    assert [(WHEN, (1, 2), 1.0, {"a"})] == SEEN
    assert type(SEEN[0][2]) is float


def test_a_task_whose_annotation_cannot_be_looked_up_in_the_worker_fails_in_the_ordinary_way(make):
    def work(part) -> None: ...

    made = make(work, max_attempts=1)
    result = made.enqueue(1)
    registry.unregister(made)

    def work2(part: "Fraction") -> None: ...

    make(work2)
    assert deliver().outcome is Outcome.DEAD
    result.refresh()
    assert "cannot be looked up" in result.errors[-1].message


# --- results


def finished(made, *args):
    result = made.enqueue(*args)
    assert deliver().outcome is Outcome.SUCCEEDED
    result.refresh()
    return result


@pytest.mark.contract("DJ-03")
def test_a_return_value_is_json_on_disk_and_comes_back_in_the_annotated_type(make):
    def work(number: int) -> dict[uuid.UUID, Decimal] | None:
        return {WHO: Decimal(number)} if number else None

    made = make(work)
    result = finished(made, 5)
    assert get_queue().get(result.id).result == {str(WHO): "5"}
    assert result.return_value == {WHO: Decimal(5)}
    assert finished(made, 0).return_value is None


@pytest.mark.parametrize("annotation", [date, int, HttpRequest, str | date, "Missing", None, ...])
def test_a_return_value_that_is_not_as_annotated_is_json_as_it_is(make, annotation):
    """C30."""

    def work():
        return {"a": [1]}

    if annotation is not ...:
        work.__annotations__["return"] = annotation
    assert finished(make(work)).return_value == {"a": [1]}


def test_a_return_value_of_a_type_that_is_not_annotated_is_a_failed_attempt_with_the_reason(make):
    """C30."""

    def work():
        return date(2030, 1, 1)

    result = make(work, max_attempts=1).enqueue()
    assert deliver().outcome is Outcome.DEAD
    result.refresh()
    assert "of other types, what the return annotation names" in result.errors[-1].message


def test_a_stored_result_that_the_annotation_does_not_know_any_more_comes_back_as_json(release):
    def old() -> str:
        return "soon"

    def new() -> date: ...

    result = release("release.work", old).enqueue()
    deliver()
    assert release("release.work", new).get_result(result.id).return_value == "soon"


def test_what_a_class_of_the_project_raises_on_the_way_is_a_failed_attempt(make):
    class Thing:
        @property
        def __dict__(self):  # type: ignore[override]
            raise SystemExit(3)

    def work() -> Any:
        return Thing()

    result = make(work, max_attempts=1).enqueue()
    assert deliver().outcome is Outcome.DEAD
    result.refresh()
    assert isinstance(result.errors[-1].message, str)


def test_errors_of_the_call_are_of_one_family():
    assert issubclass(ArgumentError, TaskArgumentError)
    assert issubclass(AnnotationError, TaskArgumentError)
    assert issubclass(TaskArgumentError, NobrokerError)
    assert not issubclass(ArgumentError, InvalidOptionError)
