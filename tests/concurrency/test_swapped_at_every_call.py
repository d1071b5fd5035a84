"""The directory is swapped in the middle of a verb, before any of its calls: neither directory is harmed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nobroker_django import NobrokerError, Queue
from nobroker_django.engine.salvage import salvage_queue
from nobroker_django.engine.verification import verify_queue
from tests.concurrency.test_swapped import exchange
from tests.support.crashing import drawn
from tests.support.faulty import Call, Watched
from tests.support.scripts import clock
from tests.support.version1 import ODD_PAYLOADS, opened

pytestmark = [pytest.mark.contract("PROC-03", "LOG-10", "COMP-02")]


class Swapping(Watched):
    """Swaps two directories right before some of the calls, counted from ``begin`` on."""

    def __init__(self, one: Path, two: Path, at: set[int]) -> None:
        super().__init__()
        self.pair = one, two
        self.at = at
        self.count = -1
        self.swapped: list[str] = []

    def begin(self) -> None:
        self.count = 0

    def before(self, call: Call) -> Call:
        if self.count >= 0:
            if self.count in self.at:
                self.swapped.append(str(call))
                exchange(*self.pair)
            self.count += 1
        return call


Act = Callable[[Path, Swapping], None]
Fill = Callable[[Path], object]


def compacted(directory: Path, files: Swapping) -> None:
    with Queue(directory, clock=clock, files=files) as queue:
        queue.stats()
        files.begin()
        queue.compact()


def used(directory: Path, files: Swapping) -> None:
    files.begin()
    with Queue(directory, clock=clock, files=files) as queue:
        queue.stats()


def salvaged(directory: Path, files: Swapping) -> None:
    files.begin()
    salvage_queue(directory, "default", clock=clock, files=files)


def jobs(directory: Path) -> dict[str, tuple[str, str]]:
    """All that the queue there holds; a damaged one is salvaged first."""
    if not any(directory.glob("*.log")):
        return {}
    salvage_queue(directory, "default", clock=clock)
    with Queue(directory, clock=clock, fsync=False) as queue:
        found = {job.id: (str(job.state), repr(job.payload)) for job in queue.list_jobs()}
    assert verify_queue(directory, "default").whole
    return found


def ours(generations: int, *, later: int = 3) -> Fill:
    """A queue that was compacted so often, and then got more jobs or not."""

    def fill(directory: Path) -> None:
        with Queue(directory, clock=clock, fsync=False) as queue:
            queue.enqueue_many([f"{directory.name} {n}" for n in range(5)])
            for _ in range(generations):
                queue.compact()
            queue.enqueue_many([f"{directory.name} later {n}" for n in range(later)])

    return fill


def damaged(directory: Path) -> None:
    ours(2)(directory)
    with open(directory / "default.000003.log", "r+b") as log:
        log.seek(700)
        byte = log.read(1)[0]
        log.seek(700)
        log.write(bytes([byte ^ 1]))


def of_version_1(compactions: int) -> Fill:
    def fill(directory: Path) -> None:
        with opened(directory, clock) as queue:
            for number, payload in enumerate(ODD_PAYLOADS):
                queue.enqueue(payload, job_id=f"odd {number}")
            for _ in range(compactions):
                queue.compact()

    return fill


def sweep(where: Path, act: Act, here: Fill, there: Fill, *, twice: bool = False) -> None:
    """Swap before the n-th call, for every n; ``twice``: and back again before one of the next calls."""
    expected = []
    for name, fill in (("1", here), ("2", there)):
        (where / name).mkdir()
        fill(where / name)
        expected.append(jobs(Path(shutil.copytree(where / name, where / f"{name} looked at"))))
    wrong, rng = [], drawn("swapped at every call")
    first, second = where / "first", where / "second"
    for at in range(1000):
        for path, name in ((first, "1"), (second, "2")):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(where / name, path)
        files = Swapping(first, second, {at, at + rng.randrange(1, 20)} if twice else {at})
        try:
            act(first, files)
        except NobrokerError:
            pass
        if not files.swapped:
            break
        left = (first, second) if len(files.swapped) == 2 else (second, first)
        for path, before in zip(left, expected, strict=True):
            try:
                problem = None if (after := jobs(path)) == before else f"{len(after)} jobs instead of {len(before)}"
            except NobrokerError as error:
                problem = str(error)
            if problem:
                wrong.append(f"{at}: {files.swapped}: {problem}")
    assert at > 20
    assert not wrong, "\n".join([f"{len(wrong)} of {at}", *wrong])


def cases(**theirs: Fill) -> pytest.MarkDecorator:
    """Each of these queues, the first one quickly: swapped once, the others swapped twice, and all of it at length."""
    quick = {(key, twice) for number, key in enumerate(theirs) for twice in (False, True) if bool(number) == twice}
    return pytest.mark.parametrize(
        ("theirs", "twice"),
        [
            pytest.param(fill, twice, id=f"{key}-{'twice' if twice else 'once'}",
                         marks=[] if (key, twice) in quick else [pytest.mark.long])
            for key, fill in theirs.items() for twice in (False, True)
        ],
    )  # fmt: skip


@cases(same=ours(3), newer=ours(4, later=0))
def test_compacting(fast_path: Path, theirs: Fill, twice: bool):
    sweep(fast_path, compacted, ours(3), theirs, twice=twice)


@pytest.mark.long
@cases(older=ours(0), much_newer=ours(5))
def test_compacting_beside_others(fast_path: Path, theirs: Fill, twice: bool):
    sweep(fast_path, compacted, ours(3), theirs, twice=twice)


@cases(newer=ours(2), same=ours(0))
def test_creating(fast_path: Path, theirs: Fill, twice: bool):
    sweep(fast_path, used, os.listdir, theirs, twice=twice)


@cases(newer=ours(2), same=of_version_1(1))
def test_converting(fast_path: Path, theirs: Fill, twice: bool):
    sweep(fast_path, used, of_version_1(1), theirs, twice=twice)


@cases(older=ours(0), damaged=damaged)
def test_salvaging(fast_path: Path, theirs: Fill, twice: bool):
    sweep(fast_path, salvaged, damaged, theirs, twice=twice)
