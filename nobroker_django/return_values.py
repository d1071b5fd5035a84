"""What a task returns, between the type of its return annotation and JSON.

The annotation helps and never judges, for the task has run. A value that it fits is stored as JSON and given back in
its type; any other is stored if it is JSON as it is, and comes back as that. Nothing in here raises for a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .annotations import AmbiguousError, UnresolvedError, UnsupportedError, converter_of
from .converters import Converter
from .misfits import Misfit


class ReturnValues:
    """The return values of one task.

    Args:
        annotation: as it stands in the signature.
        namespace: of the function, see ``annotations.namespace_of``.
    """

    def __init__(self, annotation: Any, namespace: Mapping[str, Any] | None) -> None:
        self._annotation = annotation
        self._namespace = namespace
        self._unresolved = True
        self._converter: Converter | None = None
        self._look_up()

    def to_json(self, value: Any) -> Any:
        """The value as it is to be stored; whether it is JSON is for the engine to say."""
        converter = self._chosen(value)
        if converter is None:
            return value
        try:
            return converter.to_json(value, "result")
        except Misfit:
            return value

    def from_json(self, stored: Any) -> Any:
        """The value that was returned."""
        converter = self._chosen(stored)
        if converter is None:
            return stored
        try:
            return converter.from_json(stored, "result")
        except Misfit:
            return stored

    def _chosen(self, value: Any) -> Converter | None:
        """The converter, if there is anything for it to do."""
        if self._unresolved:
            self._look_up()
        converter = self._converter
        return None if converter is None or converter.plain or type(value) in converter.exact else converter

    def _look_up(self) -> None:
        try:
            self._converter = converter_of(self._annotation, self._namespace)
        except UnresolvedError:
            return  # perhaps a name that comes later in the module
        except (AmbiguousError, UnsupportedError):
            pass
        self._unresolved = False
