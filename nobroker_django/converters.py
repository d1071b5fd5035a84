"""One value between Python and JSON, by the type that an annotation names. msgspec converts; this module looks twice.

Invariant: what ``to_json`` returns comes back through ``from_json`` as ``roundtrip`` demands, or it is refused before
anything is stored. Whether the JSON itself is exact (NaN, lone surrogates, size) is for the engine to say; which
annotations there are, for ``annotations``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, get_args, get_origin

import msgspec

from .misfits import Misfit, not_json, refused
from .roundtrip import difference, named

BY_HAND: frozenset[Any] = frozenset((object, Iterable, Path, PurePath, PurePosixPath, type(Path())))
"""Types that msgspec leaves to ``_encode`` and ``_decode``."""


class Converter:
    """Values of one type. Only a value whose exact type is not in ``exact`` need be given to it.

    Args:
        wanted: the type, as msgspec takes it.
        exact: types of values that are JSON already and fit as they are.
        plain: JSON has all of the type: its values are checked and never changed.
        unordered: there are sets in it. They are stored sorted, so that equal arguments are equal payloads.
        problem: why no other value can be converted.
    """

    __slots__ = ("exact", "plain", "problem", "unordered", "wanted")

    def __init__(
        self,
        wanted: Any,
        *,
        exact: frozenset[type] = frozenset(),
        plain: bool = False,
        unordered: bool = False,
        problem: str = "",
    ) -> None:
        self.wanted = wanted
        self.exact = exact
        self.plain = plain
        self.unordered = unordered
        self.problem = problem

    def to_json(self, value: Any, what: str) -> Any:
        """The JSON value that stands for ``value``; ``what`` is its name in paths.

        Raises:
            Misfit: it is not of the type, or would not come back as it is.
        """
        if self.plain:
            self._read(value, value, what)
            return value
        if self.problem:
            raise Misfit(what, self.problem)
        try:
            stored = self._write(value)
        except RecursionError:
            raise Misfit(what, "is nested too deeply") from None
        except Exception as error:
            raise not_json(value, what, self._write, error) from None
        back = self._read(stored, value, what)
        try:
            found = difference(value, back, what)
        except RecursionError:
            raise Misfit(what, "is nested too deeply") from None
        if found is not None:
            raise Misfit(*found)
        # Equal arguments are equal payloads: 1 for a float is 1.0.
        return back if type(back) is float else stored

    def from_json(self, stored: Any, what: str) -> Any:
        """The Python value that ``stored`` stands for.

        Raises:
            Misfit: it does not fit the type.
        """
        if self.problem:
            raise Misfit(what, self.problem)
        return self._read(stored, stored, what)

    def _write(self, value: Any) -> Any:
        if self.unordered:
            try:
                return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode, order="deterministic")
            except TypeError:
                pass  # members without an order among themselves are stored as they come
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)

    def _read(self, stored: Any, value: Any, what: str) -> Any:
        """``stored`` in the type; a refusal speaks of ``value``, from which it was made."""
        try:
            return self._convert(stored)
        except msgspec.ValidationError as error:
            raise refused(str(error), stored, value, what, named(self.wanted), self._convert) from None
        except RecursionError:
            raise Misfit(what, "is nested too deeply") from None
        except Exception as error:  # out of a class of the project
            raise Misfit(what, f"cannot be made: {type(error).__name__}: {error}") from None

    def _convert(self, stored: Any) -> Any:
        return msgspec.convert(stored, self.wanted, strict=True, str_keys=True, dec_hook=_decode)


def is_known(value: Any) -> bool:
    """Whether an annotation would help to store a value that JSON alone would change."""
    try:
        return type(msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)) is not type(value)
    except Exception:
        return False


def _encode(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{named(type(value))} is not known")


def _decode(wanted: Any, stored: Any) -> Any:
    kind = get_origin(wanted) or wanted
    if kind is object:
        return stored
    if kind is Iterable:
        members: Any = list[get_args(wanted) or (Any,)]  # type: ignore[misc]
        return msgspec.convert(stored, members, strict=True, str_keys=True, dec_hook=_decode)
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(stored, str):
        return kind(stored)
    raise ValueError(f"Expected `{getattr(kind, '__name__', kind)}`, got `{type(stored).__name__}`")
