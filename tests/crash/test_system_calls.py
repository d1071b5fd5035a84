"""Every system call refused once, and every one the last: no verb fails otherwise than it says, and the queue goes on.

The oracle: what a verb acknowledged is there; what it said is not stored is not; afterwards, without a fault, the
queue goes on without repair, in this process and in another.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nobroker_django import CorruptLogError, NobrokerError, Queue
from nobroker_django.engine import log
from tests.support.crashing import drawn
from tests.support.faulty import ALL, READING, WRITING, Call, Dying, Failing, FullDisk
from tests.support.ledger import Ledger, Script, check_recovered, reopened_shows_the_same
from tests.support.scripts import SCRIPTS, clock, open_queue

Body = Callable[[Script], None]


def guarded(act: Callable[[], object]) -> None:
    """Only the engine's own errors may leave a verb."""
    try:
        act()
    except CorruptLogError as error:
        raise AssertionError(f"a fault that passed was taken for damage: {error}") from error
    except NobrokerError:
        pass


def sweep_one(
    directory: Path, body: Body, at: int, error: int, kinds: frozenset[str], *, short: bool, times: int
) -> Call:
    """Refuse one call of the script, from opening to closing; the call, ``None`` when the script has fewer."""
    shutil.rmtree(directory, ignore_errors=True)
    files, ledger = Failing(), Ledger()
    files.arm(at, error, kinds=kinds, short=short, times=times)
    queues: list[Queue] = []

    guarded(lambda: queues.append(open_queue(directory, files, lock_timeout=2.0)))
    if queues:
        script = Script(queues[0], ledger)
        body(script)
        corrupt = [failure for failure in script.failures if isinstance(failure, CorruptLogError)]
        assert not corrupt, f"{files.hit}: a fault that passed was taken for damage: {corrupt}"
        files.disarm()
        hit = files.hit
        # the same process goes on at once, and so does another
        before = len(script.failures)
        script.enqueue("after")
        script.lease(1)
        assert len(script.failures) == before, f"{files.hit}: {script.failures[-1]}"
        with open_queue(directory) as other:
            problems = ledger.problems(other.list_jobs())
            assert not problems, f"{files.hit}: {problems}; {script.failures}"
        if at % 3 == 0:  # closing is a verb too
            files.arm(0, error, kinds=kinds)
            guarded(queues[0].close)
            files.disarm()
        queues[0].close()
    else:
        hit = files.hit
    files.disarm()
    try:
        reopened_shows_the_same(check_recovered(directory, ledger, clock=clock), directory, clock)
    except NobrokerError as failure:
        raise AssertionError(f"{hit}: {failure}") from failure
    assert not list(directory.glob("*.tmp")), f"{hit}: left {list(directory.glob('*.tmp'))}"
    return hit


def sweep(
    directory: Path,
    body: Body,
    error: int,
    kinds: frozenset[str],
    *,
    step: int = 1,
    start: int = 0,
    short: bool = False,
    times: int = 1,
) -> int:
    """Refuse the n-th call for n = start, start + step, ... until the script has no more; how many were refused."""
    count, at = 0, start
    while sweep_one(directory, body, at, error, kinds, short=short, times=times) is not None:
        count += 1
        at += step
    return count


@pytest.mark.contract("API-03", "ENQ-08", "LOG-06")
@pytest.mark.parametrize("share", range(4))
def test_any_call_refused_once(fast_path: Path, share: int):
    count = sweep(fast_path / "queue", SCRIPTS["brief"], errno.EIO, ALL, step=4, start=share)
    assert count > 40


@pytest.mark.contract("API-03", "ENQ-08", "LOG-06", "COMP-02")
def test_some_call_refused_once_around_a_compaction(fast_path: Path):
    body = SCRIPTS["compaction"]
    assert sweep(fast_path / "queue", body, errno.EIO, WRITING, step=5) > 10
    assert sweep(fast_path / "queue", body, errno.EIO, READING, step=29) > 10


@pytest.mark.contract("API-03", "ENQ-08", "LOG-06")
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_no_space_at_any_write(fast_path: Path, short: bool, times: int):
    count = sweep(fast_path / "queue", SCRIPTS["brief"], errno.ENOSPC, ALL, step=2, short=short, times=times)
    assert count > 10


@pytest.mark.contract("API-03")
def test_interrupted_calls(fast_path: Path):
    assert sweep(fast_path / "queue", SCRIPTS["brief"], errno.EINTR, WRITING, step=4) > 5


@pytest.mark.long
@pytest.mark.contract("API-03", "ENQ-08", "LOG-06", "COMP-02")
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EINTR, errno.EDQUOT])
def test_every_call_of_every_script_refused(fast_path: Path, name: str, error: int):
    for short, times in ((False, 1), (True, 1), (False, 4)):
        sweep(fast_path / "queue", SCRIPTS[name], error, ALL, short=short, times=times)


def killed_at(directory: Path, body: Body, at: int, *, half: bool = False) -> bool:
    """Run the script in a child that ends at its ``at``-th call; whether it got there. What it reported is checked."""
    shutil.rmtree(directory, ignore_errors=True)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            ledger = Ledger()

            def note(_: str, now: Ledger) -> None:
                text = repr((now.certain, now.maybe, now.order, now.tokens)).encode() + b"\n"
                os.write(write, text)

            with open_queue(directory, Dying(at, half=half)) as queue:
                body(Script(queue, ledger, note))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        lines = pipe.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ledger = Ledger()
    if lines:
        ledger.certain, ledger.maybe, ledger.order, ledger.tokens = eval(lines[-1])
    queue = check_recovered(directory, ledger, clock=clock)
    assert not list(directory.glob("*.compact.*.tmp")) or queue.compact()
    assert not list(directory.glob("*.compact.*.tmp"))
    reopened_shows_the_same(queue, directory, clock)
    return code == Dying.EXIT_CODE


@pytest.mark.contract("LOG-05", "LOG-06", "COMP-02", "ENQ-05")
@pytest.mark.parametrize(("name", "step"), [("brief", 3), ("compaction", 13), ("purge", 7)])
@pytest.mark.parametrize("half", [False, True])
def test_killed_at_a_call(fast_path: Path, name: str, step: int, half: bool):
    at = drawn((name, half)).randrange(step)
    while killed_at(fast_path / "queue", SCRIPTS[name], at, half=half):
        at += step
    assert at > 20 * step


@pytest.mark.long
@pytest.mark.contract("LOG-05", "LOG-06", "COMP-02", "ENQ-05")
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("half", [False, True])
def test_killed_at_every_call(fast_path: Path, name: str, half: bool):
    at = 0
    while killed_at(fast_path / "queue", SCRIPTS[name], at, half=half):
        at += 1


@pytest.mark.contract("ENQ-08", "COMP-04", "LOG-06")
@pytest.mark.parametrize("room", range(0, 3000, 150))
@pytest.mark.parametrize("ahead", ["none to speak of", "for all that comes"])
def test_a_disk_that_fills_up_and_gets_space_again(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, ahead: str
):
    """``ahead``: how much of the disk the log had taken before it was full."""
    if ahead == "none to speak of":
        monkeypatch.setattr(log, "LEAST_ROOM_BYTES", 1)
        monkeypatch.setattr(log, "MOST_ROOM_BYTES", 1)
    directory, ledger = fast_path / "queue", Ledger()
    with open_queue(directory) as queue:
        queue.enqueue({"k": "first"})
        ledger.end({"first": ("ready", 0)})
    files = FullDisk(1 << 30)
    queue = open_queue(directory, files, lock_timeout=2.0)
    files.room = room
    script = Script(queue, ledger)
    SCRIPTS["compaction"](script)
    assert all(failure.stored is False for failure in script.failures), script.failures
    with open_queue(directory) as other:
        problems = ledger.problems(other.list_jobs())
        assert not problems, problems
    files.room = 1 << 30
    before = len(script.failures)
    script.enqueue("after")
    script.compact()
    script.enqueue("later")
    assert len(script.failures) == before
    assert script.failures or room >= 2000
    queue.close()
    reopened_shows_the_same(check_recovered(directory, ledger, clock=clock), directory, clock)
    assert len(list(directory.glob("default.*.log"))) == 1
    assert not list(directory.glob("*.tmp"))
