"""A PostgreSQL server for the tests: with a data directory of its own, on a local socket, stopped at the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE = 60.0
_PR_SET_PDEATHSIG = 1
# Nothing here has to survive the machine; the tests kill clients, not the server.
OPTIONS = {"listen_addresses": "", "fsync": "off", "full_page_writes": "off", "max_connections": "40"}


class NoServerError(Exception):
    """There is no server that could be started; ``str()`` says why."""


def binaries() -> Path:
    """The directory of ``initdb`` and ``postgres``.

    Raises:
        NoServerError: they are not installed.
    """
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NoServerError("PostgreSQL is not installed")


@contextlib.contextmanager
def server() -> Iterator[dict[str, Any]]:
    """A running server; what Django's ``DATABASES`` needs to use it.

    Raises:
        NoServerError: there is none, or it does not start.
    """
    try:
        import psycopg
    except ImportError as error:
        raise NoServerError(f"psycopg cannot be imported: {error}") from error
    place = binaries()
    # Not below pytest's directory, which is root's alone where root runs the tests; and a socket's path is short.
    directory = Path(tempfile.mkdtemp(prefix="nobroker-postgres-"))
    user = _unprivileged()
    try:
        if user is not None:
            os.chown(directory, *user)
        _run(user, place / "initdb", "-D", directory / "data", "-U", "tests", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = [word for name, value in OPTIONS.items() for word in ("-c", f"{name}={value}")]
        with (directory / "output").open("wb") as output:
            process = subprocess.Popen(
                [str(word) for word in (place / "postgres", "-D", directory / "data", "-k", directory, *options)],
                stdout=output,
                stderr=output,
                preexec_fn=_die_with_the_tests,
                **_identity(user),
            )
        try:
            database = {"HOST": str(directory), "USER": "tests", "NAME": "postgres"}
            _wait(process, lambda: psycopg.connect(host=str(directory), user="tests", dbname="postgres").close())
            yield {"ENGINE": "django.db.backends.postgresql", **database}
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(PATIENCE)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _unprivileged() -> tuple[int, int] | None:
    """As whom to run the server, which refuses to be root; ``None``: as we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise NoServerError("there is no unprivileged user to run PostgreSQL as")


def _identity(user: tuple[int, int] | None) -> dict[str, Any]:
    return {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}


def _die_with_the_tests() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def _run(user: tuple[int, int] | None, *command: object) -> None:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE, cwd="/", **_identity(user)
    )
    if done.returncode:
        raise NoServerError(f"{command[0]} failed: {done.stderr}")


def _wait(process: subprocess.Popen[bytes], connect: Any) -> None:
    import psycopg

    end = time.monotonic() + PATIENCE
    while True:
        try:
            connect()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > end:
                raise NoServerError(f"PostgreSQL did not start: {error}") from error
            time.sleep(0.02)
