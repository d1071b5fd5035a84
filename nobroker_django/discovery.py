"""Importing what defines tasks: the ``tasks`` module of each installed app, and ``NOBROKER["IMPORTS"]``.

Only workers do this; a web process imports what it enqueues. A module that is missing is no error, a module that
fails to import is: a worker without it would call its tasks unknown. A name that is still unknown may be the path of
a task in another module, which is then imported, once.
"""

from __future__ import annotations

import logging
import sysconfig
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils.module_loading import import_string, module_has_submodule

from . import announcing, compat, conf, registry
from .engine.errors import NobrokerError
from .engine.failures import describe, in_one_line

if TYPE_CHECKING:
    from .decorators import Task

logger = logging.getLogger("nobroker_django")
_tried: set[str] = set()
_HERE = str(Path(__file__).parent)


class TasksImportError(NobrokerError, ImportError):
    """A module with tasks cannot be imported. ``name`` is its dotted path, ``__cause__`` what the import raised.

    ``filename``: where that happened, if it is known. Django's autoreload watches the file that an error names so.
    """

    def __init__(self, name: str, error: BaseException) -> None:
        # The text of a SyntaxError ends with half of the place that is named here.
        message = error.msg if isinstance(error, SyntaxError) else describe(error).message
        place = _place(error)
        super().__init__(
            f"{name} cannot be imported: {in_one_line(type(error).__name__, message)}"
            + (f" ({place[0]}, line {place[1]})" if place else "")
        )
        self.name = name
        self.filename = place[0] if place else None


def discover() -> None:
    """Import every module that may define tasks.

    Raises:
        TasksImportError: one of them cannot be imported; the others that follow are not tried.
    """
    for error in failures():
        raise error from error.__cause__


def failures() -> Iterator[TasksImportError]:
    """Import every module that may define tasks, and yield an error for each that cannot be imported."""
    for name, app in _modules():
        try:
            import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: what happens in a module must not end the worker unexplained
            if app is None or module_has_submodule(app, "tasks"):
                failure = TasksImportError(name, error)
                failure.__cause__ = error
                yield failure


def _modules() -> Iterator[tuple[str, ModuleType | None]]:
    """Their dotted paths, with the app of those that need not be there."""
    for app in apps.get_app_configs():
        yield f"{app.name}.tasks", app.module
    for name in conf.get_settings().imports:
        yield name, None


def _place(error: BaseException) -> tuple[str, int] | None:
    """File and line of the project that the error comes from; of a library where no other is known."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    libraries = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
    found = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.lineno is not None and not frame.filename.startswith((_HERE, "<"))
    ]
    own = [place for place in found if not place[0].startswith(libraries)]
    return (own or found)[-1] if found else None


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
        except KeyboardInterrupt:
            raise
        except BaseException:  # sys.exit() too
            logger.exception("The task %s cannot be imported", name)
        task = registry.find(name)
    return task
