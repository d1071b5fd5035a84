"""Running a traced script, and recovering every image that a power cut may leave of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from nobroker_django import NobrokerError

from .ledger import Ledger, Script, check_recovered, reopened_shows_the_same
from .powercut import SECTOR, Disk, Killed, TraceFiles, write_image
from .scripts import clock, open_queue


@dataclass
class Findings:
    """How many different images were recovered, and which promises did not hold."""

    images: int = 0
    broken: list[str] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)  # one digest of each: what is on the disk, and what was promised

    def check(self) -> None:
        """Fail the test when something was found."""
        print(f"{self.images} images recovered")
        assert not self.broken, f"{len(self.broken)} of {self.images} images, the first: " + "\n".join(self.broken[:5])


def noting(files: TraceFiles) -> Callable[[str, Ledger], None]:
    """Puts every change of the ledger into the trace."""
    return lambda _, now: files.note("ledger", now.copy())


def traced(
    directory: Path,
    *bodies: Callable[[Script], None],
    fail_syncs: frozenset[int] = frozenset(),
    kill_at: int | None = None,
) -> TraceFiles:
    """Run the bodies one after the other, each with the queue newly opened.

    With ``kill_at`` the first one is killed there; the next opens what it left.
    """
    ledger, files, start = Ledger(), None, kill_at
    for body in bodies:
        files = TraceFiles(directory, files, fail_syncs=fail_syncs, kill_at=start)
        queue = None
        try:
            queue = open_queue(directory, files)
            jobs = queue.list_jobs()
            problems = ledger.problems(jobs)
            assert not problems, problems
            ledger.observe(jobs)
            files.note("ledger", ledger.copy())
            body(Script(queue, ledger, noting(files)))
            queue.close()
        except NobrokerError:
            if not fail_syncs:
                raise
        except Killed:
            pass
        finally:
            if queue is not None:
                queue._session.cache.drop()
            if files.dead or start is not None:
                files.bury()
        start = None
    assert files is not None
    return files


def cuts(trace: TraceFiles) -> Iterator[tuple[Disk, Ledger, bool]]:
    """The disk and the ledger after each event; whether the event changed the disk."""
    disk, ledger = Disk(), Ledger()
    for event in list(trace.trace):
        if event.kind == "ledger":
            ledger = event.arguments[0]
        changed = disk.apply(event)
        if event.kind != "found":  # which is how the trace begins
            yield disk, ledger, changed


def written_into_doubt(trace: TraceFiles) -> list[str]:
    """Writes to a log behind which the disk may still hold what was cut.

    A power cut may then leave a record of two halves, which nobody can tell from damage. Draws find that now and then;
    this finds it in every run in which it could happen.
    """
    disk, found = Disk(), []
    for number, event in enumerate(trace.trace):
        if event.kind == "write":
            file, (_, offset, data) = disk.files[event.arguments[0]], event.arguments
            is_log = offset and file.content.startswith(b"NOBROKER")  # the first record is set before a log is live
            if is_log and file.content[offset : offset + len(data)] != data:  # what is written again changes nothing
                behind = [
                    index * SECTOR
                    for index, possible in file.sectors.items()
                    if any(content[max(0, offset - index * SECTOR) :].strip(b"\0") for content in possible)
                ]
                if behind:
                    found.append(
                        f"event {number}: {len(data)} bytes are written at {offset}, and at {behind} is what?"
                    )
        disk.apply(event)
    return found


class Recoverer:
    """Recovers images in a scratch directory, each different one once."""

    def __init__(self, scratch: Path, findings: Findings) -> None:
        self.scratch = scratch
        self.findings = findings

    def is_new(self, image: dict[str, bytes], ledger: Ledger) -> bool:
        """Whether this image was not tried yet under these promises."""
        digest = blake2b(repr(ledger).encode(), digest_size=10)
        for name, content in sorted(image.items()):
            digest.update(f"{name} {len(content)} ".encode())
            digest.update(content)
        key = digest.digest()
        if key in self.findings.seen:
            return False
        self.findings.seen.add(key)
        return True

    def try_image(self, image: dict[str, bytes], ledger: Ledger, where: str, *, again: bool = False) -> None:
        """Open it with the real queue and hold it against the ledger.

        Args:
            again: also close, open and compare.
        """
        if not self.is_new(image, ledger):
            return
        self.findings.images += 1
        shutil.rmtree(self.scratch, ignore_errors=True)
        write_image(image, self.scratch)
        try:
            queue = check_recovered(self.scratch, ledger, clock=clock)
            if again:
                reopened_shows_the_same(queue, self.scratch, clock)
            else:
                queue.close()
        except (NobrokerError, AssertionError) as error:
            sizes = {name: len(content) for name, content in image.items()}
            self.findings.broken.append(f"{where}: {type(error).__name__}: {str(error)[:400]} (files: {sizes})")


def recover_draws(trace: TraceFiles, scratch: Path, rng: random.Random, draws: int, findings: Findings) -> None:
    """At every event of the trace, recover ``draws`` legal images."""
    recoverer = Recoverer(scratch, findings)
    for number, (disk, ledger, _) in enumerate(cuts(trace)):
        for _ in range(draws):
            recoverer.try_image(disk.draw(rng), ledger, f"event {number}", again=rng.random() < 0.2)


def recover_around_kills(trace: TraceFiles, scratch: Path, rng: random.Random, draws: int, findings: Findings) -> None:
    """At the events right before and after each kill, recover ``draws`` legal images."""
    kills = [number for number, event in enumerate(trace.trace) if event.kind == "killed"]
    recoverer = Recoverer(scratch, findings)
    found = sum(event.kind == "found" for event in trace.trace)  # which come first, and which ``cuts`` leaves out
    for number, (disk, ledger, _) in enumerate(cuts(trace), found):
        if any(-4 <= number - kill <= 6 for kill in kills):
            for _ in range(draws):
                recoverer.try_image(disk.draw(rng), ledger, f"event {number}", again=rng.random() < 0.2)


def recover_all(trace: TraceFiles, scratch: Path, most: int, findings: Findings) -> int:
    """At every event with at most ``most`` legal images, recover all of them; how many events had more."""
    recoverer, skipped = Recoverer(scratch, findings), 0
    for number, (disk, ledger, changed) in enumerate(cuts(trace)):
        images = disk.every(most)
        skipped += changed and not images
        for image in images:
            recoverer.try_image(image, ledger, f"event {number}")
    return skipped


def recover_recoveries(
    trace: TraceFiles, scratch: Path, rng: random.Random, first: int, second: int, findings: Findings
) -> None:
    """A power cut, and another one while the queue recovers from it: ``first`` images, ``second`` of each recovery."""
    points = list(range(len(trace.trace)))
    chosen = set(rng.sample(points, min(first, len(points))))
    recoverer = Recoverer(scratch / "second", findings)
    for number, (disk, ledger, _) in enumerate(cuts(trace)):
        if number not in chosen:
            continue
        image = disk.draw(rng)
        directory = scratch / "first"
        shutil.rmtree(directory, ignore_errors=True)
        write_image(image, directory)
        files = TraceFiles.over(directory, image)
        script_ledger = ledger.copy()
        with open_queue(directory, files) as queue:
            script_ledger.observe(queue.list_jobs())
            files.note("ledger", script_ledger.copy())
            script = Script(queue, script_ledger, noting(files))
            script.enqueue("later")
        now, disk = ledger, Disk()
        for event in files.trace:
            if event.kind == "ledger":
                now = event.arguments[0]
            disk.apply(event)
            for _ in range(second if event.kind != "found" else 0):
                recoverer.try_image(disk.draw(rng), now, f"event {number}, then {event.kind}")


def drawn(seed: Any) -> random.Random:
    """A generator with this seed, which is printed."""
    print(f"seed {seed!r}")
    return random.Random(repr(seed))
