"""``manage.py check``: what is wrong with the settings and the directory, before a job is lost to it.

Invariant: nothing is opened for writing, nothing is created, no queue is opened. Wrong settings are check errors here
instead of the traceback that they are for everybody else. The ids are documented in ``docs/reference/checks.md``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Info
from django.core.exceptions import ImproperlyConfigured

from . import conf, mounts
from .checks_of_backends import check_immediate
from .engine.backoff import BackoffPolicy
from .limits import limits_of

if TYPE_CHECKING:
    from .decorators import Task

TAG = "nobroker"
_tasks_wanted = ContextVar("nobroker_tasks_wanted", default=True)
SHORTEST_LEASE = 5.0
"""Seconds. A lease is extended after a third of its length: below this, a busy machine may come too late."""
_OTHERS = stat.S_IRWXO
_QUEUE_FILES = (".log", ".current", ".lock")


def check_settings(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """Unknown keys, wrong values, times that contradict each other, durability that is off."""
    mistakes = list(_mistakes(getattr(django_settings, "NOBROKER", {})))
    if mistakes:
        return [Error(text, id="nobroker.E001") for text in mistakes]
    settings = conf.get_settings()
    return [
        *_database(settings),
        *check_immediate(settings),
        *_outbox(settings),
        *_times(settings),
        *_durability(settings),
    ]


def check_directory(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """The directory: there, writable, on a local disk, out of the reach of visitors and of other users."""
    try:
        settings = conf.get_settings()
    except ImproperlyConfigured:
        return []  # check_settings says it
    if settings.directory is None:
        return []  # with IMMEDIATE there may be none
    return [
        *_usable(settings.dir),
        *_network(settings.dir),
        *_public(settings.dir),
        *_readable_by_others(settings),
    ]


def check_tasks(app_configs: object = None, **kwargs: object) -> list[CheckMessage]:
    """The tasks that workers would import: can they be imported, and are their queues there."""
    if not _tasks_wanted.get():
        return []
    from . import discovery, registry

    try:
        settings = conf.get_settings()
    except ImproperlyConfigured:
        return []
    messages: list[CheckMessage] = [
        checks.Warning(
            f"{error}.",
            hint="Workers import the tasks module of each installed app and NOBROKER['IMPORTS'], and end on this.",
            id="nobroker.W007",
        )
        for error in discovery.failures()
    ]
    found = {id(task): task for name in registry.names() if (task := registry.find(name)) is not None}
    for task in found.values():
        messages += _task(task, settings)
    return messages


@contextmanager
def without_tasks() -> Iterator[None]:
    """Leave ``check_tasks`` out: a supervisor imports no code of its children's."""
    token = _tasks_wanted.set(False)
    try:
        yield
    finally:
        _tasks_wanted.reset(token)


# -- settings


def _mistakes(value: object) -> Iterator[str]:
    """What is wrong with ``NOBROKER``: each key on its own, so that one mistake does not hide the next."""
    try:
        conf.get_settings()
    except ImproperlyConfigured as error:
        first = str(error)
    else:
        return
    texts = dict.fromkeys(text for piece in _pieces(value) if (text := _mistake(piece)))
    yield from texts if first in texts else (first, *texts)


def _pieces(value: object) -> Iterator[dict[str, Any]]:
    """The setting key by key, each as a setting of its own."""
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        if not isinstance(key, str):
            continue  # the whole is refused for it
        if key != "QUEUES" or not isinstance(item, Mapping):
            yield {"DIR": os.sep, key: item}
            continue
        for alias, options in item.items():
            if not isinstance(options, Mapping) or not options:
                yield {"DIR": os.sep, key: {alias: options}}
                continue
            for name, option in options.items():
                yield {"DIR": os.sep, key: {alias: {name: option}}}


def _mistake(piece: dict[str, Any]) -> str | None:
    try:
        conf.parse_settings(piece, debug=False)
    except ImproperlyConfigured as error:
        return str(error)
    return None


def _database(settings: conf.Settings) -> Iterator[CheckMessage]:
    if settings.database not in _databases():
        hint = "Jobs enqueued in a transaction are written when the transaction of that database commits."
        yield _no_database("NOBROKER['DATABASE']", settings.database, hint)


def _databases() -> Mapping[str, Any]:
    return getattr(django_settings, "DATABASES", {}) or {"default": {}}


def _no_database(what: str, alias: str, hint: str) -> CheckMessage:
    known = ", ".join(map(repr, _databases()))
    return Error(
        f"{what} is {alias!r}, but DATABASES has no such alias (it has {known}).", hint=hint, id="nobroker.E004"
    )


def _outbox(settings: conf.Settings) -> Iterator[CheckMessage]:
    if settings.outbox and not apps.is_installed("nobroker_django.outbox"):
        yield Error(
            "NOBROKER['OUTBOX'] is True, but its app is not installed: enqueueing in a transaction fails.",
            hint="Add 'nobroker_django.outbox' to INSTALLED_APPS and run manage.py migrate.",
            id="nobroker.E020",
        )


def _times(settings: conf.Settings) -> Iterator[CheckMessage]:
    for alias, queue in settings.queues.items():
        yield from _lease_and_backoff(f"queue {alias!r}", queue.visibility_timeout, queue.backoff)


def _lease_and_backoff(
    whose: str, visibility_timeout: float | None, backoff: BackoffPolicy | None
) -> Iterator[CheckMessage]:
    if visibility_timeout is not None and visibility_timeout < SHORTEST_LEASE:
        yield checks.Warning(
            f"{whose}: a VISIBILITY_TIMEOUT of {visibility_timeout:g} s is so short that a busy worker may extend its "
            "leases too late: jobs would run twice.",
            hint="It is not the longest duration of a job (leases are extended), but how long the job of a dead "
            f"worker waits. Use {SHORTEST_LEASE:g} s or more.",
            id="nobroker.W005",
        )
    if backoff is not None and backoff.max_delay < backoff.base:
        yield checks.Warning(
            f"{whose}: BACKOFF has a MAX_DELAY ({backoff.max_delay:g} s) below its BASE ({backoff.base:g} s): every "
            "pause is MAX_DELAY, BASE and FACTOR have no effect.",
            hint="Raise MAX_DELAY or lower BASE.",
            id="nobroker.W006",
        )


def _durability(settings: conf.Settings) -> Iterator[CheckMessage]:
    names = [repr(alias) for alias, queue in settings.queues.items() if not queue.fsync]
    if names and not django_settings.DEBUG:
        yield checks.Warning(
            f"FSYNC is False for {', '.join(names)} while DEBUG is off: not durable, a power cut may lose jobs that "
            "were acknowledged.",
            hint="Remove FSYNC, or silence this check if these jobs may be lost.",
            id="nobroker.W004",
        )


# -- the directory


def _usable(directory: Path) -> Iterator[CheckMessage]:
    try:
        there = directory.exists()
    except OSError as error:
        yield _not_writable(directory, f"cannot be looked at: {error}")
        return
    if not there:
        parent = next(parent for parent in directory.parents if parent.exists())
        if not parent.is_dir():
            yield _no_directory(parent)
        elif _may(parent, os.W_OK | os.X_OK):
            yield Info(f"{directory} does not exist yet; it is created when first used.", id="nobroker.I001")
        else:
            yield _not_writable(directory, f"does not exist, and {parent} is not writable")
    elif not directory.is_dir():
        yield _no_directory(directory)
    elif not _may(directory, os.R_OK | os.W_OK | os.X_OK):
        yield _not_writable(directory, "is not readable and writable")
    else:
        locked = [path.name for path in _queue_files(directory) if not _may(path, os.R_OK | os.W_OK)]
        if locked:
            yield _not_writable(directory, f"has files that are not readable and writable ({_some(locked)})")


def _no_directory(path: Path) -> CheckMessage:
    return Error(f"{path} is not a directory.", hint="NOBROKER['DIR'] is in its place.", id="nobroker.E002")


def _not_writable(directory: Path, what: str) -> CheckMessage:
    return Error(
        f"{directory} {what} for the user of this process (uid {os.geteuid()}).",
        hint="The web processes and the workers have to write there: run all of them as one user, or as users of one "
        "group with FILE_MODE 0o660 and DIR_MODE 0o2770.",
        id="nobroker.E003",
    )


def _network(directory: Path) -> Iterator[CheckMessage]:
    mount = mounts.mount_of(directory)
    if mount is not None and mount.is_network:
        yield checks.Warning(
            f"{directory} is on a network or shared file system ({mount.type}, {mount.source} on {mount.point}).",
            hint="Locks and syncs of several machines do not protect each other there. Use a local disk.",
            id="nobroker.W001",
        )


def _public(directory: Path) -> Iterator[CheckMessage]:
    real = directory.resolve()
    for setting, path in _public_directories():
        if real.is_relative_to(path.resolve()):
            yield checks.Warning(
                f"{directory} is inside {setting} ({path}): visitors may be able to download it.",
                hint="The log holds the arguments of all jobs. Move NOBROKER['DIR'] elsewhere.",
                id="nobroker.W002",
            )


def _public_directories() -> Iterator[tuple[str, Path]]:
    for setting in ("MEDIA_ROOT", "STATIC_ROOT"):
        value = getattr(django_settings, setting, None)
        if value:
            yield setting, Path(value)
    for entry in getattr(django_settings, "STATICFILES_DIRS", None) or ():
        yield "STATICFILES_DIRS", Path(entry[1] if isinstance(entry, list | tuple) else entry)


def _readable_by_others(settings: conf.Settings) -> Iterator[CheckMessage]:
    hint = "The log holds the arguments of all jobs. Take the rights of others away (chmod o-rwx)."
    mode = _mode(settings.dir)
    if mode is not None and mode & _OTHERS and settings.dir.is_dir():
        files = [path.name for path in _queue_files(settings.dir) if (_mode(path) or 0) & _OTHERS]
        more = f", and so are files in it ({_some(files)})" if files and mode & stat.S_IXOTH else ""
        yield checks.Warning(
            f"{settings.dir} is open to every user of this machine (mode {mode:04o}){more}.",
            hint=hint,
            id="nobroker.W003",
        )
    for setting in ("file_mode", "dir_mode"):
        names = [repr(alias) for alias, queue in settings.queues.items() if getattr(queue, setting) & _OTHERS]
        if names:
            yield checks.Warning(
                f"{setting.upper()} of {', '.join(names)} gives rights to every user of this machine.",
                hint="Leave the last digit 0: 0o600 or 0o660 for files, 0o700 or 0o2770 for directories.",
                id="nobroker.W003",
            )


def _queue_files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix in _QUEUE_FILES or ".torn-" in path.name)
    except OSError:
        return []


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def _may(path: Path, rights: int) -> bool:
    return os.access(path, rights, effective_ids=os.access in os.supports_effective_ids)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


# -- tasks


def _task(task: Task[Any, Any], settings: conf.Settings) -> Iterator[CheckMessage]:
    options = task.options
    if options.queue_name not in settings.queues:
        yield Error(
            f"task {task.name} is for the queue {options.queue_name!r}, which is not in NOBROKER['QUEUES'] "
            f"({', '.join(settings.queues)}).",
            hint="Enqueueing it fails. Add the queue, or correct queue_name.",
            id="nobroker.E005",
        )
    if options.database is not None and options.database not in _databases():
        yield _no_database(f"database of task {task.name}", options.database, "Enqueueing it fails.")
    yield from _lease_and_backoff(f"task {task.name}", options.visibility_timeout, task.backoff)
    for parameter, reason in task.arguments.unusable().items():
        yield checks.Warning(
            f"task {task.name}: no value can be passed for its parameter {parameter!r}: {reason}.",
            hint="Annotate what the caller can pass, with names that are there when the task runs.",
            id="nobroker.W009",
        )
    queue = settings.queues.get(options.queue_name, conf.QueueSettings())
    soft, hard = (task.limits.soft or queue.soft_time_limit), (task.limits.hard or queue.time_limit)
    if soft is not None and limits_of(task, queue).soft is None:
        yield checks.Warning(
            f"task {task.name}: its soft time limit ({soft:g} s) is not below its time limit ({hard:g} s), one of "
            f"which is that of the queue {options.queue_name!r}: there is no soft limit.",
            hint="Give the task both, soft_time_limit below time_limit.",
            id="nobroker.W008",
        )
