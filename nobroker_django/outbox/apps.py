"""The Django application with the outbox's table. Loading it opens no database and no file."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register

APP = "nobroker_django.outbox"


class OutboxConfig(AppConfig):
    """``"nobroker_django.outbox"`` in ``INSTALLED_APPS``, beside ``"nobroker_django"``."""

    name = APP
    label = "nobroker_outbox"
    verbose_name = "Outbox of background jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the check, which asks a database only when Django was told to."""
        from . import checks

        register(checks.check_rows, Tags.database)
