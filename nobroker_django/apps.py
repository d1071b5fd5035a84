"""The Django application. Loading it opens no file and reads no setting of ours."""

from __future__ import annotations

from django.apps import AppConfig


class NobrokerConfig(AppConfig):
    """``"nobroker_django"`` in ``INSTALLED_APPS`` is all that a project in development needs."""

    name = "nobroker_django"
    verbose_name = "Background jobs"
