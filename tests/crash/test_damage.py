"""Logs cut off at every byte, and every bit of them flipped: a torn tail is cut, acknowledged data never vanish."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nobroker_django import CorruptLogError, Job, Queue
from tests.support import bytes as raw
from tests.support.crashing import drawn
from tests.support.scripts import SCRIPTS, all_record_types, open_queue, run

ALL_TYPES = {1, 2, 3, 4, 5, 6, 7, 9, 16, 18, 25, 28}  # PURGE has a log of its own


@dataclass
class Original:
    """A queue that was closed in order: its directory, its log, and the jobs that it holds."""

    directory: Path
    log: Path
    data: bytes
    jobs: list[Job]

    def copy(self, to: Path, *, words: bool = True, run: bool = True) -> Path:
        """A copy of the directory, without the control words or the projection if told so; the log's path."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.directory, to)
        if not words:
            (to / "default.lock").unlink()
        if not run:
            shutil.rmtree(to / "default.run", ignore_errors=True)
        return to / self.log.name


def original(directory: Path) -> Original:
    with open_queue(directory) as queue:
        jobs, log = queue.list_jobs(), queue.path
    return Original(directory, log, log.read_bytes(), jobs)


@pytest.fixture
def small(fast_path: Path) -> Original:
    """A short log: one generation, few records."""
    run(fast_path / "small", SCRIPTS["brief"])
    return original(fast_path / "small")


@pytest.fixture
def large(fast_path: Path) -> Original:
    """Every record type, once before a compaction and once behind it."""
    all_record_types(fast_path / "large")
    found = original(fast_path / "large")
    assert {frame.type for frame in raw.parse(found.data)} == ALL_TYPES
    return found


def others(directory: Path) -> dict[str, bytes]:
    """Everything but the control words and the caches."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.suffix != ".lock"}


def check_cut(found: Original, to: Path, size: int, *, words: bool) -> str:
    """Open a copy whose log was cut to ``size`` bytes; what happened."""
    log = found.copy(to, words=words)
    with log.open("r+b") as file:
        file.truncate(size)
    before = others(to)
    good, certified = raw.last_boundary(found.data, size)
    if words:
        certified = len(found.data)
    queue, error = None, None
    try:
        queue = open_queue(to)
    except CorruptLogError as caught:
        error = caught
    if queue is None:
        assert good < certified, f"cut to {size}: refused, although nothing certified is missing: {error}"
        assert others(to) == before, f"cut to {size}: something was changed"
        assert error.path == str(log)
        assert error.stored is False
        return "refused"
    with queue:
        assert good >= certified, f"cut to {size}: opened, although bytes up to {certified} are certified"
        data = raw.log_bytes(log)
        assert data[:good] == found.data[:good]
        raw.parse(data)
        report = queue.recovery
        torn = found.data[good:size].rstrip(b"\0")  # zeros at the end are no data
        assert report.bytes_discarded == len(torn)
        assert report.repaired == bool(torn)
        kept = sorted(to.glob("default.torn-*"))
        assert [path.read_bytes() for path in kept] == ([torn] if torn else [])
        if report.repaired:
            assert (report.offset, report.kept_path) == (good, str(kept[0]))
        queue.list_jobs()
        assert queue.enqueue({"k": "new"}).created
    return "cut"


def cut_everywhere(found: Original, to: Path, sizes: Iterable[int], every: int = 1) -> dict[tuple[bool, str], int]:
    counts: dict[tuple[bool, str], int] = {}
    for number, size in enumerate(sizes):
        for words in (True, False) if number % every == 0 else (False,):
            key = words, check_cut(found, to, size, words=words)
            counts[key] = counts.get(key, 0) + 1
    return counts


@pytest.mark.contract("LOG-05", "LOG-07")
def test_a_small_log_cut_at_every_byte(small: Original, fast_path: Path):
    counts = cut_everywhere(small, fast_path / "copy", range(len(small.data)), every=5)
    assert counts[True, "refused"] * 5 >= len(small.data)
    assert counts[False, "refused"] > 0
    assert counts[False, "cut"] > 0


@pytest.mark.contract("LOG-05", "LOG-07")
def test_a_large_log_cut_at_some_bytes(large: Original, fast_path: Path):
    rng = drawn("cuts")
    edges = {frame.end + step for frame in raw.parse(large.data) for step in (-1, 0, 1)}
    sizes = sorted({*rng.sample(range(len(large.data)), 150), *edges} - {len(large.data), len(large.data) + 1})
    cut_everywhere(large, fast_path / "copy", sizes)


@pytest.mark.long
@pytest.mark.contract("LOG-05", "LOG-07")
def test_a_large_log_cut_at_every_byte(large: Original, fast_path: Path):
    cut_everywhere(large, fast_path / "copy", range(len(large.data)))


def shown(queue: Queue) -> list[dict[str, object]]:
    return [job.to_dict() for job in queue.list_jobs()]


def check_flip(found: Original, to: Path, at: int, bit: int) -> str:
    """Flip one bit of the log; how it was noticed."""
    wanted = [job.to_dict() for job in found.jobs]

    def flipped(*, run: bool) -> Path:
        log = found.copy(to, run=run)
        with log.open("r+b") as file:
            file.seek(at)
            file.write(bytes([found.data[at] ^ 1 << bit]))
        return log

    def unchanged(log: Path) -> None:
        data = log.read_bytes()
        assert data[:at] == found.data[:at], "bytes before the flipped one were changed"
        assert data[at + 1 : len(found.data)] == found.data[at + 1 :], "bytes behind the flipped one were changed"
        assert not list(to.glob("default.torn-*")), "something was cut"

    how = []
    log = flipped(run=True)
    try:
        with open_queue(to) as queue:
            try:
                assert shown(queue) == wanted, "a damaged job was shown, or one was dropped"
            except CorruptLogError:
                how.append("list")
            with pytest.raises(CorruptLogError):
                queue.compact()
            how.append("compact")
    except CorruptLogError:
        how.append("open")
    unchanged(log)
    log = flipped(run=False)
    try:
        with open_queue(to) as queue, pytest.raises(CorruptLogError):
            queue.stats()
        how.append("rebuild")
    except CorruptLogError:
        how.append("open")
    unchanged(log)
    return how[0]


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("share", range(4))
def test_flipped_bits_are_noticed(small: Original, fast_path: Path, share: int):
    rng = drawn(("flips", share))
    heads = [at for frame in raw.parse(small.data) for at in range(frame.start, frame.start + 9)]
    places = [*range(16), *heads, *rng.sample(range(len(small.data)), 80)]
    for at in places[share::4]:
        check_flip(small, fast_path / "copy", at, rng.randrange(8))


@pytest.mark.contract("LOG-07")
def test_flipped_bits_of_every_record_type_are_noticed(large: Original, fast_path: Path):
    rng = drawn("types")
    seen: dict[int, int] = {}
    frames = raw.parse(large.data)
    rng.shuffle(frames)
    for frame in frames:
        seen[frame.type] = seen.get(frame.type, 0) + 1
        if seen[frame.type] <= 2:
            for at in (rng.randrange(frame.start, frame.start + 9), rng.randrange(frame.start + 9, frame.end)):
                check_flip(large, fast_path / "copy", at, rng.randrange(8))


@pytest.mark.long
@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("bit", range(8))
def test_every_bit_of_a_small_log(small: Original, fast_path: Path, bit: int):
    for at in range(len(small.data)):
        check_flip(small, fast_path / "copy", at, bit)


@pytest.mark.long
@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("share", range(8))
def test_one_bit_of_every_byte_of_a_large_log(large: Original, fast_path: Path, share: int):
    rng = drawn(("large", share))
    for at in range(share, len(large.data), 8):
        check_flip(large, fast_path / "copy", at, rng.randrange(8))


@pytest.mark.long
@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("share", range(8))
def test_every_bit_of_a_large_log_without_control_words(large: Original, fast_path: Path, share: int):
    """What the records certify is refused and left alone; behind that, nothing but the last write may be cut."""
    to = fast_path / "copy"
    good, certified = raw.last_boundary(large.data, len(large.data))
    last = raw.batches(raw.parse(large.data))[-1][0]
    log = large.copy(to, words=False)
    for at in range(share, len(large.data), 8):
        for bit in range(8):
            (to / "default.lock").unlink(missing_ok=True)
            data = bytearray(large.data)
            data[at] ^= 1 << bit
            log.write_bytes(data)
            before = others(to)
            try:
                open_queue(to).close()
            except CorruptLogError:
                assert others(to) == before
            else:
                assert at >= certified
                assert log.read_bytes()[:last] == large.data[:last]
                log = large.copy(to, words=False)
    assert good == len(large.data)


@pytest.mark.contract("LOG-07")
def test_flipped_bits_without_control_words_drop_no_certified_record(small: Original, fast_path: Path):
    """The records' own ``u`` decide: what one of them certifies is refused, not cut."""
    rng, to = drawn("no words"), fast_path / "copy"
    last = raw.batches(raw.parse(small.data))[-1]
    _, certified = raw.last_boundary(small.data, len(small.data))
    for at in rng.sample(range(certified), 120):
        log = small.copy(to, words=False)
        with log.open("r+b") as file:
            file.seek(at)
            file.write(bytes([small.data[at] ^ 1 << rng.randrange(8)]))
        before = others(to)
        with pytest.raises(CorruptLogError):
            open_queue(to)
        assert others(to) == before
    assert certified <= last[1]


@pytest.mark.contract("LOG-07")
def test_damage_under_an_open_queue_is_noticed_by_whoever_reads_it(small: Original, fast_path: Path):
    """A process that has the queue open meets the damage when it reads the record."""
    to = fast_path / "copy"
    log = small.copy(to)
    victim = [frame for frame in raw.parse(small.data) if frame.type == 1][-1]
    with open_queue(to) as queue:
        queue.stats()
        with log.open("r+b") as file:
            file.seek(victim.start + 20)
            byte = file.read(1)[0]
            file.seek(victim.start + 20)
            file.write(bytes([byte ^ 4]))
        with pytest.raises(CorruptLogError) as caught:
            queue.get(str(victim.body["id"]))
        assert caught.value.offset == victim.start
        assert caught.value.stored is False
        before = log.read_bytes()
        for act in (lambda: queue.enqueue({"k": "no"}), lambda: queue.lease(1), queue.compact):
            with pytest.raises(CorruptLogError) as refused:
                act()
            assert refused.value.stored is False
        assert log.read_bytes() == before


@pytest.mark.contract("LOG-05")
@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("count", [1, 8, 9, 511, 512, 513, 4096, 8192, 1_000_000])
def test_zeros_behind_the_end_are_no_data(small: Original, fast_path: Path, count: int, words: bool):
    to = fast_path / "copy"
    log = small.copy(to, words=words)
    with log.open("ab") as file:
        file.truncate(len(small.data) + count)
    with open_queue(to) as queue:
        assert not queue.recovery.repaired
        assert [job.to_dict() for job in queue.list_jobs()] == [job.to_dict() for job in small.jobs]
        queue.enqueue({"k": "new"})
    raw.parse(log.read_bytes())
    assert not list(to.glob("default.torn-*"))


@pytest.mark.contract("LOG-10")
@pytest.mark.parametrize(
    "content", [b"", b"\n", b"x", b"-1\n", b"1.0\n", b"2\n", b"99999999\n", b"\0\0", b"1\n1\n", b"0x1\n"]
)
def test_a_pointer_of_any_other_content_is_refused(small: Original, fast_path: Path, content: bytes):
    to = fast_path / "copy"
    small.copy(to)
    (to / "default.current").write_bytes(content)
    with pytest.raises(CorruptLogError) as caught:
        open_queue(to)
    assert "default.current" in str(caught.value)
    assert (to / "default.current").read_bytes() == content
    assert (to / small.log.name).read_bytes() == small.data


@pytest.mark.contract("LOG-10")
def test_every_flipped_bit_of_the_pointer_is_refused(large: Original, fast_path: Path):
    to = fast_path / "copy"
    for at in range(2):
        for bit in range(8):
            log = large.copy(to)
            content = bytearray((to / "default.current").read_bytes())
            content[at] ^= 1 << bit
            (to / "default.current").write_bytes(content)
            with pytest.raises(CorruptLogError):
                open_queue(to)
            assert log.read_bytes() == large.data


@pytest.mark.contract("LOG-05")
def test_garbled_control_words_cut_nothing(small: Original, fast_path: Path):
    """Whatever stands in them: all jobs are there, or the queue refuses. Words are a hint."""
    rng, to, refused = drawn("words"), fast_path / "copy", 0
    for _ in range(150):
        small.copy(to)
        words = bytearray((to / "default.lock").read_bytes())
        at = rng.randrange(0, 72)
        if rng.random() < 0.5:
            words[at] ^= 1 << rng.randrange(8)
        else:
            words[at - at % 8 : at - at % 8 + 8] = rng.randbytes(8)
        (to / "default.lock").write_bytes(words)
        try:
            queue = open_queue(to)
        except CorruptLogError:
            refused += 1
            continue
        with queue:
            assert [job.to_dict() for job in queue.list_jobs()] == [job.to_dict() for job in small.jobs]
            queue.enqueue({"k": "new"})
    print(f"{refused} refused")
    assert refused < 75
