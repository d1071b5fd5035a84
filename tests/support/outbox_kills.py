"""Kills processes at every system call on files and at every statement of a database, and reports what became of it.

Run as a program with the settings of the acceptance tests and the names of some of ``PARTS``; prints one JSON object.
The database is emptied before. Every process that is killed is a
fork of this one, which itself opens neither the database nor a queue.

What is tried with a victim: a transaction that enqueues one job and then two together, and sweeps. After each kill
somebody repairs: sweeps, and runs what there is. In every second round the jobs that are there are run, and forgotten
by a compaction, before the sweep; with a retention of 0 the log then knows them only for the sake of the outbox.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import django

MOST_EVENTS = 500
LOOKS = frozenset(
    {
        "open",
        "close",
        "pread",
        "read",
        "size",
        "identity",
        "path_identity",
        "path_size",
        "mode",
        "free_space",
        "listdir",
    }
)
SWEEPERS, ROWS = 4, 40


class Killer:
    """Counts events, and kills this process at the one with the chosen number (0: at none)."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.names: list[str] = []

    def event(self, name: str) -> None:
        """Something is about to happen, or has happened."""
        self.names.append(name)
        if len(self.names) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Every call that changes the queues' files or their locks, every statement and every commit is an event.

        To die before a look at a file is to die before the next change.
        """
        from django.db import connection

        from nobroker_django.engine.files import Files

        for name, function in list(vars(Files).items()):
            if callable(function) and not name.startswith("_") and name not in LOOKS:
                setattr(Files, name, self._watched(name, function))
        connection.ensure_connection()
        connection.execute_wrappers.append(self._statement)
        commit = connection._commit  # type: ignore[attr-defined]

        def watched_commit() -> None:
            self.event("before COMMIT")
            commit()
            self.event("after COMMIT")

        connection._commit = watched_commit  # type: ignore[attr-defined]

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.event(f"before {name}")
            return function(*args, **kwargs)

        return call

    def _statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        word = sql.split()[0]
        self.event(f"before {word}")
        result = execute(sql, params, many, context)
        self.event(f"after {word}")
        return result


def in_fork(act: Callable[[], Any]) -> Any:
    """What ``act`` returns in another process, or "killed".

    Raises:
        RuntimeError: it failed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as stream:
                json.dump(act(), stream)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGKILL:
        return "killed"
    if code:
        raise RuntimeError(f"a process ended with {code}")
    return json.loads(text)


class RollBack(Exception):
    """The transaction of a victim comes to nothing."""


def transact(number: int, *, roll_back: bool = False) -> None:
    """A row, and three jobs about it."""
    from django.contrib.auth.models import User
    from django.db import transaction

    from tests.acceptance.jobs import say

    try:
        with transaction.atomic():
            User.objects.create(username=f"user {number}")
            say.enqueue(f"{number} alone")
            say.enqueue_many([say.s(f"{number} first"), say.s(f"{number} second")])
            if roll_back:
                raise RollBack
    except RollBack:
        pass


def victim(at: int, act: Callable[[], Any]) -> list[str]:
    """Act, and be killed at an event; the names of all events, if there were not so many."""
    from nobroker_django.queues import get_queue

    get_queue()
    killer = Killer(at)
    killer.watch()
    act()
    killer.event("the end")
    killer.at = 0
    return killer.names


def run_all() -> list[str]:
    """Run every job that is there; the texts of them."""
    from nobroker_django.queues import get_queue

    found = []
    while jobs := get_queue().lease(100):
        found += [job.payload["args"][0] for job in jobs]
        get_queue().ack_many(jobs)
    return found


def repair(number: int) -> dict[str, Any]:
    """Sweep and run what there is; what was found."""
    from django.contrib.auth.models import User

    from nobroker_django.outbox.models import OutboxRow
    from nobroker_django.outbox.sweeping import sweep
    from nobroker_django.queues import get_queue

    rows, ran = OutboxRow.objects.count(), []
    if number % 2:
        ran += run_all()
        get_queue().compact()
    before = len(get_queue().list_jobs("ready"))
    sweep("default")
    return {
        "committed": User.objects.filter(username=f"user {number}").exists(),
        "rows": rows,
        "rows_left": OutboxRow.objects.count(),
        "there_before_the_sweep": len(ran) + before,
        "ran": ran + run_all(),
    }


def kills(first: int, make: Callable[[int, int], Any]) -> dict[str, Any]:
    """Kill at the first event, at the second … until nobody is killed any more.

    Args:
        first: number of the first round.
        make: the victim of a round, which is to be killed at the event with the second number.
    """
    rounds = []
    for at in range(1, MOST_EVENTS):
        number = first + at
        names = make(number, at)
        rounds.append({"number": number, "killed": names == "killed", **in_fork(partial(repair, number))})
        if names != "killed":
            return {"rounds": rounds, "events": names}
    raise RuntimeError("no end of events")


def killed_in_the_transaction(number: int, at: int, *, roll_back: bool = False) -> Any:
    return in_fork(lambda: victim(at, lambda: transact(number, roll_back=roll_back)))


def leave_rows(number: int) -> None:
    """A transaction whose process is killed between the commit and the write."""
    from django.db import transaction

    def doomed() -> None:
        with transaction.atomic():
            transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
            transact(number)

    assert in_fork(doomed) == "killed"


def killed_in_the_sweep(number: int, at: int) -> Any:
    from nobroker_django.outbox.sweeping import sweep

    leave_rows(number)
    return in_fork(lambda: victim(at, lambda: sweep("default").rows))


def many_sweepers(first: int) -> dict[str, Any]:
    """Several processes sweep the same rows at the same time."""
    from nobroker_django.outbox.sweeping import sweep

    def dying() -> None:
        from django.db import transaction

        transaction.on_commit = lambda *args, **kwargs: None
        for number in range(ROWS):
            transact(first + number)

    in_fork(dying)
    pids = []
    for _ in range(SWEEPERS):
        pid = os.fork()
        if pid == 0:
            try:
                while sweep("default").rows:
                    pass
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    found = in_fork(lambda: repair(first - first % 2))
    return {"codes": codes, **found, "ran": dict(Counter(found["ran"]))}


def migrate() -> None:
    from django.core.management import call_command

    call_command("migrate", "auth", verbosity=0)
    call_command("migrate", "nobroker_outbox", verbosity=0)
    call_command("flush", verbosity=0, interactive=False)


PARTS: dict[str, Callable[[], Any]] = {
    "committed": lambda: kills(1000, killed_in_the_transaction),
    "rolled back": lambda: kills(2000, lambda number, at: killed_in_the_transaction(number, at, roll_back=True)),
    "swept": lambda: kills(3000, killed_in_the_sweep),
    "many": lambda: many_sweepers(4000),
}


def main() -> None:
    django.setup()
    # What every fork needs is imported once; it opens nothing.
    for name in ("tests.acceptance.jobs", "nobroker_django.outbox.sweeping"):
        importlib.import_module(name)
    in_fork(migrate)
    print(json.dumps({name: PARTS[name]() for name in sys.argv[1:]}))


if __name__ == "__main__":
    main()
