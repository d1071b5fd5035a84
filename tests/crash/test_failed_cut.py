"""A torn tail is cut, and the sync that was to bring the cut fails: what was cut may still be on the disk.

The zeros in its place look right to everybody, and no later sync brings them, for the kernel takes them for written.
What is written there next must not stand beside the remains, let alone become one record with them.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from nobroker_django import CorruptLogError, NobrokerError
from nobroker_django.engine.log import LEAST_ROOM_BYTES, Log
from tests.support import bytes as raw
from tests.support.crashing import Findings, Recoverer, cuts, noting, written_into_doubt
from tests.support.faulty import Recorder
from tests.support.ledger import Ledger, Script
from tests.support.powercut import SECTOR, Killed, TraceFiles
from tests.support.scripts import open_queue

pytestmark = [pytest.mark.contract("LOG-05", "LOG-06", "LOG-09", "ENQ-01")]


class Story:
    """Processes that come one after the other, each with its faults; what was promised, and the trace."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = Ledger()
        self.files = TraceFiles(directory)
        self.errors: list[NobrokerError] = []
        self.process("first")

    def process(
        self, *keys: str, write: int | None = None, sync: int | None = None, kill_at: int | None = None
    ) -> bool:
        """One that opens the queue, stores the jobs in one write, and closes; whether it was not killed.

        Args:
            write: the number of its write to the log that fails, half done.
            sync: the number of its sync of the log that fails.
            kill_at: the number of the change before which, or in which, it is killed.
        """
        fails = {"fail_writes": {write} - {None}, "fail_syncs": {sync} - {None}}
        self.files = files = TraceFiles(self.directory, self.files, kill_at=kill_at, **fails)  # type: ignore[arg-type]
        queue = None
        try:
            queue = open_queue(self.directory, files)
            Script(queue, self.ledger, noting(files)).enqueue(*keys)
            queue.close()
        except NobrokerError as error:
            self.errors.append(error)
        except Killed:
            self.ledger.unknown([key for key in keys if key in self.ledger.certain])
            return False
        finally:
            if queue is not None:
                queue._session.cache.drop()
            files.bury()
        return True

    def end(self) -> list[str]:
        """What a power cut could have made of it, or has."""
        self.process("last")
        with open_queue(self.directory) as queue:
            found = [*written_into_doubt(self.files), *self.ledger.problems(queue.list_jobs())]
        return found + [str(error) for error in self.errors if isinstance(error, CorruptLogError)]


def refused_writes(directory: Path, keys: tuple[str, ...]) -> Iterator[Story]:
    """A write is refused in its middle, and a sync fails; then the same happens to whoever comes next."""
    numbers = count()
    for write in range(4):
        for sync in range(5):
            for next_write, next_sync in ((None, None), (None, 0), (0, None), (1, None), (1, 0), (1, 1)):
                story = Story(directory / str(next(numbers)))
                story.process(*keys, write=write, sync=sync)
                story.process("next", write=next_write, sync=next_sync)
                yield story


def killed_writers(directory: Path, keys: tuple[str, ...]) -> Iterator[Story]:
    """The same, of a process that is killed at one of its changes; the sync of whoever comes next fails."""
    for kill_at in count():
        for sync in (0, 1):
            story = Story(directory / f"{kill_at}-{sync}")
            ended = story.process(*keys, write=2, kill_at=kill_at)
            story.process("next", sync=sync)
            yield story
        if ended:
            return


def recover_halves(story: Story, scratch: Path, findings: Findings) -> None:
    """After each write to the log, a power cut that leaves its first sector, and behind that what was there first."""
    recoverer = Recoverer(scratch, findings)
    for (disk, ledger, _), event in zip(cuts(story.files), story.files.trace, strict=True):
        if event.kind == "write" and disk.files[event.arguments[0]].content.startswith(b"NOBROKER"):
            number, offset, _ = event.arguments
            files = disk.newest_names()
            image = {Path(path).name: bytes(disk.files[other].content) for path, other in files.items()}
            log = next(Path(path).name for path, other in files.items() if other == number)
            image[log] = disk.files[number].image(
                len(disk.files[number].content),
                {
                    index: next((at for at, content in enumerate(possible) if content.strip(b"\0")), 0)
                    for index, possible in disk.files[number].sectors.items()
                    if index > offset // SECTOR
                },
            )
            recoverer.try_image(image, ledger, f"{offset} in {log}")


Stories = Callable[[Path, tuple[str, ...]], Iterator[Story]]


@pytest.mark.parametrize("stories", [refused_writes, killed_writers])
@pytest.mark.parametrize("jobs", [1, 4, 40])  # in one sector; in several; in several blocks
def test_nothing_is_written_where_the_disk_may_hold_what_was_cut(fast_path: Path, stories: Stories, jobs: int):
    tried, findings = 0, Findings()
    for tried, story in enumerate(stories(fast_path, tuple(f"lost{number}" for number in range(jobs))), 1):
        assert story.end() == []
        if tried % 5 == 0:
            recover_halves(story, fast_path / "scratch", findings)
    findings.check()
    assert tried > 40
    assert findings.images > 50


@pytest.mark.parametrize("poisoned", [False, True])
def test_securing_writes_zeros_to_the_end_of_the_block_before_anything_else(fast_path: Path, poisoned: bool):
    with open_queue(fast_path) as queue:
        queue.enqueue({"k": "first"})
    if poisoned:
        with (fast_path / "default.lock").open("r+b") as words:
            words.seek(48)
            words.write(b"\1")
    log, recorder = fast_path / "default.000001.log", Recorder()
    end = raw.log_end(log)
    with open_queue(fast_path, recorder):
        pass
    changes = [call for call in recorder.calls if call.path == str(log) and call.kind in ("pwrite", "datasync")]
    block = log.stat().st_blksize
    assert changes[0].arguments == (bytes(block - end), end)
    assert changes[1].kind == "datasync"
    assert changes[2].arguments[1] == end


@pytest.mark.parametrize("block", [512, 4096, 1 << 21, 0])
@pytest.mark.parametrize("over", [0, 1, 511])
def test_zeros_are_written_up_to_the_end_of_a_block(fast_path: Path, block: int, over: int):
    class Blocks(Recorder):
        def block_bytes(self, fd: int) -> int:
            return block

    with open_queue(fast_path) as queue:
        queue.enqueue({"k": "first", "text": "x" * 5000})
        path = queue.path
    data, files = path.read_bytes(), Blocks()
    path.write_bytes(data + b"x" * (-len(data) % 512 + over))
    end, size = path.stat().st_size, min(block or LEAST_ROOM_BYTES, LEAST_ROOM_BYTES)
    log = Log(files, path, 1)
    log.blank(end)
    log.release()
    written = [call.arguments for call in files.calls if call.kind == "pwrite"]
    assert written == ([(bytes(-end % size), end)] if end % size else [])
    assert path.read_bytes()[end:].strip(b"\0") == b""
