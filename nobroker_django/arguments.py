"""The arguments of a task's calls, between the types of its annotations and JSON.

Invariant: both directions bind to the signature and go through the same converters, made once per task; so what
``to_json`` lets pass is what ``from_json`` takes, as long as the function stays as it is. Which JSON is exact is for
the engine to say, one value at a time for ``converters``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, ForwardRef

from .annotations import AmbiguousError, UnresolvedError, UnsupportedError, converter_of, spread
from .binding import Binding
from .converters import Converter
from .engine.errors import SerializationError, TaskArgumentError
from .misfits import Misfit
from .roundtrip import named

Parameter = inspect.Parameter


class ArgumentError(SerializationError, TaskArgumentError):
    """An argument of a task cannot be stored and given back as it is; nothing was stored.

    ``task`` and ``parameter`` say whose, ``path`` where in the value, ``reason`` why.
    """

    def __init__(self, task: str, parameter: str, path: str, reason: str) -> None:
        what = f"parameter {parameter!r}" if parameter else "the arguments together"
        where = "" if path == parameter else f"{path}: "
        Exception.__init__(self, f"{task}: {what}: {where}{reason}")
        self.task = task
        self.parameter = parameter
        self.path = path
        self.reason = reason


class AnnotationError(TaskArgumentError):
    """The annotation of a parameter cannot work: no value of it could be passed to a worker."""


class Arguments:
    """The arguments of one task.

    Args:
        task: its name, for messages.
        signature: what callers pass.
        namespace: of the function, see ``annotations.namespace_of``.
        reserved: names that callers may not give, see ``binding``.

    Raises:
        AnnotationError: the annotation of a parameter can never work, or that of one without a default does not.
    """

    def __init__(
        self,
        task: str,
        signature: inspect.Signature,
        namespace: Mapping[str, Any] | None,
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        self._task = task
        self._namespace = namespace
        self._late: dict[str, str] = {}
        self._converters: dict[str, Converter | None] = {}
        self._unresolved: dict[str, str] = {}
        parameters: list[Parameter] = []
        for parameter in signature.parameters.values():
            try:
                parameters += spread(parameter, namespace)
            except (UnresolvedError, UnsupportedError):
                parameters.append(parameter)  # its converter says so
        try:
            self.binding = Binding(signature.replace(parameters=parameters), reserved)
        except ValueError as error:  # for a key of a TypedDict
            raise self._error(parameter.name, parameter.annotation, str(error)) from None
        for parameter in parameters:
            self._settle(parameter)
        self._free = not self._unresolved and not any(self._converters.values())

    def to_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as they are stored.

        Raises:
            TaskArgumentError: they do not fit the signature or their annotations, see also its subclasses.
        """
        if self._unresolved:
            self._look_up_again()
        try:
            self.binding.check(args, kwargs)
        except TypeError as error:
            raise TaskArgumentError(
                f"{self._task}{self.binding.signature}: {error}. Nothing was stored.", task=self._task
            ) from None
        try:
            return self._converted(args, kwargs, Converter.to_json)
        except _Misplaced as found:
            raise ArgumentError(
                self._task, found.parameter, found.misfit.path, f"{found.misfit.reason}. Nothing was stored."
            ) from None

    def from_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the function takes them.

        Raises:
            TypeError: they do not fit the signature or their annotations.
        """
        if self._unresolved:
            self._look_up_again()
        self.binding.check(args, kwargs)
        try:
            return self._converted(args, kwargs, Converter.from_json)
        except _Misplaced as found:
            raise TypeError(f"{found.misfit.path}: {found.misfit.reason}") from None

    def stored(self, name: str, value: Any) -> Any:
        """One value of a parameter as it is stored.

        Raises:
            ArgumentError: it does not fit the annotation.
        """
        converter = self._converters[name]
        if converter is None or type(value) in converter.exact:
            return value
        try:
            return converter.to_json(value, name)
        except Misfit as misfit:
            raise ArgumentError(self._task, name, misfit.path, misfit.reason) from None

    def unusable(self) -> dict[str, str]:
        """Parameters for which no value can be passed although somebody may pass one, and why; looked up again now."""
        self._look_up_again()
        return self._late | self._unresolved

    def _converted(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], convert: Callable[[Converter, Any, str], Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        if self._free:
            return list(args), dict(kwargs)
        converters, binding = self._converters, self.binding
        values = list(args)
        for index, (value, name) in enumerate(
            zip(args, chain(binding.positional, repeat(binding.rest)), strict=False)
        ):
            converter = converters[name]
            if converter is not None and type(value) not in converter.exact:
                values[index] = _placed(convert, converter, value, binding.shown(index))
        named_values = dict(kwargs)
        for name, value in kwargs.items():
            converter = converters[name if name in binding.named else binding.others]
            if converter is not None and type(value) not in converter.exact:
                named_values[name] = _placed(convert, converter, value, name)
        return values, named_values

    def _look_up_again(self) -> None:
        for name in list(self._unresolved):
            parameter = self.binding.signature.parameters[name]
            try:
                self._settle(parameter)
                if parameter.kind is Parameter.VAR_KEYWORD:  # perhaps they are known one by one now
                    anew = Arguments(self._task, self.binding.signature, self._namespace, self.binding.reserved)
                    self._converters = {**self._converters, **anew._converters}
                    self.binding = anew.binding
            except AnnotationError as error:  # a class that came later, and cannot be passed
                self._late[name] = str(error).rstrip(".")
                self._refuse(name, self._late[name])

    def _settle(self, parameter: Parameter) -> None:
        """Make the converter of a parameter, or one that says why there is none."""
        name, annotation = parameter.name, parameter.annotation
        self._unresolved.pop(name, None)
        try:
            spread(parameter, self._namespace)
            self._converters[name] = converter_of(annotation, self._namespace)
        except UnresolvedError as error:
            reason = (
                f"has the annotation {_shown(annotation)}, which cannot be looked up ({error}). Import the name "
                "where the task is, not for the type checker alone"
            )
            self._unresolved[name] = reason
            self._refuse(name, reason)
        except AmbiguousError as error:
            raise self._error(name, annotation, str(error)) from None
        except UnsupportedError as error:
            wanted = parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
            if wanted and parameter.default is Parameter.empty and not error.optional:
                raise self._error(name, annotation, str(error)) from None
            self._refuse(name, f"has the annotation {_shown(annotation)}: {error}")

    def _refuse(self, name: str, problem: str) -> None:
        self._converters[name] = Converter(Any, exact=frozenset((type(None),)), problem=problem)

    def _error(self, name: str, annotation: Any, reason: str) -> AnnotationError:
        return AnnotationError(
            f"{self._task}: parameter {name!r}: its annotation {_shown(annotation)} cannot work: {reason}. "
            "Annotate what the caller can pass (Any for any JSON value).",
            task=self._task,
            parameter=name,
        )


class _Misplaced(Exception):
    def __init__(self, parameter: str, misfit: Misfit) -> None:
        super().__init__(parameter, misfit)
        self.parameter = parameter
        self.misfit = misfit


def _placed(convert: Callable[[Converter, Any, str], Any], converter: Converter, value: Any, parameter: str) -> Any:
    try:
        return convert(converter, value, parameter)
    except Misfit as misfit:
        raise _Misplaced(parameter, misfit) from None


def _shown(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else named(annotation)
