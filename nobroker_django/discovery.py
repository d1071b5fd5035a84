"""Importing what defines tasks: the ``tasks`` module of each installed app, and ``NOBROKER["IMPORTS"]``.

Only workers do this; a web process imports what it enqueues. A module that is missing is no error, a module that
fails to import is: a worker without it would call its tasks unknown. A name that is still unknown may be the path of
a task in another module, which is then imported, once.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import autodiscover_modules, import_string

from . import announcing, compat, conf, registry

if TYPE_CHECKING:
    from .decorators import Task

logger = logging.getLogger("nobroker_django")
_tried: set[str] = set()


def discover() -> None:
    """Import every module that may define tasks.

    Raises:
        Exception: whatever the import of one of them raises.
    """
    autodiscover_modules("tasks")
    for name in conf.get_settings().imports:
        import_module(name)


def find_or_import(name: str) -> Task[Any, Any] | None:
    """The task of that name; if none is known, the module that the name may be a path into is imported.

    Nothing but a task is taken from there, and no other attribute of it is touched.
    """
    task = registry.find(name)
    if task is None and "." in name and name not in _tried:
        _tried.add(name)
        try:
            found = import_string(name)
            # One of a backend that is not ours has not registered itself; a job of it is here all the same.
            if registry.find(name) is None and compat.is_django_task(found) and announcing.alias():
                compat.task_backends[announcing.alias()].entry_of(found)
        except ImportError:
            pass
        except Exception:
            logger.exception("The task %s cannot be imported", name)
        task = registry.find(name)
    return task
