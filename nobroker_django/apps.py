"""The Django application. Loading it opens no file and reads no setting of ours."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class NobrokerConfig(AppConfig):
    """``"nobroker_django"`` in ``INSTALLED_APPS`` is all that a project in development needs."""

    name = "nobroker_django"
    verbose_name = "Background jobs"

    def ready(self) -> None:
        """Register the checks, which read settings and look at the directory only when they are run."""
        from . import checks, checks_of_backends

        ours = (checks.check_settings, checks.check_directory, checks.check_tasks, checks_of_backends.check_backends)
        for check in ours:
            register(check, checks.TAG)
