"""Everything that reads a queue's files, tried on spoilt ones: only the package's own errors, soon, in little memory.

Run as a process of its own (``python -m tests.support.fuzzing SOUND SCRATCH FIRST COUNT``), which may not take more
memory than it says, and not longer for one directory than it says. It prints a JSON object a line: a ``seed`` before
each directory, a ``problem`` for whatever else than a ``NobrokerError`` came out, and at last how often each outcome
was seen.
"""

from __future__ import annotations

import collections
import io
import json
import logging
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from nobroker_django import NobrokerError, Queue
from nobroker_django.cli.main import main
from nobroker_django.engine.examination import examine_queue
from nobroker_django.engine.inspection import check_end, open_view
from nobroker_django.engine.salvage import assess_salvage, salvage_queue
from nobroker_django.engine.verification import verify_queue

from .mutations import spoil_index, spoil_log, spoil_pointer, spoil_words
from .scripts import clock

EXTRA_BYTES = 192 * 1024 * 1024  # more than the interpreter and the modules take: several of the longest records
SECONDS = 300  # for one directory; a hundred times what it takes


def spoil(sound: Path, directory: Path, rng: random.Random) -> None:
    """A copy of the queue ``sound``, spoilt."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(sound, directory)
    [log] = directory.glob("*.log")
    what = rng.random()
    if what < 0.85:
        log.write_bytes(spoil_log(log.read_bytes(), rng))
    if what > 0.7:
        lock = directory / "default.lock"
        lock.write_bytes(spoil_words(lock.read_bytes(), rng))
    if what > 0.97:
        (directory / "default.current").write_bytes(spoil_pointer(rng))
    if rng.random() < 0.3:
        (directory / "default.lock").unlink()
    if rng.random() < 0.5:
        shutil.rmtree(directory / "default.run", ignore_errors=True)
    elif rng.random() < 0.2:
        for index in (directory / "default.run").glob("*.index"):
            index.write_bytes(spoil_index(index.read_bytes(), rng))


def look(directory: Path) -> list[Callable[[], Any]]:
    """What only looks."""

    def records() -> int:
        with open_view(directory, "default") as view:
            return sum(len(record.fields) for record in view.records())

    def read_only() -> Any:
        with Queue(directory, read_only=True, clock=clock) as queue:
            return [queue.stats(), queue.list_jobs(), queue.dlq(), queue.list_jobs(limit=3)]

    def command(*arguments: str) -> Callable[[], Any]:
        def run() -> int:
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = main(["--dir", str(directory), *arguments])
            assert code in (0, 1, 3, 4), code
            for line in out.getvalue().splitlines() if "--json" in arguments else ():
                json.loads(line)
            return code

        return run

    return [
        lambda: check_end(directory, "default"),
        lambda: examine_queue(directory, "default"),
        records,
        lambda: verify_queue(directory, "default"),
        read_only,
        lambda: assess_salvage(directory, "default"),
        command("inspect"),
        command("inspect", "--json"),
        command("verify", "--json"),
        command("recover", "--json"),
        command("list", "--json"),
        command("recover", "--salvage"),
    ]


def work(directory: Path) -> Any:
    """What a writer does."""
    with Queue(directory, clock=clock, lock_timeout=5.0) as queue:
        queue.stats()
        queue.list_jobs()
        queue.enqueue({"k": "new"})
        queue.enqueue({"k": "known"}, job_id="known")
        jobs = queue.lease(3)
        for job in jobs[:1]:
            queue.ack(job, result=1)
        for job in jobs[1:2]:
            queue.nack(job, error=ValueError("x"))
        queue.requeue_dead()
        queue.compact()
        return queue.list_jobs()


def salvaged(directory: Path) -> Any:
    """What is left of it; a salvaged queue is whole, and works."""
    report = salvage_queue(directory, "default", clock=clock)
    if report is not None:
        found = verify_queue(directory, "default")
        assert found.whole, found.findings
        work(directory)
        again = verify_queue(directory, "default")
        assert again.whole, again.findings
    return report


def exercise(directory: Path, scratch: Path) -> tuple[list[str], collections.Counter[str]]:
    """Try everything; what else than an error of the package came out, and the outcomes."""
    problems: list[str] = []
    outcomes: collections.Counter[str] = collections.Counter()
    before = {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}

    def attempt(act: Callable[[], Any]) -> None:
        try:
            act()
            outcomes["well"] += 1
        except NobrokerError as error:
            outcomes[type(error).__name__] += 1
        except BaseException:
            problems.append(traceback.format_exc())
            outcomes["problem"] += 1

    for act in look(directory):
        attempt(act)
    if {path: path.read_bytes() for path in directory.iterdir() if path.is_file()} != before:
        problems.append("looking has changed something")
    for number, changing in enumerate((work, salvaged)):
        copy = scratch / f"copy-{number}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        attempt(partial(changing, copy))
    return problems, outcomes


def run(sound: Path, scratch: Path, first: int, count: int) -> None:
    """Spoil and try, once for each seed."""
    logging.disable(logging.CRITICAL)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_BYTES, used + EXTRA_BYTES))
    outcomes: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed}), flush=True)
        signal.alarm(SECONDS)  # whose default is to end the process
        if seed < 0:  # it is spoilt as it is
            shutil.copytree(sound, scratch / "spoilt")
        else:
            spoil(sound, scratch / "spoilt", random.Random(f"fuzz {seed}"))
        problems, seen = exercise(scratch / "spoilt", scratch)
        outcomes += seen
        for problem in problems:
            print(json.dumps({"problem": problem, "seed": seed}), flush=True)
    print(json.dumps({"outcomes": outcomes}), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
