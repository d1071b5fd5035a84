"""The filters beside a list: one queue, always; state, task and class of the last error, if wanted.

Invariant: no filter looks at many rows to offer its choices, so none makes a page slow: it steps from value to value
through an index, and only a small number of dead letters is looked at one by one.
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

from .connection import connection_of, queue_names
from .searching import MANY, in_states, values_in_state, values_of
from .showing import cell

MOST_CHOICES = 100
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
        return in_states(queryset, state_condition(name, time.time()), STATES_OF[name])


class _ColumnFilter(admin.SimpleListFilter):
    """The values of one column, which has an index of its own."""

    column = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The values in the list, the first ``MOST_CHOICES``, and the one that is chosen.

        In a long list of dead letters also those that only other jobs have.
        """
        connection = connection_of(model_admin.get_queryset(request).db)
        if model_admin.only_dead and connection.counts()["dead"] <= MANY:
            values = values_in_state(connection, self.column, MOST_CHOICES, DEAD)
        else:
            values = values_of(connection, self.column, MOST_CHOICES)
        chosen = self.value()
        if chosen and chosen not in values:
            values.append(chosen)
        return [(value, cell(value)) for value in values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Rows with that value."""
        return queryset.filter(**{self.column: self.value()}) if self.value() else queryset


class TaskFilter(_ColumnFilter):
    """By the name of the task."""

    title = parameter_name = column = "task"


class ErrorFilter(_ColumnFilter):
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
