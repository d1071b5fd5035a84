"""``@task``: a function that can also be enqueued.

Invariant: the decorated function is called as before; ``.enqueue()`` takes the same arguments, for the type checker
(``ParamSpec``) as at run time (the signature is bound), and fails at the call, not in the worker.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from asgiref.sync import async_to_sync, sync_to_async
from django.utils.module_loading import import_string

from . import announcing, compat, conf, payloads, registry
from .annotations import namespace_of, signature_of
from .arguments import Arguments
from .datetimes import moment
from .engine.backoff import BackoffPolicy
from .engine.errors import InvalidOptionError, storing_nothing
from .enqueueing import enqueue_all, enqueue_one
from .limits import Limits, chosen_limits
from .naming import location, named, names
from .options import CallOptions, backoff_policy
from .results import JobResult, load_result
from .return_values import ReturnValues
from .unique import Unique, UniqueKey

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[P, R]):
    """A call of a task that has not been made: what ``t.s(1, b=2)`` gives, for ``t.enqueue_many``.

    ``payload`` is what will be stored; lists and dictionaries of plain JSON in it are those of the caller until then.
    """

    task: Task[P, R]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    payload: payloads.Payload = field(repr=False)


class Task(Generic[P, R]):
    """A function with its name and options. Made by ``@task``; ``using()`` makes copies with other options."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        aliases: tuple[str, ...],
        options: CallOptions,
        backoff: BackoffPolicy | None,
        limits: Limits,
        takes_context: bool = False,
        source: Any = None,
        unique: Unique = False,
    ) -> None:
        """Args: ``source`` is what callers have, where this object stands for it: one of Django's ``@task``."""
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.aliases = aliases
        self.options = options
        self.backoff = backoff
        self.limits = limits
        self.takes_context = takes_context
        self.source = source
        self.chosen: frozenset[str] = frozenset()
        """Options that ``using()`` has chosen; the others are those of the decorator."""
        self.announced_by: str | None = None
        signature = signature_of(function)
        reserved: frozenset[str] = frozenset()
        if takes_context:
            context, signature = _without_context(name, signature)
            if context.kind is not inspect.Parameter.POSITIONAL_ONLY:
                reserved = frozenset((context.name,))
        self.signature = signature
        namespace = namespace_of(function)
        self.arguments = Arguments(name, signature, namespace, reserved)
        self.unique = UniqueKey(name, unique, self.arguments) if unique is not False else None
        self.return_values = ReturnValues(signature.return_annotation, namespace)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, as without the decorator."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: object) -> Self:
        return self  # nothing in it changes

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.function.__module__, self.function.__qualname__, self.options, self.chosen)

    @property
    def location(self) -> str:
        """Module path and qualified name of the function."""
        return location(self.function)

    # What Django's ``Task`` has besides, for code that gets one of ours in the place of it.

    @property
    def func(self) -> Callable[P, R]:
        """The function."""
        return self.function

    @property
    def module_path(self) -> str:
        """The same as ``location``."""
        return self.location

    @property
    def priority(self) -> int:
        """-100 to 100, higher runs first."""
        return self.options.priority

    @property
    def queue_name(self) -> str:
        """The queue of the next calls."""
        return self.options.queue_name

    @property
    def run_after(self) -> datetime | timedelta | None:
        """The moment from which on the next calls may run, or how long after the enqueue."""
        if self.options.run_after is not None:
            return moment(self.options.run_after)
        return None if self.options.delay is None else timedelta(seconds=self.options.delay)

    @property
    def backend(self) -> str:
        """The alias in ``TASKS`` under which its jobs are announced; empty: ``TASKS`` has no backend of ours."""
        if self.announced_by is not None:  # the backend to which it was given
            return self.announced_by
        return announcing.alias() if self.source is None else self.source.backend

    def get_backend(self) -> Any:
        """The backend of that alias.

        Raises:
            InvalidTaskBackend: there is none.
        """
        return compat.task_backends[self.backend]

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here and now; a coroutine function to its end."""
        if inspect.iscoroutinefunction(self.function):
            return async_to_sync(self.function)(*args, **kwargs)
        return self.function(*args, **kwargs)

    async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """``call()`` without blocking the event loop."""
        if inspect.iscoroutinefunction(self.function):
            return await self.function(*args, **kwargs)
        return await sync_to_async(self.function)(*args, **kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobResult[R]:
        """Store a call for the workers; on disk when this returns, or after the commit of the open transaction.

        Raises:
            TaskArgumentError: the arguments do not fit the function or its annotations.
            SerializationError: an argument would not arrive as it is, or all are too large.
            InvalidOptionError: an option, the queue or the database does not exist or has a wrong value.
            JobConflictError: ``job_id`` belongs to a job with other arguments.
            NobrokerError: the job could not be stored; ``stored`` says what is known.
        """
        return enqueue_one(self, args, kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobResult[R]:
        """``enqueue()`` without blocking the event loop; see ``transactions`` for what counts as the open transaction.

        Raises:
            NobrokerError: as ``enqueue()``.
        """
        return await sync_to_async(enqueue_one)(self, args, kwargs)

    def enqueue_many(self, calls: Iterable[Call[P, R]], /) -> list[JobResult[R]]:
        """Store several calls in one write: after a crash all of them are there or none.

        Args:
            calls: ``t.s(...)`` for each job, or ``t.using(...).s(...)``: what ``using()`` chose for a call goes before
                the options of this task.

        Raises:
            InvalidOptionError: an item is no call of this task; the calls are for several queues or databases, or
                differ in ``on_commit``; or this task has a ``job_id``, which belongs to one call.
            NobrokerError: as ``enqueue()``; nothing of the whole is stored.
        """
        chosen: list[Call[P, R]] = []
        for call in calls:
            if not isinstance(call, Call) or call.task.name != self.name:
                raise InvalidOptionError("calls", f"{call!r:.200} is no call of {self.name}; make it with .s(...)")
            chosen.append(call)
        return enqueue_all(self, chosen)

    async def aenqueue_many(self, calls: Iterable[Call[P, R]], /) -> list[JobResult[R]]:
        """``enqueue_many()`` without blocking the event loop."""
        return await sync_to_async(self.enqueue_many)(list(calls))

    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P, R]:
        """A call to be made later, by ``enqueue_many``, with what ``using()`` has chosen.

        Raises:
            TaskArgumentError: the arguments do not fit the function or its annotations.
        """
        return Call(self, args, kwargs, payloads.build(self.name, self.arguments, args, kwargs))

    def using(
        self,
        *,
        delay: float | timedelta | None = None,
        run_after: datetime | timedelta | None = None,
        job_id: str | None = None,
        priority: int | None = None,
        queue_name: str | None = None,
        max_attempts: int | None = None,
        visibility_timeout: float | None = None,
        database: str | None = None,
        on_commit: bool | None = None,
    ) -> Self:
        """The same task with other options for its next calls; ``None`` keeps what was there.

        Args:
            delay: seconds or ``timedelta`` from the enqueue call on.
            run_after: the moment from which on the job may run (the past is now), or a ``timedelta``.
            job_id: makes enqueueing idempotent: a known id gives the existing job.
            priority: -100 to 100, higher runs first.
            queue_name: one of ``NOBROKER["QUEUES"]``.
            max_attempts: deliveries before the job becomes a dead letter.
            visibility_timeout: seconds of a lease of this job.
            database: alias of the database whose transaction decides.
            on_commit: False stores the job at once, whatever transaction is open.

        Raises:
            InvalidOptionError: a value has the wrong type or range.
        """
        given: dict[str, Any] = {
            "delay": delay,
            "run_after": run_after,
            "job_id": job_id,
            "priority": priority,
            "queue_name": queue_name,
            "max_attempts": max_attempts,
            "visibility_timeout": visibility_timeout,
            "database": database,
            "on_commit": on_commit,
        }
        options = self.options.changed(**given)
        names = {name for name, value in given.items() if value is not None}
        if names & {"delay", "run_after"}:
            names |= {"delay", "run_after"}  # the one replaces the other
        chosen = copy.copy(self)
        chosen.options, chosen.chosen = options, self.chosen | names
        return chosen

    def get_result(self, job_id: str, /) -> JobResult[R]:
        """The result of a job of this task, looked up in the task's queue (``using()`` may name another), then in all.

        Raises:
            JobNotFoundError: no queue knows such a job (not committed yet, rolled back, or compacted away).
            InvalidOptionError: the job belongs to another task.
        """
        return load_result(self, self.options.queue_name, job_id)

    async def aget_result(self, job_id: str, /) -> JobResult[R]:
        """``get_result()`` without blocking the event loop."""
        return await sync_to_async(self.get_result)(job_id)


class CoroutineTask(Task[P, R]):
    """A coroutine function as a task. A call of it is awaited; everything else speaks of what that returns."""

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
            """Call the function here and now, as without the decorator."""


class ContextTask(Task[P, R]):
    """A function that takes its context first, as a task. ``P`` are the other parameters: those of ``.enqueue()``."""

    if TYPE_CHECKING:

        def __call__(self, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
            """Call the function here and now, as without the decorator."""

        def call(self, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:  # type: ignore[override]
            """Run the function here and now; a coroutine function to its end."""

        async def acall(self, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:  # type: ignore[override]
            """``call()`` without blocking the event loop."""


class ContextCoroutineTask(ContextTask[P, R]):
    """A coroutine function that takes its context first, as a task."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, context: Any, /, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]:
            """Call the function here and now, as without the decorator."""


class Decorator(Protocol):
    """What ``task(...)`` with options gives."""

    # None comes first: without ``strict_optional`` it passes for a coroutine.
    @overload
    def __call__(self, function: Callable[P, None], /) -> Task[P, None]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class ContextDecorator(Protocol):
    """What ``task(takes_context=True)`` gives. The context may be annotated as Django's or as ours: ``Any``."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], None], /) -> ContextTask[P, None]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> ContextCoroutineTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> ContextTask[P, R]: ...


class DecoratorOptions(TypedDict, total=False):
    """What ``task(...)`` may be given beside ``takes_context``, for type checkers; ``task`` says what each means."""

    queue_name: str
    priority: int
    max_attempts: int | None
    backoff: BackoffPolicy | Mapping[str, float] | None
    visibility_timeout: float | None
    database: str | None
    on_commit: bool | None
    soft_time_limit: float | timedelta | None
    time_limit: float | timedelta | None
    name: str | None
    aliases: Iterable[str]
    unique: Unique


@overload
def task(function: Callable[P, None], /) -> Task[P, None]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(*, takes_context: Literal[False] = ..., **options: Unpack[DecoratorOptions]) -> Decorator: ...


@overload
def task(*, takes_context: Literal[True], **options: Unpack[DecoratorOptions]) -> ContextDecorator: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    queue_name: str = conf.DEFAULT_QUEUE,
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: BackoffPolicy | Mapping[str, float] | None = None,
    visibility_timeout: float | None = None,
    database: str | None = None,
    on_commit: bool | None = None,
    soft_time_limit: float | timedelta | None = None,
    time_limit: float | timedelta | None = None,
    name: str | None = None,
    aliases: Iterable[str] = (),
    unique: Unique = False,
    takes_context: bool = False,
) -> Any:
    """Make a function a task; bare or with options.

    Args:
        function: the function, in the bare form.
        queue_name: one of ``NOBROKER["QUEUES"]``; whether it is there is checked at the enqueue.
        priority: -100 to 100, higher runs first.
        max_attempts: deliveries before a job becomes a dead letter; None takes the queue's.
        backoff: pauses between the attempts, a ``BackoffPolicy`` or some of ``base, factor, max_delay, jitter``.
        visibility_timeout: seconds of a lease; None takes the queue's.
        database: alias of the database whose transaction decides; None takes ``NOBROKER["DATABASE"]``.
        on_commit: whether a job waits for the commit of an open transaction; None takes ``NOBROKER["ON_COMMIT"]``.
        soft_time_limit: seconds or ``timedelta`` after which ``SoftTimeLimitExceeded`` is raised in the running
            task; None takes the queue's.
        time_limit: seconds or ``timedelta`` after which its process is ended; None takes the queue's.
        name: what the log calls the task; module path and qualified name if left out.
        aliases: former names, under which waiting jobs still find the task.
        unique: the same work is not in the queue twice at a time: True compares all arguments, a list of names those
            parameters, a function what it returns for the arguments. ``using(job_id=...)`` of a call goes before it.
        takes_context: the function gets Django's ``TaskContext`` before its arguments, as its parameter ``context``,
            which callers of ``.enqueue()`` do not give.

    Raises:
        InvalidOptionError: an option has the wrong type or range, a name is taken, the function is not at the top
            of a module and has no name, or has no parameter for the context that it takes.
        AnnotationError: no argument that fits the annotation of a parameter could be passed to a worker.
    """
    with storing_nothing():
        options = CallOptions(
            queue_name=queue_name,
            priority=priority,
            max_attempts=max_attempts,
            visibility_timeout=visibility_timeout,
            database=database,
            on_commit=on_commit,
        )
        policy = backoff_policy(backoff)
        limits = chosen_limits(soft_time_limit, time_limit)
        other_names = names(aliases)
        if not isinstance(takes_context, bool):
            raise InvalidOptionError("takes_context", f"True or False is needed, not {takes_context!r:.200}")

    @storing_nothing()
    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        chosen, _ = named(function, name, other_names)
        made = _KINDS[inspect.iscoroutinefunction(function), takes_context](
            function,
            name=chosen,
            aliases=other_names,
            options=options,
            backoff=policy,
            limits=limits,
            takes_context=takes_context,
            unique=unique,
        )
        registry.register(made)
        return made

    return decorate if function is None else decorate(function)


_KINDS: dict[tuple[bool, bool], type[Task[Any, Any]]] = {
    (False, False): Task, (True, False): CoroutineTask, (False, True): ContextTask, (True, True): ContextCoroutineTask
}  # fmt: skip
"""By whether the function is a coroutine function, and whether it takes its context."""


def _without_context(name: str, signature: inspect.Signature) -> tuple[inspect.Parameter, inspect.Signature]:
    """The context, which Django and we tell by the name of the first parameter, and what is the caller's to give."""
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is None or first.name != "context" or first.kind > inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise InvalidOptionError("takes_context", f"the first parameter of {name}{signature} has to be 'context'")
    return first, signature.replace(parameters=parameters[1:])


def _restored(module: str, name: str, options: CallOptions, chosen: frozenset[str]) -> Task[Any, Any]:
    """A task that was pickled, found again by where its function is."""
    found = import_string(f"{module}.{name}")
    if not isinstance(found, Task):
        raise ValueError(f"{module}.{name} is no task.")
    task = copy.copy(found)
    task.options, task.chosen = options, chosen
    return task
