"""The filters beside a list: one queue, always; state, task and class of the last error, if wanted.

Invariant: no filter looks at more rows than the newest ``NEWEST`` to offer its choices, so none makes a page slow. A
task whose jobs are all older is therefore not offered; the search finds it by name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from nobroker_django.engine.transitions import DEAD, DONE, DUE, LEASED, WAITING

from .connection import TABLE, connection_of, queue_names
from .showing import cell

NEWEST = 10_000
MANY = 20_000
QUEUE_PARAMETER = "queue"
STATES_OF = {
    "ready": ("waiting", "due"),
    "delayed": ("waiting",),
    "leased": ("leased",),
    "done": ("done",),
    "dead": ("dead",),
}


class QueueFilter(admin.SimpleListFilter):
    """Which queue; the query itself is made by ``ModelAdmin.get_queryset``. Hidden when there is only one."""

    title = "queue"
    parameter_name = QUEUE_PARAMETER

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every queue of the settings."""
        return [(name, name) for name in queue_names()]

    def has_output(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.lookup_choices) > 1

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Unchanged: it is of one queue already."""
        return queryset

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """The queues without "all". What was filtered by in one queue may not exist in another: it is not kept."""
        chosen = self.value() or (queue_names() or ("",))[0]
        for name, label in self.lookup_choices:
            yield {
                "selected": name == chosen,
                "query_string": changelist.get_query_string({self.parameter_name: name}, ["task", "error", "p", "q"]),
                "display": label,
            }


class StateFilter(admin.SimpleListFilter):
    """The five states that people know; a row knows whether it waits, not whether its time has come."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The states in the order of a job's life."""
        return [(name, name) for name in STATES_OF]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Rows of that state at this moment."""
        name = self.value()
        if name not in STATES_OF:
            return queryset
        wanted = state_condition(name, time.time())
        counts = connection_of(queryset.db).counts()
        if sum(counts[state] for state in STATES_OF[name]) > MANY:
            return queryset.filter(wanted)
        # SQLite does not know how few they are, and would look for them in the order of the list, through all rows.
        # In a query of their own it finds them by the index of their state.
        rows = queryset.model._default_manager.using(queryset.db).filter(wanted)
        return queryset.filter(seq__in=rows.values("seq"))


class _NewestFilter(admin.SimpleListFilter):
    """Values of one column among the newest jobs."""

    column = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The values among the newest jobs of the queue, and the one that is chosen."""
        queryset = model_admin.get_queryset(request)
        only = f"WHERE state = {DEAD} " if model_admin.only_dead else ""
        with connection_of(queryset.db).cursor() as cursor:
            cursor.execute(
                f"SELECT DISTINCT {self.column} FROM "
                f"(SELECT {self.column} FROM {TABLE} {only}ORDER BY seq DESC LIMIT {NEWEST}) "
                f"WHERE {self.column} IS NOT NULL ORDER BY 1 LIMIT 100"
            )
            values = [value for (value,) in cursor.fetchall()]
        chosen = self.value()
        if chosen and chosen not in values:
            values.append(chosen)
        return [(value, cell(value)) for value in values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Rows with that value."""
        return queryset.filter(**{self.column: self.value()}) if self.value() else queryset


class TaskFilter(_NewestFilter):
    """By the name of the task."""

    title = parameter_name = column = "task"


class ErrorFilter(_NewestFilter):
    """By the class of the last error."""

    title = "last error"
    parameter_name = "error"
    column = "error_class"


def state_condition(name: str, now: float) -> Q:
    """Rows that are in the state of that name at the moment ``now`` (Unix seconds)."""
    return {
        "ready": Q(state=DUE) | Q(state=WAITING, available_at__lte=now),
        "delayed": Q(state=WAITING, available_at__gt=now),
        "leased": Q(state=LEASED),
        "done": Q(state=DONE),
        "dead": Q(state=DEAD),
    }[name]
