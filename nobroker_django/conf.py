"""The ``NOBROKER`` setting as typed, frozen objects with defaults.

Invariant: settings are read when they are used, never at import, and a wrong one is refused as a whole
(``ImproperlyConfigured`` names the key) instead of being half applied. The parsed form is kept until Django says
that a setting has changed, so ``override_settings`` works.

Top-level keys are defaults for every queue; ``QUEUES`` may override them queue by queue.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from . import testrun
from .engine import options as checks
from .engine.backoff import BackoffPolicy
from .engine.errors import InvalidOptionError
from .engine.thresholds import CompactionPolicy

QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
DEFAULT_QUEUE = "default"
_T = TypeVar("_T")
_Policy = TypeVar("_Policy", BackoffPolicy, CompactionPolicy)
_Check = Callable[[object, str], Any]
_MISSING = (
    "NOBROKER['DIR'] is missing. Set it to a directory on a local disk, outside MEDIA_ROOT and STATIC_ROOT, that the "
    "web processes and the workers may write to. Only with DEBUG = True and BASE_DIR set is there a default (BASE_DIR "
    "/ '.nobroker')."
)
READ_FROM = frozenset({"NOBROKER", "DEBUG", "BASE_DIR"})
"""The Django settings that the parsed form depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How one queue is opened. Times are seconds."""

    visibility_timeout: float = 30.0
    max_attempts: int = 5
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)
    retention: float = 86_400.0
    compact: CompactionPolicy | None = field(default_factory=CompactionPolicy)
    fsync: bool = True
    file_mode: int = 0o600
    dir_mode: int = 0o700
    soft_time_limit: float | None = None
    time_limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole of ``NOBROKER``: where the queues are, which there are, and the defaults of the Django layer."""

    directory: Path | None
    queues: Mapping[str, QueueSettings]
    unknown_task_delay: float = 60.0
    on_commit: bool = True
    database: str = "default"
    outbox: bool = False
    immediate: bool = False
    imports: tuple[str, ...] = ()

    @property
    def dir(self) -> Path:
        """Where the queues are.

        Raises:
            ImproperlyConfigured: ``DIR`` is missing, which only ``IMMEDIATE`` lets pass.
        """
        if self.directory is None:
            raise ImproperlyConfigured(_MISSING)
        return self.directory


def get_settings() -> Settings:
    """The parsed ``NOBROKER``.

    Raises:
        ImproperlyConfigured: a key is unknown, a value has the wrong type or range, or ``DIR`` is missing.
    """
    global _parsed, _parsed_in
    test_run = testrun.number()
    if _parsed is None or _parsed_in != test_run:
        _parsed = parse_settings(
            getattr(django_settings, "NOBROKER", {}),
            debug=bool(django_settings.DEBUG),
            base_dir=getattr(django_settings, "BASE_DIR", None),
            test_run=test_run,
            replaced=testrun.directory_in_module(django_settings),
        )
        _parsed_in = test_run
    return _parsed


def queue_settings(alias: str) -> QueueSettings:
    """The settings of one queue.

    Raises:
        InvalidOptionError: no such queue; the message lists those that there are.
    """
    queues = get_settings().queues
    try:
        return queues[alias]
    except (KeyError, TypeError):
        raise InvalidOptionError(
            "queue_name",
            f"there is no queue {alias!r} in NOBROKER['QUEUES']{_nearest(alias, queues)}; "
            f"known queues: {', '.join(queues)}",
        ) from None


def parse_settings(
    value: object,
    *,
    debug: bool,
    base_dir: object = None,
    test_run: int | None = None,
    replaced: object = None,
) -> Settings:
    """``NOBROKER`` as typed objects.

    Args:
        value: the setting as the user wrote it.
        debug: Django's ``DEBUG``: allows ``DIR`` to be left out.
        base_dir: the project's ``BASE_DIR``, below which the default ``DIR`` lies.
        test_run: the number of this process in a test run (``testrun.number``), whose default ``DIR`` is a temporary
            one.
        replaced: a ``DIR`` that a test run does not use either: that of the settings module.

    Raises:
        ImproperlyConfigured: see ``get_settings``.
    """
    given = _mapping(value, "NOBROKER")
    _refuse_unknown(given, (*_QUEUE_KEYS, *_GLOBAL_KEYS, "DIR", "QUEUES"), "NOBROKER")
    shared = _queue_values(given, "NOBROKER", {})
    _refuse_contradiction(shared, "NOBROKER")
    options: dict[str, Any] = {
        name: check(given[key], f"NOBROKER[{key!r}]") for key, (name, check) in _GLOBAL_KEYS.items() if key in given
    }
    directory = _directory(given.get("DIR"), debug=debug, base_dir=base_dir, test_run=test_run, replaced=replaced)
    if directory is None and not options.get("immediate"):
        raise ImproperlyConfigured(_MISSING)
    return Settings(
        directory=directory,
        queues=_queues(given.get("QUEUES", {DEFAULT_QUEUE: {}}), shared),
        **options,
    )


def _queues(value: object, shared: dict[str, Any]) -> Mapping[str, QueueSettings]:
    given = _mapping(value, "NOBROKER['QUEUES']")
    if not given:
        raise ImproperlyConfigured("NOBROKER['QUEUES'] is empty. Name at least one queue: {'default': {}}.")
    queues: dict[str, QueueSettings] = {}
    spelled: dict[str, str] = {}
    for alias, overrides in given.items():
        where = f"NOBROKER['QUEUES'][{alias!r}]"
        if not QUEUE_NAME.fullmatch(alias):
            raise ImproperlyConfigured(
                f"{where}: a queue name has 1 to 64 ASCII letters, digits, '_' or '-', the first a letter or digit."
            )
        other = spelled.setdefault(alias.casefold(), alias)
        if other != alias:
            raise ImproperlyConfigured(f"{where} and {other!r} differ only by case. Rename one of them.")
        options = _mapping(overrides, where)
        _refuse_unknown(options, _QUEUE_KEYS, where)
        values = {**shared, **_queue_values(options, where, shared)}
        _refuse_contradiction(values, where)
        queues[alias] = QueueSettings(**values)
    return MappingProxyType(queues)


def _refuse_contradiction(values: Mapping[str, Any], where: str) -> None:
    soft, hard = values.get("soft_time_limit"), values.get("time_limit")
    if soft is not None and hard is not None and soft >= hard:
        raise ImproperlyConfigured(
            f"{where}: SOFT_TIME_LIMIT ({soft:g} s) must be below TIME_LIMIT ({hard:g} s): the time between them is "
            "what a task has to clean up."
        )


def _queue_values(given: Mapping[str, Any], where: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The queue options among ``given``.

    Args:
        shared: those of all queues: a ``BACKOFF`` or ``COMPACT`` that names some values takes the rest from there.
    """
    values = {
        name: check(given[key], f"{where}[{key!r}]")
        for key, (name, check) in _QUEUE_KEYS.items()
        if key in given and key not in ("BACKOFF", "COMPACT")
    }
    if "BACKOFF" in given:
        keys = {"BASE": "base", "FACTOR": "factor", "MAX_DELAY": "max_delay", "JITTER": "jitter"}
        default = shared.get("backoff", BackoffPolicy())
        values["backoff"] = _several(given["BACKOFF"], f"{where}['BACKOFF']", keys, default)
    if "COMPACT" in given:
        keys = {"MIN_BYTES": "min_bytes", "DEAD_RATIO": "dead_ratio"}
        policy = shared.get("compact") or CompactionPolicy()
        wanted = given["COMPACT"]
        values["compact"] = None if wanted is None else _several(wanted, f"{where}['COMPACT']", keys, policy)
    return values


def _directory(value: object, *, debug: bool, base_dir: object, test_run: int | None, replaced: object) -> Path | None:
    path = _given_directory(value)
    if test_run is not None and (path is None or value == replaced):
        return testrun.directory(test_run)
    if path is None and debug and isinstance(base_dir, str | Path) and str(base_dir):
        return Path(base_dir).absolute() / ".nobroker"
    return path


def _given_directory(value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise ImproperlyConfigured(f"NOBROKER['DIR'] must be a str or a Path, not {value!r}.")
    path = Path(value)
    if not path.is_absolute():
        raise ImproperlyConfigured(
            f"NOBROKER['DIR'] must be absolute, not {str(value)!r}: web processes and workers may have different "
            "working directories. Write BASE_DIR / ... instead."
        )
    return path


def _several(value: object, where: str, keys: Mapping[str, str], default: _Policy) -> _Policy:
    """A policy of which the setting names some values."""
    given = _mapping(value, where)
    _refuse_unknown(given, keys, where)
    changes = {keys[key]: number for key, number in given.items()}
    return _checked(lambda: replace(default, **changes), f" It is in {where}.")


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ImproperlyConfigured(f"{where} must be a dict with str keys, not {value!r}.")
    return value


def _refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in given:
        if key not in known:
            raise ImproperlyConfigured(
                f"{where} has no key {key!r}{_nearest(key, known)}. Known keys: {', '.join(sorted(known))}."
            )


def _nearest(word: object, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(str(word), list(known), n=2) or difflib.get_close_matches(
        str(word).upper(), list(known), n=2
    )
    return f" (did you mean {' or '.join(repr(match) for match in matches)}?)" if matches else ""


def _seconds(*, zero: bool = True) -> _Check:
    return lambda value, where: _checked(lambda: checks.seconds(where, value, zero=zero))


def _limit(value: object, where: str) -> float | None:
    return None if value is None else _checked(lambda: checks.seconds(where, value, zero=False))


def _lease_length() -> _Check:
    return lambda value, where: _checked(lambda: checks.lease_length(where, value))


def _integer(least: int, most: int = 2**31 - 1, hint: str = "") -> _Check:
    return lambda value, where: _checked(lambda: checks.integer(where, value, least=least, most=most), hint)


def _checked(check: Callable[[], _T], hint: str = "") -> _T:
    """The engine's check, as a mistake in the settings."""
    try:
        return check()
    except InvalidOptionError as error:
        raise ImproperlyConfigured(f"{error.option}: {error.reason}.{hint}") from None


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ImproperlyConfigured(f"{where} must be True or False, not {value!r}.")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ImproperlyConfigured(f"{where} must be a str, not {value!r}.")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise ImproperlyConfigured(f"{where} must be a list of dotted module paths, not {value!r}.")
    return tuple(value)


def _mode(allowed: int, example: str) -> _Check:
    """Permission bits; a number with other bits is most likely a forgotten ``0o``."""

    def check(value: object, where: str) -> int:
        if type(value) is not int or value < 0 or value & ~allowed or value & 0o600 != 0o600:
            raise ImproperlyConfigured(
                f"{where} must be permission bits in octal that let the owner read and write, such as {example}, not "
                f"{value!r}."
            )
        return value

    return check


_QUEUE_KEYS: dict[str, tuple[str, _Check]] = {
    "VISIBILITY_TIMEOUT": ("visibility_timeout", _lease_length()),
    "MAX_ATTEMPTS": ("max_attempts", _integer(1)),
    "BACKOFF": ("backoff", _mapping),
    "RETENTION": ("retention", _seconds()),
    "COMPACT": ("compact", _mapping),
    "SOFT_TIME_LIMIT": ("soft_time_limit", _limit),
    "TIME_LIMIT": ("time_limit", _limit),
    "FSYNC": ("fsync", _boolean),
    "FILE_MODE": ("file_mode", _mode(0o777, "0o660")),
    "DIR_MODE": ("dir_mode", _mode(0o2777, "0o2770")),
}
_GLOBAL_KEYS: dict[str, tuple[str, _Check]] = {
    "UNKNOWN_TASK_DELAY": ("unknown_task_delay", _seconds()),
    "ON_COMMIT": ("on_commit", _boolean),
    "DATABASE": ("database", _text),
    "OUTBOX": ("outbox", _boolean),
    "IMMEDIATE": ("immediate", _boolean),
    "IMPORTS": ("imports", _texts),
}
_parsed: Settings | None = None
_parsed_in: int | None = None


def _forget(*, setting: str, **kwargs: Any) -> None:
    global _parsed
    if setting in READ_FROM:
        _parsed = None


setting_changed.connect(_forget, dispatch_uid="nobroker_django.conf")
