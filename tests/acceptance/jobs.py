"""Tasks for the acceptance tests. They leave files as traces, and wait for files: events, not sleeps."""

import asyncio
import contextvars
import ctypes
import hashlib
import locale
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from nobroker_django import task

PATIENCE = 60.0


def trace(path: str | Path, text: str) -> None:
    """Append one line, whole, whoever else appends."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


@task
def note(path: str, text: str) -> str:
    """Leave a line."""
    trace(path, text)
    return text


@task
def hold(directory: str, name: str) -> str:
    """Leave ``name.started`` with the process id, wait for ``name.go``, leave ``name.done``."""
    place = Path(directory)
    trace(place / f"{name}.started", str(os.getpid()))
    wait_for((place / f"{name}.go").exists)
    trace(place / f"{name}.done", str(os.getpid()))
    return name


@task
def hold_against_everything(directory: str, name: str) -> None:
    """As ``hold``, and no exception ends it."""
    place = Path(directory)
    trace(place / f"{name}.started", str(os.getpid()))
    while not (place / f"{name}.go").exists():
        try:
            time.sleep(0.01)
        except BaseException:
            pass
    trace(place / f"{name}.done", str(os.getpid()))


@task
def die(path: str) -> None:
    """Leave a line and take the whole process down."""
    trace(path, str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)


@task
def leave(path: str, how: str) -> None:
    """Leave a line and raise what is no ``Exception``."""
    trace(path, how)
    raise {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "cancel": asyncio.CancelledError(),
        "generator": GeneratorExit(),
    }[how]


@task
def fail(path: str, text: str) -> None:
    """Leave a line and fail."""
    trace(path, "failed")
    raise ValueError(text)


@task
def leave_behind(directory: str) -> None:
    """Fork a process that lives on, and leave its id in ``behind``."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    trace(Path(directory) / "behind", str(pid))


@task
def wreck(how: str) -> str:
    """Damage the surroundings of the worker."""
    if how == "stdout":
        sys.stdout.close()
        sys.stderr.close()
    elif how == "replace":
        sys.stdout = sys.stderr = None
    elif how == "chdir":
        os.chdir("/")
    elif how == "fork":
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    elif how == "exit handlers":
        pid = os.fork()
        if pid == 0:
            sys.exit(3)  # the exception runs through the worker's frames in the child
        return f"{how} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"
    elif how == "raise":
        pid = os.fork()
        if pid == 0:
            raise ValueError("in the child")
        return f"{how} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"
    elif how == "return":
        pid = os.fork()
        if pid == 0:
            return "the child's"
        return f"{how} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"
    return how


@task
def leave_things_behind(directory: str) -> None:
    """Change what the worker does not change back."""
    os.chdir(directory)
    os.umask(0o077)
    os.environ["NOBROKER_TESTS_LEFT"] = "left"
    locale.setlocale(locale.LC_CTYPE, "C")
    warnings.simplefilter("error", ImportWarning)


@task
def look_around() -> dict[str, object]:
    """What is there of it, and the process."""
    umask = os.umask(0)
    os.umask(umask)
    return {
        "directory": str(Path.cwd()),
        "umask": umask,
        "environment": os.environ.get("NOBROKER_TESTS_LEFT"),
        "locale": locale.setlocale(locale.LC_CTYPE),
        "filter": warnings.filters[0][2] is ImportWarning,
        "process": os.getpid(),
    }


@task
def handle_alarms() -> None:
    """As a task does that wants to limit its own time."""
    signal.signal(signal.SIGALRM, lambda number, frame: None)


@task
def stay_in_c() -> None:
    """C code that lets the interpreter's lock go, for a very long time."""
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 2_000_000_000)


@task
def wait_for_a_thread() -> None:
    """Another thread, which never ends."""
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


@task
def leave_a_process(directory: str, how: str) -> None:
    """Start a process that stays, leave ``orphan.started`` with its id, and wait."""
    place = Path(directory)
    if (place / "orphan.started").exists():
        return
    if how == "fork":
        orphan = os.fork()
        if orphan == 0:
            while True:
                time.sleep(PATIENCE)
    elif how == "subprocess":
        orphan = subprocess.Popen(["sleep", "600"]).pid
    else:
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(10 * PATIENCE,))
        process.start()
        orphan = process.pid or 0
    trace(place / "orphan.started", str(orphan))
    wait_for((place / "never").exists)


@task
def square_elsewhere(numbers: list[int], method: str) -> list[int]:
    """Use processes of one's own."""
    if method == "subprocess":
        done = subprocess.run(
            [sys.executable, "-c", f"print(*(n * n for n in {numbers}))"], capture_output=True, text=True, check=True
        )
        return [int(word) for word in done.stdout.split()]
    if method.startswith("executor "):
        context = multiprocessing.get_context(method.removeprefix("executor "))
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            return list(executor.map(_square, numbers))
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(_square, numbers)


def _square(number: int) -> int:
    return number * number


@task
def chain(path: str, left: int) -> None:
    """Leave a line and enqueue the next one."""
    trace(path, str(left))
    if left:
        chain.enqueue(path, left - 1)


@task
def find_user(pk: int, name: str) -> bool:
    """Whether the row that the job is about is there."""
    from django.contrib.auth.models import User

    return User.objects.filter(pk=pk, username=name).exists()


@task
def standard_descriptors() -> list[str]:
    """Where descriptors 0 to 2 of the worker lead."""
    return [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]


@task
def hog(directory: str, name: str, seconds: float) -> None:
    """Leave ``name.started``, hold the interpreter's lock for so long in C code, leave ``name.done``."""
    place = Path(directory)
    trace(place / f"{name}.started", str(os.getpid()))
    usleep = ctypes.PyDLL(None).usleep  # what is called through PyDLL keeps the lock
    for _ in range(math.ceil(seconds / 0.9)):
        usleep(900_000)
    trace(place / f"{name}.done", str(os.getpid()))


@task(soft_time_limit=0.2)
def clean_up(directory: str, name: str) -> None:
    """Run over the soft limit, and leave ``name.cleaned`` because of it."""
    place = Path(directory)
    try:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                trace(place / f"{name}.swallowed", "x")
    finally:
        trace(place / f"{name}.cleaned", str(os.getpid()))


@task
async def meet(directory: str, name: str, number: int) -> int:
    """Leave ``name.started``, and end when so many are there."""
    place = Path(directory)
    trace(place / f"{name}.started", str(os.getpid()))
    end = time.monotonic() + PATIENCE
    while len((place / f"{name}.started").read_text().splitlines()) < number:
        if time.monotonic() > end:
            raise TimeoutError
        await asyncio.sleep(0.01)
    return number


@task
async def disturb(directory: str, how: str) -> str:
    """Do to the event loop what a coroutine task should not; wait for the others, which have not begun, first."""
    place = Path(directory)
    loop = asyncio.get_running_loop()

    async def leave() -> None:
        raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt()}[how]

    trace(place / "disturbed", how)
    if how == "stop":
        loop.stop()
    elif how == "cancel everybody":
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()
    else:
        leaving = loop.create_task(leave())
        await asyncio.sleep(0)
        assert leaving.done()
    await asyncio.sleep(0.01)
    return how


_number = contextvars.ContextVar("_number", default=0)


@task
async def ask_in_many_ways(directory: str, name: str) -> list[int]:
    """Use the database and enqueue, both ways, from a coroutine; the values of a context variable before and after."""
    from django.contrib.auth.models import User

    before = _number.get()
    _number.set(before + 1)
    count = await User.objects.acount()
    await note.aenqueue(f"{directory}/trace", f"{name} async")
    note.enqueue(f"{directory}/trace", f"{name} sync")
    return [before, _number.get(), count]


@task
def run_a_loop() -> int:
    """A task that is no coroutine and has an event loop of its own."""

    async def count() -> int:
        from django.contrib.auth.models import User

        return await User.objects.acount()

    return asyncio.run(count())


@task
def lose_connection(quietly: bool) -> None:
    """Close the connection to the database below Django, and meet that, or leave it to whoever comes next."""
    from django.contrib.auth.models import User
    from django.db import connection

    connection.ensure_connection()
    connection.connection.close()
    if not quietly:
        User.objects.count()


@task
async def lose_connection_in_a_coroutine() -> None:
    """As ``lose_connection``."""
    from asgiref.sync import sync_to_async

    await sync_to_async(lose_connection.function)(False)


@task
def count_users() -> int:
    """Use the database."""
    from django.contrib.auth.models import User

    return User.objects.count()


@task
async def count_users_in_a_coroutine() -> int:
    """Use the database."""
    from django.contrib.auth.models import User

    return await User.objects.acount()


@task
def say(text: str) -> str:
    """Nothing but its argument."""
    return text
