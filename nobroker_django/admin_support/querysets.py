"""Querysets and managers that read the projection of one queue and nothing else.

Invariant: no query of these models reaches a database of the project. ``using`` with the alias of another database
answers with no rows and without a query, so that ``dumpdata`` and the like pass by.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

from django.db import models

from nobroker_django.engine.transitions import DEAD

from .connection import alias_of, is_ours, read_alias

M = TypeVar("M", bound=models.Model)


class ProjectionQuerySet(models.QuerySet[M, M]):
    """Jobs of one queue."""

    _db: str | None

    @property
    def db(self) -> str:
        """The alias, made known in the thread that runs the query."""
        return read_alias(self._db) if self._db is not None and is_ours(self._db) else super().db

    def using(self, alias: str | None) -> Self:
        """The same of another projection; of any other database nothing."""
        queryset = super().using(alias)
        return queryset if is_ours(alias) else queryset.none()

    def queue(self, name: str) -> Self:
        """The same of another queue."""
        return self.using(alias_of(name))


class ProjectionManager(models.Manager[M]):
    """The jobs of the first queue of the settings, until another is chosen. No setting is read before a query runs."""

    _db: str | None
    _hints: dict[str, Any]

    def get_queryset(self) -> ProjectionQuerySet[M]:
        """Every job."""
        alias = self._db if is_ours(self._db) else alias_of("")
        return ProjectionQuerySet(model=self.model, using=alias, hints=self._hints)

    def queue(self, name: str) -> ProjectionQuerySet[M]:
        """The jobs of one queue."""
        return self.get_queryset().queue(name)


class DeadLetterManager(ProjectionManager[M]):
    """The jobs that are out of attempts."""

    def get_queryset(self) -> ProjectionQuerySet[M]:
        """Only dead letters."""
        return super().get_queryset().filter(state=DEAD)
