"""Importing what defines tasks: the ``tasks`` module of each installed app, and ``NOBROKER["IMPORTS"]``.

Only workers do this; a web process imports what it enqueues. A module that is missing is no error, a module that
fails to import is: a worker without it would call its tasks unknown.
"""

from __future__ import annotations

from importlib import import_module

from django.utils.module_loading import autodiscover_modules

from . import conf


def discover() -> None:
    """Import every module that may define tasks.

    Raises:
        Exception: whatever the import of one of them raises.
    """
    autodiscover_modules("tasks")
    for name in conf.get_settings().imports:
        import_module(name)
