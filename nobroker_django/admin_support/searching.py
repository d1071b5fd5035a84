"""Finding values and rows through the indexes of the projection, whatever the size of the queue.

SQLite keeps no statistics here: it cannot know which values are rare, and takes an index of many equal values for one
of few. So the choice between the ways to the same rows is made in here.
"""

from __future__ import annotations

from typing import Any

from django.db.models import F, Q, QuerySet, TextField, Value
from django.db.models.functions import Coalesce

from .connection import TABLE, ProjectionConnection, connection_of

MANY = 20_000
_AFTER_ANY_TEXT = "\U0010ffff"
_STEP_BY_STEP = f"""
    WITH RECURSIVE found (value) AS (
        SELECT min({{column}}) FROM {TABLE} WHERE {{column}} >= %s AND {{column}} < %s
        UNION ALL
        SELECT (SELECT min({{column}}) FROM {TABLE} WHERE {{column}} > value AND {{column}} < %s)
        FROM found WHERE value IS NOT NULL
    )
    SELECT value FROM found WHERE value IS NOT NULL LIMIT %s
"""
# The inner limit keeps SQLite from walking through the index of the column, past every job, instead.
_IN_STATE = f"""
    SELECT DISTINCT {{column}} FROM (SELECT {{column}} FROM {TABLE} WHERE state = %s ORDER BY seq LIMIT {MANY})
    WHERE {{column}} IS NOT NULL ORDER BY 1 LIMIT %s
"""


def values_of(connection: ProjectionConnection, column: str, limit: int, *, beginning: str = "") -> list[str]:
    """The first values of a column that has an index, in order: one step in it for each."""
    end = beginning + _AFTER_ANY_TEXT
    with connection.cursor() as cursor:
        cursor.execute(_STEP_BY_STEP.format(column=column), [beginning, end, end, limit])
        return [value for (value,) in cursor.fetchall()]


def values_in_state(connection: ProjectionConnection, column: str, limit: int, state: int) -> list[str]:
    """The first values of a column among the rows of one state, ``MANY`` of these at the most, in order."""
    with connection.cursor() as cursor:
        cursor.execute(_IN_STATE.format(column=column), [state, limit])
        return [value for (value,) in cursor.fetchall()]


def in_states(queryset: QuerySet[Any], wanted: Q, states: tuple[str, ...]) -> QuerySet[Any]:
    """The rows for which ``wanted`` holds, none of which is in another than these states (of ``schema.STATES``)."""
    counts = connection_of(queryset.db).counts()
    if sum(counts[state] for state in states) > MANY:
        return queryset.filter(wanted)
    # They would be looked for in the order of the list, or of a task, through all rows. In a query of their own they
    # are found by the index of their state.
    rows = queryset.model._default_manager.using(queryset.db).filter(wanted)
    return queryset.filter(seq__in=rows.values("seq"))


def with_task_beginning(queryset: QuerySet[Any], text: str) -> QuerySet[Any]:
    """The rows whose task's name begins so."""
    names = values_of(connection_of(queryset.db), "task", 2, beginning=text)
    if len(names) < 2:
        return queryset.filter(task__in=names)
    # Rows of several tasks would come out of the index in the order of these, all of them, to be sorted. A list needs
    # no more than the first ones; what has no index (COALESCE) is compared row by row in the order of the list.
    name = Coalesce(F("task"), Value(""), output_field=TextField())
    found: QuerySet[Any] = queryset.alias(name=name).filter(begins("name", text))
    return found


def begins(field: str, text: str) -> Q:
    """Values that begin with ``text``, as a range: unlike LIKE it can use an index."""
    return Q(**{f"{field}__gte": text, f"{field}__lt": text + _AFTER_ANY_TEXT})
