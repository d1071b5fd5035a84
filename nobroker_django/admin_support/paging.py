"""Pages of a list that may have millions of rows: nothing is counted beyond what a person would page through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.utils.formats import get_format
from django.utils.functional import cached_property

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator

MOST_COUNTED = 10_000


class CountedSoFar(int):
    """``MOST_COUNTED`` and more: a number for computing, "10,000+" for reading."""

    def __str__(self) -> str:
        # With a thousand separator Django groups the digits itself, from the right: a sign behind would shift them.
        return f">{int(self):d}" if get_format("USE_THOUSAND_SEPARATOR") else f"{int(self):,}+"


class CappedPaginator(AnyPaginator):
    """Counts up to ``MOST_COUNTED`` rows; older ones are reached by filters, the search, or the other order."""

    @cached_property
    def count(self) -> int:
        """How many rows, or that there are more than anybody counts."""
        rows = self.object_list
        assert isinstance(rows, QuerySet)
        counted = rows.order_by().values_list("seq")[: MOST_COUNTED + 1].count()
        return CountedSoFar(MOST_COUNTED) if counted > MOST_COUNTED else counted
