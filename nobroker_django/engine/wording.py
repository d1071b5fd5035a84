"""Words for messages."""

from __future__ import annotations


def count_of(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 job``, ``2 jobs``."""
    return f"{number} {one if number == 1 else many or one + 's'}"
