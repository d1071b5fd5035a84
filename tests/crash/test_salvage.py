"""Salvaging a damaged log: whatever is intact is kept, nothing is made up, and a crash at any step changes nothing."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from nobroker_django import CorruptLogError, LockTimeoutError, NobrokerError, Queue, StorageError
from nobroker_django.engine.generations import write_pointer
from nobroker_django.engine.new_log import NewLog
from nobroker_django.engine.rescue import SalvageReport
from nobroker_django.engine.salvage import assess_salvage, salvage_queue
from nobroker_django.engine.verification import verify_queue
from tests.support.crashing import cuts, drawn
from tests.support.faulty import ALL, LOCKING, READING, Dying, Failing, Watched
from tests.support.powercut import TraceFiles, write_image
from tests.support.scripts import clock, open_queue
from tests.support.wreck import ACK, ENQUEUE, LEASE, Wreck, check_salvaged, everything

pytestmark = pytest.mark.contract("LOG-07")


@pytest.fixture
def sound(fast_path: Path) -> Path:
    everything(fast_path / "sound")
    return fast_path / "sound"


@pytest.fixture
def wreck(sound: Path, fast_path: Path) -> Wreck:
    return Wreck.of(sound, fast_path / "wreck")


def salvage(directory: Path, **options) -> SalvageReport:
    report = salvage_queue(directory, "default", clock=clock, **options)
    assert report is not None
    return report


def first(wreck: Wreck, kind: int, **fields) -> int:
    """The number of the first frame of a type that is no copy."""
    return next(
        number for number, one in enumerate(wreck.frames)
        if one.type == kind and "seq" not in one.body and all(one.body.get(name) == fields[name] for name in fields)
    )  # fmt: skip


def strike(wreck: Wreck, *numbers: int) -> None:
    """Flip a bit near the end of these frames."""
    for number in numbers:
        at = wreck.frames[number].end - 4
        wreck.damage(at, bytes([wreck.data[at] ^ 4]))


# -- what is kept and what is said


def test_a_damaged_log_is_refused_and_salvaged_and_whole_again(wreck: Wreck):
    strike(wreck, first(wreck, ENQUEUE))
    with pytest.raises(CorruptLogError, match="recover --salvage"), open_queue(wreck.directory) as queue:
        queue.compact()
    report = salvage(wreck.directory)
    check_salvaged(wreck, report)
    assert report.new_generation == report.generation + 1
    assert salvage_queue(wreck.directory, "default") is None


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_damaged_everything_else_is_kept(wreck: Wreck, seed: int):
    wreck.damage_randomly(drawn(f"wreck {seed}"))
    check_salvaged(wreck, salvage(wreck.directory))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000))
def test_many_damages(wreck: Wreck, seed: int):
    wreck.damage_randomly(drawn(f"many wrecks {seed}"))
    check_salvaged(wreck, salvage(wreck.directory))


@pytest.mark.parametrize("words", [True, False])
def test_each_single_record_damaged(sound: Path, fast_path: Path, words: bool):
    count = len(Wreck.of(sound, fast_path / "wreck").frames)
    for number in range(0, count, 1 if words else 5):
        wreck = Wreck.of(sound, fast_path / "wreck")
        strike(wreck, number)
        if not words:
            (wreck.directory / "default.lock").unlink()
            if assess_or_none(wreck.directory) is None:
                continue  # without the words a damaged last write may be a torn tail
        check_salvaged(wreck, salvage(wreck.directory))


def assess_or_none(directory: Path) -> SalvageReport | None:
    return assess_salvage(directory, "default")


@pytest.mark.parametrize("at", [0, 10, 14])
def test_a_damaged_header_loses_nothing(wreck: Wreck, at: int):
    wreck.damage(at, bytes([wreck.data[at] ^ 1]))
    report = salvage(wreck.directory)
    assert [(one.start, one.stop) for one in report.damage] == [(0, 16)]
    check_salvaged(wreck, report)


def test_a_header_of_a_version_that_is_not_known_is_not_salvaged(wreck: Wreck):
    wreck.damage(8, b"\x63")
    with pytest.raises(CorruptLogError, match="log format version 99"):
        salvage_queue(wreck.directory, "default")
    assert wreck.log.read_bytes()[8] == 0x63


def test_a_record_of_a_newer_release_is_not_thrown_away(wreck: Wreck):
    from tests.contract.helpers import frame

    strike(wreck, first(wreck, LEASE))
    with wreck.log.open("ab") as file:
        file.write(frame(21, {"id": "x", "n": 1, "u": 0}) + frame(16, {"at": 1.0, "n": 1, "u": 0}))
    before = sorted(path.name for path in wreck.directory.iterdir())
    with pytest.raises(CorruptLogError, match="with the release that wrote it"):
        salvage_queue(wreck.directory, "default")
    assert sorted(path.name for path in wreck.directory.iterdir()) == before


def test_a_log_of_which_nothing_is_left_makes_no_empty_queue(wreck: Wreck):
    wreck.damage(16, bytes(len(wreck.data) - 16))
    with pytest.raises(CorruptLogError, match="not one record of it is intact"):
        salvage_queue(wreck.directory, "default")
    assert not list(wreck.directory.glob("default.damaged-*"))
    assert (wreck.directory / "default.current").read_text() == "2\n"


def test_a_log_that_was_cut_is_salvaged_up_to_there(wreck: Wreck):
    cut = wreck.frames[-3]
    with wreck.log.open("r+b") as file:
        file.truncate(cut.start + 5)
    report = salvage(wreck.directory)
    assert (report.damage[-1].start, report.damage[-1].stop) == (cut.start + 5, len(wreck.data))
    assert verify_queue(wreck.directory, "default").whole
    with open_queue(wreck.directory) as queue:
        assert {job.id for job in queue.list_jobs()} == set(wreck.jobs)


def test_of_an_acknowledged_write_that_is_cut_what_is_there_is_kept(fast_path: Path):
    with open_queue(fast_path / "sound") as queue:
        queue.enqueue_many([{"k": number} for number in range(6)], job_ids=[f"job-{number}" for number in range(6)])
    wreck = Wreck.of(fast_path / "sound", fast_path / "wreck")
    with wreck.log.open("r+b") as file:
        file.truncate([one for one in wreck.frames if one.type == ENQUEUE][4].start + 5)
    report = salvage(wreck.directory)
    assert (report.torn_bytes, report.jobs["ready"]) == (0, 4)


def test_of_copies_that_are_cut_what_is_there_is_kept_also_without_words(fast_path: Path):
    """All of them were durable before the pointer named their log."""
    with open_queue(fast_path / "sound") as queue:
        queue.enqueue_many([{"k": number} for number in range(6)])
        queue.compact()
    wreck = Wreck.of(fast_path / "sound", fast_path / "wreck")
    third = [number for number, one in enumerate(wreck.frames) if "seq" in one.body][3]
    with wreck.log.open("r+b") as file:
        file.truncate(wreck.frames[third].start)
    (wreck.directory / "default.lock").unlink()
    report = salvage(wreck.directory)
    assert report.jobs["ready"] == 3
    assert "of 6 copied records 3 are there" in report.damage[-1].reason


def test_tokens_and_order_rise_although_nobody_knows_any_more_where_they_were(wreck: Wreck):
    """The first record, which says so, is among the damage, again and again."""
    for turn in range(3):
        again = Wreck.of(wreck.directory, wreck.directory.with_name(f"turn {turn}"))
        strike(again, 0)
        check_salvaged(again, salvage(again.directory))
        wreck = again


def test_a_torn_tail_behind_the_damage_is_left_out_as_ever(wreck: Wreck):
    from tests.contract.helpers import frame

    strike(wreck, first(wreck, LEASE))
    job = {"payload": 1, "enqueued_at": 1.0, "max_attempts": 3}
    begun = frame(ENQUEUE, {"id": "one", **job, "n": 2, "u": 0}) + frame(ENQUEUE, {"id": "two", **job})
    with wreck.log.open("ab") as file:
        file.write(begun[:-3])
    report = salvage(wreck.directory)
    assert report.torn_bytes == len(begun) - 3
    with open_queue(wreck.directory) as queue:
        assert {job.id for job in queue.list_jobs()} == set(wreck.jobs)


def test_a_finished_job_whose_lease_is_gone_stays_finished_with_its_result(wreck: Wreck):
    acked = [str(one.body["id"]) for one in wreck.frames if one.type == ACK and "result" in one.body]
    job_id = next(one for one in reversed(acked) if len(wreck.of_job(one)) == 3)
    strike(wreck, *[number for number in wreck.of_job(job_id) if wreck.frames[number].type == LEASE])
    report = salvage(wreck.directory)
    assert [(one.job_id, one.what) for one in report.changed] == [(job_id, "ACK of a delivery that is not recorded")]
    with open_queue(wreck.directory) as queue:
        job = queue.get(job_id)
    assert (job.state.value, job.result, job.attempts) == ("done", wreck.jobs[job_id]["result"], 1)


def test_a_copied_job_whose_end_is_gone_is_not_revived(fast_path: Path):
    """A compaction copies a finished job as leased, with its ACK behind it."""
    with open_queue(fast_path / "sound", retention=1e6) as queue:
        queue.enqueue({"k": "done"}, job_id="done")
        queue.enqueue({"k": "waits"}, job_id="waits")
        queue.ack(queue.lease_one(), result=7)
        queue.compact()
    wreck = Wreck.of(fast_path / "sound", fast_path / "wreck")
    strike(wreck, next(number for number, one in enumerate(wreck.frames) if one.type == ACK))
    report = salvage(wreck.directory)
    assert [one.job_id for one in report.changed] == ["done"]
    assert report.jobs["done"] == 1
    with open_queue(wreck.directory) as queue:
        assert queue.get("done").state.value == "done"
        assert not queue.enqueue({"k": "done"}, job_id="done").created
        assert [job.id for job in queue.lease(5)] == ["waits"]


def test_jobs_that_the_damage_may_concern_are_counted_and_named_in_the_report(wreck: Wreck):
    number = first(wreck, LEASE)
    strike(wreck, number)
    report = salvage(wreck.directory)
    assert report.report_path is not None
    lines = [json.loads(line) for line in report.report_path.read_text().splitlines()]
    assert lines[0]["kind"] == "salvage"
    named = [line["job"] for line in lines if line["kind"] == "undecided"]
    assert len(named) == report.undecided == lines[0]["undecided"]
    struck = wreck.frames[number]
    behind = {str(one.body.get("id")) for one in wreck.frames if one.start > struck.start}
    unfinished = {job_id for job_id, job in wreck.jobs.items() if job["state"] != "done"}
    assert set(named) == {job_id for job_id in unfinished if job_id not in behind}
    assert any(str(struck.body["id"]) in line["names"] for line in lines if line["kind"] == "damage")


def test_version_1_is_salvaged_and_converted_at_once(fast_path: Path):
    pytest.importorskip("nobroker")
    from tests.support import version1

    directory, time = fast_path / "old", [1_700_000_000.0]
    with version1.opened(directory, lambda: time[0]) as old:
        for number in range(20):
            old.enqueue({"n": number}, job_id=f"job-{number}")
        for job in old.lease(5):
            old.ack(job)
        old.nack(old.lease_one(), error="went wrong", delay=0)
    log = directory / "default.000000.log"
    data = bytearray(log.read_bytes())
    bounds = version1.boundaries(bytes(data))
    data[bounds[10] + 20] ^= 1  # the ENQUEUE of job 10
    data[bounds[1] + 20] ^= 1  # that of job 1, which is finished
    data[bounds[20] + 12] ^= 1  # the LEASE of job 0
    log.write_bytes(data)
    with pytest.raises(CorruptLogError):
        open_queue(directory)
    report = salvage(directory)
    assert log.read_bytes() == data
    assert report.kept_path is not None
    assert report.kept_path.read_bytes() == data
    assert [(one.job_id, one.kind) for one in report.lost] == [("job-1", "ACK")]
    with open_queue(directory) as queue:
        jobs = {job.id: job for job in queue.list_jobs()}
        assert set(jobs) == {f"job-{number}" for number in range(20)} - {"job-1", "job-10"}
        done = {job_id for job_id, job in jobs.items() if job.state.value == "done"}
        assert done == {"job-0", "job-2", "job-3", "job-4"}
        assert (jobs["job-5"].attempts, jobs["job-5"].last_error) == (1, "went wrong")
        assert queue.path.name == "default.000001.log"
        queue.compact()
        assert not queue.enqueue({"n": 0}, job_id="job-0").created  # version 1 knew finished jobs for ever
    assert verify_queue(directory, "default").whole


@pytest.mark.contract("LOG-03")
def test_version_1_killed_at_every_call(fast_path: Path):
    pytest.importorskip("nobroker")
    from tests.support import version1

    damaged, directory = fast_path / "old", fast_path / "victim"
    with version1.opened(damaged, clock) as old:
        for number in range(4):
            old.enqueue({"n": number}, job_id=f"job-{number}")
    log = damaged / "default.000000.log"
    data = bytearray(log.read_bytes())
    data[version1.boundaries(bytes(data))[1] + 20] ^= 1
    log.write_bytes(data)
    for at in range(1000):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(damaged, directory)
        code = killed(directory, Dying(at, kinds=ALL - READING))
        salvage_queue(directory, "default", clock=clock)
        assert (directory / log.name).read_bytes() == data
        assert [job["id"] for job in outcome(directory)] == ["job-0", "job-2", "job-3"], at
        assert verify_queue(directory, "default").whole
        if code == 0:
            break
    assert at > 20


def test_order_and_counts_go_on_where_they_were(wreck: Wreck):
    """Also for a clock that is behind, and where the first record, which holds the counters, is among the damage."""
    with open_queue(wreck.directory) as queue:
        total = queue.stats().enqueued_total
        for job in queue.lease(100):
            queue.nack(job, delay=0)
    again = Wreck.of(wreck.directory, wreck.directory.with_name("again"))
    strike(again, 0, first(again, LEASE))
    salvage(again.directory)
    with open_queue(again.directory, clock=lambda: clock() - 1000) as queue:
        stats = queue.stats()
        assert stats.total <= stats.enqueued_total <= total + 1
        new = queue.enqueue({"k": "new"})
        order = [job.id for job in queue.lease(100) if job.priority == 0]
    assert order[-1] == new.id
    assert len(order) > 3


# -- who may be there, and what is never touched


def test_while_somebody_has_the_queue_open_it_is_refused_and_nothing_changes(wreck: Wreck):
    with open_queue(wreck.directory):
        strike(wreck, first(wreck, LEASE))
        before = raw_state(wreck.directory)
        with pytest.raises(LockTimeoutError, match="Stop the workers"):
            salvage_queue(wreck.directory, "default", lock_timeout=0.05)
        assert raw_state(wreck.directory) == before


def test_a_lock_file_that_is_replaced_in_that_moment_locks_nobody_out_and_is_refused(wreck: Wreck):
    class Replaced(Watched):
        def before(self, call):
            if call.kind == "flock":
                lock = wreck.directory / "default.lock"
                lock.unlink()
                lock.touch()
            return call

    strike(wreck, first(wreck, LEASE))
    with pytest.raises(StorageError, match="somebody has just replaced the file"):
        salvage_queue(wreck.directory, "default", files=Replaced())
    assert (wreck.directory / "default.current").read_text() == "2\n"


def test_nobody_can_open_the_queue_in_the_middle_of_it(wreck: Wreck):
    strike(wreck, first(wreck, LEASE))
    refused = []

    class Visited(Watched):
        def after(self, call, result):
            if call.kind in ("rename", "link", "sync_directory"):
                with pytest.raises((LockTimeoutError, CorruptLogError)) as caught:
                    Queue(wreck.directory, lock_timeout=0.02)
                refused.append(caught.type)

    salvage(wreck.directory, files=Visited())
    assert refused.count(LockTimeoutError) == len(refused) > 4
    assert verify_queue(wreck.directory, "default").whole


def test_a_queue_that_is_whole_or_torn_is_left_alone(wreck: Wreck):
    before = raw_state(wreck.directory)
    assert salvage_queue(wreck.directory, "default") is None
    assert assess_salvage(wreck.directory, "default") is None
    with wreck.log.open("ab") as file:
        file.write(wreck.data[16:60])
    assert salvage_queue(wreck.directory, "default") is None
    before[wreck.log.name] += wreck.data[16:60]
    assert raw_state(wreck.directory) == before


def test_assessing_changes_nothing_and_says_the_same(wreck: Wreck):
    strike(wreck, first(wreck, LEASE), first(wreck, ENQUEUE))
    before = raw_state(wreck.directory)
    plan = assess_salvage(wreck.directory, "default")
    assert plan is not None
    assert raw_state(wreck.directory) == before
    done = salvage(wreck.directory)
    for name in ("damage", "records", "jobs", "lost", "changed", "undecided", "torn_bytes"):
        assert getattr(plan, name) == getattr(done, name), name


def test_a_damaged_pointer_is_not_for_salvage(wreck: Wreck):
    (wreck.directory / "default.current").write_bytes(b"x")
    for act in (assess_salvage, salvage_queue):
        with pytest.raises(CorruptLogError, match="should hold the number of the live log"):
            act(wreck.directory, "default")


def test_the_kept_log_outlives_the_next_compactions(wreck: Wreck):
    strike(wreck, first(wreck, LEASE))
    damaged = wreck.log.read_bytes()
    report = salvage(wreck.directory)
    with open_queue(wreck.directory) as queue:
        queue.compact()
        queue.compact()
    assert not wreck.log.exists()
    assert report.kept_path is not None
    assert report.kept_path.read_bytes() == damaged


def test_a_system_without_links_gets_a_copy(wreck: Wreck):
    class WithoutLinks(Watched):
        def link(self, source, target):
            raise OSError(errno.EOPNOTSUPP, "no links here")

    strike(wreck, first(wreck, LEASE))
    check_salvaged(wreck, salvage(wreck.directory, files=WithoutLinks()))


@pytest.mark.contract("PROC-04")
def test_the_new_files_have_the_mode_of_the_old_ones(wreck: Wreck):
    strike(wreck, first(wreck, LEASE))
    wreck.log.chmod(0o640)
    report = salvage(wreck.directory)
    for path in (wreck.directory / "default.000003.log", report.report_path, wreck.directory / "default.current"):
        assert path is not None
        assert path.stat().st_mode & 0o777 == 0o640, path


# -- a crash at every step


def raw_state(directory: Path) -> dict[str, bytes]:
    """What is in the directory, without caches and control words."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.suffix != ".lock"}


def killed(directory: Path, files: Dying) -> int:
    """Salvage in a process that ends before a certain call; 0: it had come to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            salvage_queue(directory, "default", clock=clock, files=files)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def outcome(directory: Path) -> list[dict[str, object]]:
    with open_queue(directory) as queue:
        return [job.to_dict() for job in queue.list_jobs()]


def check_all_or_nothing(directory: Path, damaged: bytes, expected: list[dict[str, object]], where: str) -> str:
    """The damaged queue as it was, or the new one complete; either way salvaging (again) ends well."""
    log = directory / "default.000002.log"
    assert log.read_bytes() == damaged, where
    pointer = (directory / "default.current").read_text()
    what = "new" if pointer != "2\n" else "old"
    if what == "old":
        assert assess_salvage(directory, "default") is not None, where
        report = salvage(directory)
        assert report.kept_path is not None
        assert report.kept_path.read_bytes() == damaged
    else:
        assert salvage_queue(directory, "default") is None, where
    kept = [path.read_bytes() for path in directory.glob("default.damaged-*")]
    assert set(kept) == {damaged}, where
    if "power cut" not in where:  # whose images know no links
        assert len(kept) == 1, where
    [written] = directory.glob("default.salvage-*.jsonl")
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert [lines[0][name] for name in ("kind", "generation", "new_generation")] == ["salvage", 2, 3], where
    assert sum(line["kind"] == "undecided" for line in lines) == lines[0]["undecided"], where
    assert outcome(directory) == expected, where
    with open_queue(directory) as queue:
        queue.compact()
    assert not list(directory.glob("*.tmp")), where
    assert len(list(directory.glob("*.log"))) == 1, where
    assert verify_queue(directory, "default").whole, where
    return what


@pytest.fixture
def struck(wreck: Wreck, fast_path: Path) -> tuple[Path, bytes, list[dict[str, object]]]:
    """A damaged directory, its log, and the jobs of the salvaged queue."""
    return strike_and_salvage(wreck, fast_path / "once")


def strike_and_salvage(wreck: Wreck, once: Path) -> tuple[Path, bytes, list[dict[str, object]]]:
    strike(wreck, first(wreck, LEASE), first(wreck, ENQUEUE))
    shutil.copytree(wreck.directory, once)
    salvage(once)
    return wreck.directory, wreck.log.read_bytes(), outcome(once)


@pytest.fixture
def small(fast_path: Path) -> tuple[Path, bytes, list[dict[str, object]]]:
    """As ``struck``, of a queue with few jobs."""
    with open_queue(fast_path / "sound") as queue:
        queue.compact()
        queue.enqueue_many([{"k": number} for number in range(4)])
        queue.ack(queue.lease_one())
    return strike_and_salvage(Wreck.of(fast_path / "sound", fast_path / "wreck"), fast_path / "once")


@pytest.mark.contract("LOG-07", "COMP-02")
@pytest.mark.parametrize("half", [False, True])
def test_killed_at_every_call(struck, fast_path: Path, half: bool):
    damaged, data, expected = struck
    directory = fast_path / "victim"
    seen = []
    for at in range(1000):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(damaged, directory)
        code = killed(directory, Dying(at, half=half, kinds=ALL - READING))
        seen.append(check_all_or_nothing(directory, data, expected, f"killed at call {at}"))
        if code == 0:
            break
    assert at > 20
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {"old", "new"}


@pytest.mark.contract("LOG-07", "API-03")
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_every_call_refused(struck, fast_path: Path, error: int):
    damaged, data, expected = struck
    directory = fast_path / "victim"
    seen = set()
    for at in range(1000):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(damaged, directory)
        files = Failing()
        files.arm(at, error, kinds=ALL - LOCKING if error == errno.ENOSPC else ALL)
        refused = None
        try:
            salvage_queue(directory, "default", clock=clock, files=files)
        except StorageError as caught:
            refused = caught.errno
        assert refused in (None, error)
        hit, files.hit = files.hit, None
        assert not list(directory.glob("*.tmp")) or hit.kind in ("unlink", "listdir"), hit
        seen.add(check_all_or_nothing(directory, data, expected, f"{hit} refused"))
        if hit is None:
            break
    assert at > 5
    assert seen == {"old", "new"}


def cut_the_power(
    struck: tuple[Path, bytes, list[dict[str, object]]], fast_path: Path, draws: int, *, flipped: bool = False
) -> set[str]:
    """Salvage, and recover ``draws`` of the images that a power cut after each change may leave.

    Args:
        flipped: only those in which the pointer names the new log.
    """
    damaged, data, expected = struck
    directory = fast_path / "traced"
    shutil.copytree(damaged, directory)
    shutil.rmtree(directory / "default.run")
    image = {path.name: path.read_bytes() for path in directory.iterdir()}
    trace = TraceFiles.over(directory, image)
    salvage(directory, files=trace)
    rng, seen = drawn("power cuts of a salvage"), set()
    for number, (disk, _, changed) in enumerate(cuts(trace)):
        for _ in range(draws if changed else 0):
            victim = fast_path / "victim"
            shutil.rmtree(victim, ignore_errors=True)
            cut = {os.path.basename(path): disk.files[n].draw(rng) for path, n in disk.draw_names(rng).items()}
            if set(cut) >= set(image) and not (flipped and cut["default.current"] == b"2\n"):
                write_image(cut, victim)
                seen.add(check_all_or_nothing(victim, data, expected, f"power cut at event {number}"))
    return seen


@pytest.mark.contract("LOG-07", "COMP-02")
def test_every_power_cut(small, fast_path: Path):
    assert cut_the_power(small, fast_path, 6) == {"old", "new"}


def test_every_power_cut_after_the_flip(small, fast_path: Path):
    assert cut_the_power(small, fast_path, 20, flipped=True) == {"new"}


# -- the oracles are not blind


@pytest.mark.parametrize("plant", ["no sync of the new log", "no sync of the directory", "pointer first"])
def test_power_cuts_find(small, fast_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str):

    if plant == "no sync of the new log":
        sync = Watched.datasync
        monkeypatch.setattr(
            Watched, "datasync", lambda self, fd: None if ".compact." in self._path(fd) else sync(self, fd)
        )
    elif plant == "no sync of the directory":
        monkeypatch.setattr(Watched, "sync_directory", lambda self, path: None)
    else:
        create = NewLog.__init__

        def early(self, files, layout, generation, *arguments):
            write_pointer(files, layout, generation, 0o600)
            create(self, files, layout, generation, *arguments)

        monkeypatch.setattr(NewLog, "__init__", early)
    with pytest.raises((AssertionError, NobrokerError)):
        cut_the_power(small, fast_path, 300, flipped=True)


def test_the_oracle_finds_a_revived_job(sound: Path, fast_path: Path, monkeypatch: pytest.MonkeyPatch):
    from nobroker_django.engine import lenient, transitions

    monkeypatch.setattr(lenient.Losses, "apply", lambda self, state, record, at: transitions.apply(state, record, at))
    with pytest.raises(AssertionError, match=r"is lost, and nobody says so|was finished and is"):
        for seed in range(60):
            wreck = Wreck.of(sound, fast_path / "wreck")
            wreck.damage_randomly(drawn(f"wreck {seed}"))
            check_salvaged(wreck, salvage(wreck.directory))
