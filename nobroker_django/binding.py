"""Which argument of a call belongs to which parameter of a function, and whether the call fits at all.

``inspect.Signature.bind`` says the same and takes several times as long; it is asked where the answer is no, for the
words of its error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Parameter = inspect.Parameter
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Binding:
    """Calls of a function with this signature.

    ``positional`` are the names of the parameters that take a value by position, ``named`` of those that take one by
    name, ``rest`` and ``others`` of ``*args`` and ``**kwargs`` (empty where there is none).

    Args:
        signature: what callers give.
        reserved: names that they may not give, not even to ``**kwargs``: the function gets them in another way.
    """

    def __init__(self, signature: inspect.Signature, reserved: frozenset[str] = frozenset()) -> None:
        parameters = list(signature.parameters.values())
        self.signature = signature
        self.reserved = reserved
        self.positional = [p.name for p in parameters if p.kind <= Parameter.POSITIONAL_OR_KEYWORD]
        self.named = frozenset(p.name for p in parameters if p.kind in _NAMED)
        self.rest = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), "")
        self.others = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), "")
        # By the number of positional arguments: which parameters need a name then, and which may not have one. Among
        # the first is None, which is no name, for parameters that have to be given by position.
        self._missing: list[frozenset[str | None]] = []
        self._taken: list[frozenset[str]] = []
        for count in range(len(self.positional) + 1):
            first = self.positional[:count]
            left = [p for p in parameters if p.name not in first and p.default is Parameter.empty]
            self._missing.append(
                frozenset(
                    None if p.kind is Parameter.POSITIONAL_ONLY else p.name
                    for p in left
                    if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
                )
            )
            self._taken.append(self.named & frozenset(first) | reserved)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises TypeError if the call does not fit the signature."""
        count, most = len(args), len(self.positional)
        if count <= most or self.rest:
            count = min(count, most)
            names = kwargs.keys()
            if (
                self._missing[count] <= names
                and (self.others or names <= self.named)
                and (not names or self._taken[count].isdisjoint(names))
            ):
                return
        for name in self.reserved & kwargs.keys():
            raise TypeError(f"got an unexpected keyword argument {name!r}")
        self.signature.bind(*args, **kwargs)

    def by_parameter(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Every argument with the name of its parameter, in the order of the call; those of ``*args`` are numbered."""
        for index, value in enumerate(args):
            yield self.shown(index), value
        yield from kwargs.items()

    def shown(self, index: int) -> str:
        """The name of the parameter that takes the positional argument ``index``."""
        most = len(self.positional)
        return self.positional[index] if index < most else f"{self.rest}[{index - most}]"
