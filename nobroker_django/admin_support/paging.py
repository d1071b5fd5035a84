"""Pages of a list that may have millions of rows: nothing is counted beyond what a person would page through.

Counting and paging are one look at the rows: up to ``MOST_COUNTED`` sequence numbers are fetched in order, and a page
is made of some of them. A filter that matches little has to look at every row; it does so once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import QuerySet
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
        return f">{int(self):d}" if settings.USE_THOUSAND_SEPARATOR else f"{int(self):,}+"


class CappedPaginator(AnyPaginator):
    """Knows the first ``MOST_COUNTED`` rows; others are reached by filters, the search, or the other order."""

    @cached_property
    def found(self) -> list[int]:
        """The sequence numbers of the rows in order, one more than are shown at the most."""
        rows = self.object_list
        assert isinstance(rows, QuerySet)
        return list(rows.values_list("seq", flat=True)[: MOST_COUNTED + 1])

    @cached_property
    def count(self) -> int:
        """How many rows, or that there are more than anybody counts."""
        return CountedSoFar(MOST_COUNTED) if len(self.found) > MOST_COUNTED else len(self.found)

    def rows(self, number: int) -> QuerySet[Any]:
        """The rows of one page (from 1)."""
        assert isinstance(self.object_list, QuerySet)
        start = (number - 1) * self.per_page
        wanted = self.found[start : min(start + self.per_page, MOST_COUNTED)]
        plain: QuerySet[Any] = self.object_list.model._default_manager.using(self.object_list.db)
        return plain.filter(seq__in=wanted).order_by(*self.object_list.query.order_by)
