"""COMP-01 to COMP-04: what a compaction keeps, how it becomes live, who follows, what happens without space."""

import errno
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from nobroker_django import BackoffPolicy, CompactionError, CorruptLogError, JobState, NobrokerError, Queue
from tests.support.bytes import log_end

from .helpers import FailingFiles, RecordingFiles, flip, live_log, read_log, run_python

MUTATING = frozenset({"write", "pwrite", "allocate", "truncate", "datasync", "sync", "rename", "unlink", "open"})


def contents(queue) -> list[dict]:
    return [job.to_dict() for job in queue.list_jobs()]


def every_state(queue, clock) -> None:
    """Jobs that are ready, delayed, retried, leased, dead, done within and done past their retention (100 s)."""
    queue.enqueue("old and done")
    queue.ack(queue.lease_one(), result="gone")
    clock.advance(90)
    queue.enqueue("done", job_id="done")
    queue.ack(queue.lease_one(), result={"kept": 1})
    clock.advance(20)
    queue.enqueue("dead", max_attempts=1)
    queue.nack(queue.lease_one(), error=ValueError("why"))
    queue.enqueue("leased", priority=3, meta={"m": 1}, visibility_timeout=500)
    queue.lease_one()
    queue.enqueue("retried")
    queue.nack(queue.lease_one(), error="once", delay=1000)
    queue.enqueue("delayed", delay=30 * 86_400)
    queue.enqueue("ready", priority=-1)


# --- COMP-01


@pytest.mark.contract("COMP-01")
def test_finished_history_past_its_retention_goes_and_everything_else_stays_as_it_was(open_queue, clock):
    queue = open_queue(retention=100)
    every_state(queue, clock)
    before = contents(queue)
    stats = queue.stats()
    result = queue.compact()
    assert (result.jobs_kept, result.jobs_dropped) == (6, 1)
    assert contents(queue) == [job for job in before if job["payload"] != "old and done"]
    after = queue.stats()
    assert (after.ready, after.delayed, after.leased, after.dead) == (
        stats.ready, stats.delayed, stats.leased, stats.dead,
    )  # fmt: skip
    assert (after.done, after.enqueued_total) == (1, stats.enqueued_total)


@pytest.mark.contract("COMP-01")
def test_a_second_compaction_changes_nothing_more(open_queue, clock):
    queue = open_queue(retention=100)
    every_state(queue, clock)
    queue.compact()
    once = contents(queue)
    assert queue.compact().jobs_dropped == 0
    assert contents(queue) == once
    queue.close()
    assert contents(open_queue()) == once


@pytest.mark.contract("COMP-01")
def test_a_delayed_job_and_a_dead_letter_pin_nothing_else(open_queue, queue_dir, clock):
    """C67, with 300 short jobs of two retries each."""
    queue = open_queue(fsync=False, backoff=BackoffPolicy(base=0))
    delayed = queue.enqueue("in a month", delay=30 * 86_400)
    dead = queue.enqueue("dead", max_attempts=1, priority=1)
    queue.nack(queue.lease_one(), error="why")
    queue.compact()
    floor = log_end(live_log(queue_dir))
    for _ in range(3):
        queue.enqueue_many([{"text": "x" * 100}] * 100)
        for attempt in range(3):
            jobs = queue.lease(100)
            assert len(jobs) == 100
            if attempt < 2:
                for job in jobs:
                    queue.nack(job, error="again")
        queue.ack_many(jobs)
        grown = log_end(live_log(queue_dir))
        result = queue.compact()
        assert (result.jobs_kept, result.jobs_dropped) == (2, 100)
        assert result.bytes_before == grown
        assert result.bytes_after == log_end(live_log(queue_dir)) <= floor + 200 < grown // 20
    assert queue.get(delayed.id).available_at == delayed.available_at
    assert queue.get(dead.id).last_error == "why"
    assert len(list(queue_dir.glob("default.*.log"))) == 1


@pytest.mark.contract("COMP-01")
def test_a_holder_goes_on_with_its_lease_over_a_compaction(open_queue, clock):
    queue = open_queue(retention=10)
    queue.enqueue("x")
    job = queue.lease_one()
    open_queue().compact()
    queue.extend(job, 5)
    assert queue.lease_one() is None
    queue.ack(job, result=1)
    assert queue.get(job.id).result == 1


# --- COMP-02


def snapshots_during(files: RecordingFiles, directory: Path, into: Path) -> list[tuple[Path, str]]:
    """Copies the directory before every system call that changes something, from now on."""
    copies: list[tuple[Path, str]] = []

    def before(call):
        if call.name in MUTATING:
            target = into / str(len(copies))
            shutil.copytree(directory, target, ignore_dangling_symlinks=True)
            copies.append((target, str(call)))

    files.before = before
    return copies


@pytest.mark.contract("COMP-02")
def test_a_crash_before_any_step_leaves_exactly_one_complete_live_generation(open_queue, memory_dir, clock):
    """C66, for a process that is killed; tests/crash has the power cuts."""
    directory = memory_dir / "queue"
    files = RecordingFiles()
    queue = open_queue(directory, files=files, retention=100)
    every_state(queue, clock)
    expected = contents(queue)
    kept = [job for job in expected if job["payload"] != "old and done"]
    copies = snapshots_during(files, directory, memory_dir)
    queue.compact()
    files.before = None
    assert len(copies) > 10
    generations = []
    for copy, call in copies:
        generation = int((copy / "default.current").read_text())
        generations.append(generation)
        with Queue(copy, clock=clock, retention=100) as after:
            assert contents(after) == (kept if generation == 2 else expected), call
            assert not after.recovery.repaired, call
            after.compact()
            assert contents(after) == kept, call
        assert [entry.name for entry in copy.glob("*.tmp")] == [], call
        assert len(list(copy.glob("*.log"))) == 1, call
    assert sorted(set(generations)) == [1, 2]


@pytest.mark.contract("COMP-02")
def test_the_new_generation_is_synced_and_named_before_the_pointer_and_the_old_one_goes_last(open_queue, queue_dir):
    files = RecordingFiles()
    queue = open_queue(files=files)
    queue.enqueue_many(range(10))
    files.record.clear()
    queue.compact()

    def label(call):
        name = Path(call.path).name
        kind = next(
            (part for part in ("compact", "current", "000002.log", "000001.log", "lock") if part in name), "dir"
        )
        return f"{call.name} {kind}"

    wanted = (
        "write compact", "datasync compact", "rename 000002.log", "sync dir", "write current", "sync current",
        "pwrite 000002.log", "datasync 000002.log", "rename current", "unlink 000001.log",
    )  # fmt: skip
    seen = [label(call) for call in files.record.calls if label(call) in wanted]
    assert seen == [
        "write compact", "write compact", "datasync compact", "rename 000002.log", "sync dir",
        "write current", "sync current",
        "pwrite 000002.log", "datasync 000002.log", "rename current", "sync dir", "unlink 000001.log",
    ]  # fmt: skip


@pytest.mark.contract("COMP-02")
def test_the_first_append_after_opening_a_generation_comes_behind_a_sync_of_the_directory(open_queue, queue_dir):
    """Whoever made it live may have died before it synced the directory."""
    files = RecordingFiles()
    follower = open_queue(files=files)
    follower.enqueue(1)
    open_queue().compact()
    files.record.clear()
    follower.enqueue(2)
    names = [(call.name, Path(call.path).name) for call in files.record.calls]
    assert names.index(("sync", queue_dir.name)) < names.index(("pwrite", "default.000002.log"))


@pytest.mark.contract("COMP-02")
def test_left_overs_of_a_crashed_compaction_are_removed_by_the_next(open_queue, queue_dir, clock):
    queue = open_queue(retention=0)
    queue.enqueue("x")
    (queue_dir / "default.compact.1-abcd.tmp").write_bytes(b"half")
    queue.compact()
    assert list(queue_dir.glob("*.tmp")) == []
    assert [job.payload for job in queue.list_jobs()] == ["x"]


@pytest.mark.contract("COMP-02", "LOG-07")
@pytest.mark.parametrize("place", ["payload of a live job", "record of a finished one"])
def test_a_compaction_does_not_launder_damage(open_queue, queue_dir, place):
    """C63."""
    queue = open_queue()
    queue.enqueue("done")
    queue.ack(queue.lease_one())
    queue.enqueue("live")
    log = live_log(queue_dir)
    records = [record for record in read_log(log) if record.body.get("payload") in ("done", "live")]
    record = records[1 if place.startswith("payload") else 0]
    flip(log, record.offset + 20)
    before = log.read_bytes()
    with pytest.raises(CorruptLogError) as refused:
        queue.compact()
    assert refused.value.offset == record.offset
    assert log.read_bytes() == before
    assert sorted(entry.name for entry in queue_dir.glob("*.log")) == [log.name]
    assert list(queue_dir.glob("*.tmp")) == []


@pytest.mark.contract("COMP-02")
def test_only_one_compaction_runs_at_a_time(open_queue, queue_dir):
    inside, go_on = threading.Event(), threading.Event()

    def before(call):
        if call.name == "datasync" and ".compact." in call.path:
            inside.set()
            assert go_on.wait(60)

    first, second = open_queue(files=RecordingFiles(before)), open_queue(lock_timeout=0.2)
    first.enqueue(1)
    outcome: list = []
    thread = threading.Thread(target=lambda: outcome.append(first.compact()))
    thread.start()
    try:
        assert inside.wait(60)
        with pytest.raises(NobrokerError, match=r"another compaction|was not free") as refused:
            second.compact()
        assert refused.value.stored is False
    finally:
        go_on.set()
        thread.join(60)
    assert outcome[0].jobs_kept == 1
    assert int((queue_dir / "default.current").read_text()) == 2


# --- COMP-03


@pytest.mark.contract("COMP-03")
def test_other_objects_and_processes_follow_and_their_state_matches_the_log(open_queue, queue_dir, clock):
    queue, other = open_queue(retention=100), open_queue(retention=100)
    every_state(queue, clock)
    other.stats()
    for round_ in range(3):
        queue.compact()
        other.enqueue(f"after {round_}")
        assert contents(other) == contents(queue)
        assert other.stats() == queue.stats()
        assert other.path == queue.path == live_log(queue_dir)
    code = (
        "import sys; from nobroker_django import Queue; q = Queue(sys.argv[1]); print(len(q.list_jobs())); q.compact()"
    )
    assert int(run_python(code, queue_dir)) == len(queue.list_jobs())
    assert [job.payload for job in queue.list_jobs()][-1] == "after 2"
    assert queue.path == live_log(queue_dir)


@pytest.mark.contract("COMP-03")
@pytest.mark.parametrize(
    "verb",
    [
        lambda queue, job: queue.enqueue(1),
        lambda queue, job: queue.enqueue("leased", job_id="leased"),
        lambda queue, job: queue.lease(),
        lambda queue, job: queue.ack(job),
        lambda queue, job: queue.nack(job),
        lambda queue, job: queue.extend(job, 5),
        lambda queue, job: queue.release([job]),
        lambda queue, job: queue.get(job.id),
        lambda queue, job: queue.stats(),
        lambda queue, job: queue.list_jobs(),
        lambda queue, job: queue.requeue_dead(),
        lambda queue, job: queue.purge(),
        lambda queue, job: queue.compact(),
        lambda queue, job: queue.close(),
    ],
)
def test_every_verb_follows_a_compaction_that_came_before_it(open_queue, queue_dir, verb):
    queue, other = open_queue(), open_queue()
    queue.enqueue("leased", job_id="leased")
    queue.enqueue("more")
    job = queue.lease_one()
    other.compact()
    retired = queue_dir / "default.000001.log"
    assert not retired.exists()
    verb(queue, job)
    assert not retired.exists()
    assert other.path == live_log(queue_dir)
    read_log(live_log(queue_dir))


@pytest.mark.contract("COMP-03")
def test_a_producer_that_waits_for_its_sync_while_the_log_is_replaced_is_not_lost(open_queue, queue_dir):
    compactor = open_queue()
    compacted = []

    class Late(RecordingFiles):
        armed = False

        def lock_byte(self, fd, offset, *, exclusive):
            if self.armed and self.paths[fd].endswith(".log"):
                self.armed = False
                compacted.append(compactor.compact())
            return super().lock_byte(fd, offset, exclusive=exclusive)

    files = Late()
    producer = open_queue(files=files)
    files.armed = True
    assert producer.enqueue("x").created
    assert compacted[0].jobs_kept == 1
    assert [job.payload for job in compactor.list_jobs()] == ["x"]


# --- COMP-04


@pytest.mark.contract("COMP-04")
@pytest.mark.parametrize(
    "step",
    [
        lambda call: call.name == "open" and ".compact." in call.path,
        lambda call: call.name == "write" and ".compact." in call.path,
        lambda call: call.name == "datasync" and ".compact." in call.path,
        lambda call: call.name == "pwrite" and call.path.endswith(".000002.log"),
        lambda call: call.name == "datasync" and call.path.endswith(".000002.log"),
        lambda call: call.name == "rename" and call.path.endswith(".log"),
        lambda call: call.name == "write" and ".current." in call.path,
        lambda call: call.name == "sync" and ".current." in call.path,
        lambda call: call.name == "rename" and call.path.endswith(".current"),
    ],
)
def test_without_space_a_compaction_fails_cleanly_and_the_queue_is_usable(open_queue, queue_dir, clock, step):
    files = FailingFiles(step, OSError(errno.ENOSPC, "no space left on device"))
    files.armed = False
    queue = open_queue(files=files, retention=100)
    every_state(queue, clock)
    before = contents(queue)
    log = live_log(queue_dir)
    data = log.read_bytes()
    files.armed = True
    with pytest.raises(CompactionError, match="no space left"):
        queue.compact()
    assert log.read_bytes() == data
    assert [entry.name for entry in queue_dir.iterdir() if entry.suffix in (".tmp", ".log")] == [log.name]
    assert contents(queue) == before
    queue.enqueue("goes on", job_id="goes on")
    assert queue.compact().jobs_dropped == 1
    assert queue.get("goes on").state is JobState.READY


@pytest.mark.contract("COMP-04")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_on_a_really_full_disk_the_temporary_file_is_removed(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", mount], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        ballast = mount / "ballast"
        with Queue(mount / "queue") as queue:
            queue.enqueue_many(["x" * 1000] * 1000)
            assert queue.stats().ready == 1000
            ballast.write_bytes(bytes(os.statvfs(mount).f_bavail * os.statvfs(mount).f_bsize - 300_000))
            with pytest.raises(CompactionError):
                queue.compact()
            assert list((mount / "queue").glob("*.tmp")) == []
            assert len(list((mount / "queue").glob("*.log"))) == 1
            assert queue.enqueue("fits").created
            ballast.unlink()
            assert queue.compact().jobs_kept == 1001
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


@pytest.mark.contract("COMP-01", "ORD-01")
def test_a_job_that_a_compaction_met_when_it_was_due_waits_when_the_clock_is_set_back(queue, clock):
    queue.enqueue("late", delay=5.0)
    queue.enqueue("now")
    clock.advance(10.0)
    assert [job.payload for job in queue.lease(1)] == ["now"]  # by which the other one was made due
    queue.compact()
    assert (queue.stats().ready, queue.stats().delayed) == (1, 0)
    clock.advance(-8.0)
    assert (queue.stats().ready, queue.stats().delayed) == (0, 1)
    assert queue.lease(1) == []
    clock.advance(8.0)
    assert [job.payload for job in queue.lease(1)] == ["late"]


@pytest.mark.contract("COMP-01", "ORD-01")
@pytest.mark.parametrize("how", ["a compaction", "a lost projection"])
def test_a_job_that_is_given_back_waits_when_the_clock_was_set_back_meanwhile(open_queue, queue_dir, clock, how):
    queue = open_queue()
    queue.enqueue("late", delay=5.0)
    clock.advance(10.0)
    (job,) = queue.lease(1)
    if how == "a compaction":
        queue.compact()
    else:
        queue.close()
        shutil.rmtree(queue_dir / "default.run")
        queue = open_queue()
    clock.advance(-8.0)
    queue.release([job])
    assert (queue.stats().ready, queue.stats().delayed) == (0, 1)
    assert queue.lease(1) == []
    clock.advance(8.0)
    assert [job.payload for job in queue.lease(1)] == ["late"]
