"""LOG-03: directories of the PyPI package ``nobroker`` 0.1 open with equal state, and that package stops cleanly."""

import errno
import json
import os
import random
import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path
from subprocess import Popen

import pytest

from nobroker_django import (
    AlreadyDoneError,
    CorruptLogError,
    JobConflictError,
    LockTimeoutError,
    NobrokerError,
    NotLeasedError,
    Queue,
)
from nobroker_django.engine.clock import Deadline
from nobroker_django.engine.errors import PointerError, StorageError, UnsupportedVersionError
from nobroker_django.engine.files import Files
from tests.support import version1
from tests.support.faulty import ALL, Dying, Failing
from tests.support.powercut import Disk, TraceFiles, write_image
from tests.support.procs import Diary, wait_until
from tests.support.version1 import boundaries, counts, files_of, finish, opened, record, shown, start, write_log

from .helpers import ENQUEUE, FakeClock, flip, in_child, live_log, read_log

pytestmark = pytest.mark.contract("LOG-03")


def compacted(queue, clock):
    version1.fill(queue, clock.advance)
    queue.compact()


def compacted_and_on(queue, clock):
    compacted(queue, clock)
    queue.enqueue({"after": "compaction"}, job_id="after", priority=50)
    queue.ack(queue.lease_one())
    queue.compact()
    queue.enqueue("behind", job_id="behind")
    queue.nack(queue.lease_one(), error="behind two compactions")


def plain(queue, clock):
    version1.fill(queue, clock.advance)


HISTORIES = {"plain": plain, "compacted": compacted, "compacted twice, and on": compacted_and_on}


@pytest.fixture
def fast_dir(memory_dir: Path) -> Path:
    return memory_dir / "queues"


@pytest.fixture
def open_queue(fast_dir, open_queue):
    """As elsewhere; closed before the directory is removed."""
    return open_queue


@pytest.fixture(params=HISTORIES)
def written(request, fast_dir, clock):
    """A directory of version 1, with its jobs and counts as that package shows them."""
    with opened(fast_dir, clock) as old:
        HISTORIES[request.param](old, clock)
    with opened(fast_dir, clock) as old:
        return fast_dir, [shown(job) for job in old.list_jobs()], counts(old.stats())


def jobs_of(queue: Queue) -> list[dict]:
    return [shown(job) for job in queue.list_jobs()]


def old_jobs(directory: Path) -> list[dict]:
    """What version 1 itself makes of a directory; of a copy, because it cuts what it does not understand."""
    copy = directory.parent / "as version 1 sees it"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    with opened(copy, lambda: 0.0) as old:  # a time at which no lease runs out
        return [shown(job) for job in old.list_jobs()]


# --- equal state


def test_what_version_1_wrote_opens_with_equal_state(open_queue, written):
    directory, jobs, stats = written
    states = {job["state"] for job in jobs} | {"delayed" for job in jobs if job["id"] == "delayed"}
    assert states >= {"ready", "leased", "dead", "delayed"}
    queue = open_queue(directory)
    assert jobs_of(queue) == jobs
    assert counts(queue.stats()) == stats
    assert queue.stats().enqueued_total >= stats["total"]
    queue.close()
    assert jobs_of(open_queue(directory)) == jobs


def test_a_read_only_queue_shows_it_without_converting_anything(open_queue, written):
    directory, jobs, stats = written
    before = files_of(directory)
    queue = open_queue(directory, read_only=True)
    assert jobs_of(queue) == jobs
    assert counts(queue.stats()) == stats
    assert queue.stats().behind_bytes == 0
    assert queue.get("n6").errors[-1].message == "second"
    assert files_of(directory) == before


def test_it_is_still_equal_after_a_compaction_of_ours(open_queue, written, clock):
    directory, jobs, _ = written
    queue = open_queue(directory)
    queue.compact()
    assert jobs_of(queue) == jobs  # finished ones too: they stay known for a day
    clock.advance(86_401)
    queue.compact()
    left = {job["id"] for job in jobs_of(queue)}
    assert left == {job["id"] for job in jobs if job["state"] != "done"}


def test_payloads_keep_their_bytes(open_queue, written):
    directory, _, _ = written
    raw = {}
    for path in directory.glob("*.log"):
        data = path.read_bytes()
        for begin, end in pairwise(boundaries(data)):
            if data[begin + 4] == ENQUEUE:
                body = data[begin + 9 : end]
                raw[json.loads(body)["id"]] = body[body.index(b'"payload":') + 10 : body.rindex(b',"priority":')]
    queue = open_queue(directory)
    queue.compact()  # copied once more, by code that knows nothing of version 1
    data = live_log(directory).read_bytes()
    found = [r for r in read_log(live_log(directory)) if r.type == ENQUEUE]
    assert len(found) > 15
    for entry in found:
        assert b'"payload":%b,' % raw[entry.body["id"]] in data[entry.offset : entry.end]


def test_keys_that_stand_twice_stay_so(open_queue, fast_dir):
    body = (
        b'{"attempts":0,"available_at":1.5,"enqueued_at":1.5,"id":"x","last_error":null,"lease_deadline":null,'
        b'"lease_token":null,"max_attempts":5,"payload":{"a":1,"a":NaN},"priority":0,"seq":1,"state":"ready"}'
    )
    write_log(fast_dir, [record(ENQUEUE, body)])
    queue = open_queue(fast_dir)
    assert json.dumps(queue.get("x").payload) == '{"a": NaN}'
    assert b'"payload":{"a":1,"a":NaN}' in live_log(fast_dir).read_bytes()


def test_jobs_are_leased_in_the_order_of_version_1(open_queue, written, clock):
    directory, _, _ = written
    clock.advance(5000)
    with open_queue(directory) as queue:
        ours = [job.id for job in iter(queue.lease_one, None)]
    (directory / "default.lock").unlink()
    pointer = min(directory.glob("*.log")).name.split(".")[1]
    (directory / "default.current").write_text(f"{int(pointer)}\n")
    with opened(directory, clock) as old:
        assert [job.id for job in iter(old.lease_one, None)] == ours
    assert len(ours) > 15


def test_the_history_of_errors_comes_along(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        plain(old, clock)
    with open_queue(fast_dir, read_only=True) as looking:
        seen = looking.get("n6").errors
    queue = open_queue(fast_dir)
    assert [(error.attempt, error.message) for error in queue.get("n6").errors] == [(1, "first"), (2, "second")]
    assert queue.get("n6").errors == seen
    assert queue.get("n2").last_error == "it failed: \\ud800 ünï"
    assert queue.get("n6").finished_at == seen[-1].at
    assert queue.get("n0").outcome == "succeeded"
    assert queue.get("n0").finished_at == pytest.approx(clock.now - 222)


def test_new_work_comes_behind_the_old_and_dead_letters_can_be_requeued(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        old.enqueue_many(["much, and gone"] * 100)
        old.purge()
        old.enqueue_many(range(5))
        old.enqueue("dead", job_id="dead", max_attempts=1, priority=1)
        old.nack(old.lease_one())
    queue = open_queue(fast_dir)
    assert queue.stats().enqueued_total == 106
    queue.enqueue("new")
    assert queue.stats().enqueued_total == 107
    assert queue.list_jobs()[-1].payload == "new"
    assert queue.requeue_dead() == 1
    assert [job.payload for job in iter(queue.lease_one, None)] == ["dead", 0, 1, 2, 3, 4, "new"]


def test_a_clock_that_was_set_back_since_keeps_new_work_behind_the_old(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        old.enqueue("old")
    clock.advance(-3600)
    queue = open_queue(fast_dir)
    queue.enqueue("new")
    clock.advance(3600)
    assert [job.payload for job in iter(queue.lease_one, None)] == ["old", "new"]


# --- leases and ids of version 1


def test_a_lease_of_version_1_ends_by_its_token_and_by_no_other(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        old.enqueue_many(["a", "b", "c"], job_ids=["a", "b", "c"])
        tokens = {job.id: job.lease_token for job in old.lease(3, visibility_timeout=60)}
    queue = open_queue(fast_dir)
    job = queue.get("a")
    assert (job.lease_token, len(job.lease_token)) == (tokens["a"], 16)
    stolen = queue.get("a")
    stolen.lease_token = "0123456789abcdef"
    with pytest.raises(NotLeasedError):
        queue.ack(stolen)
    queue.ack(job)
    queue.ack(job)  # a retried ack
    with pytest.raises(AlreadyDoneError):
        queue.ack(stolen)
    assert queue.extend(queue.get("b"), 100).lease_deadline == clock.now + 160
    queue.nack(queue.get("b"), error="no", delay=0)
    clock.advance(61)
    assert queue.lease_one().id == "b"
    assert queue.get("c").errors[-1].message.startswith("lease expired")
    assert queue.get("c").state.value == "ready"


def test_an_ack_that_is_tried_again_after_the_conversion_is_known(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        old.enqueue(1, job_id="a")
        leased = old.lease_one()
        old.ack(leased)
    queue = open_queue(fast_dir)
    job = queue.get("a")
    job.lease_token = leased.lease_token
    queue.ack(job)


def test_ids_of_version_1_are_known(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        old.enqueue({"a": [1.0, "ü"]}, job_id="waiting")
        old.enqueue("done", job_id="done", priority=1)
        old.enqueue({"odd": float("nan")}, job_id="nan")
        old.enqueue("\ud800", job_id="surrogate")
        old.ack(old.lease_one())
    queue = open_queue(fast_dir)
    assert not queue.enqueue({"a": [1.0, "ü"]}, job_id="waiting").created
    assert not queue.enqueue("done", job_id="done").created
    for job_id, payload in (("waiting", 1), ("done", 1), ("nan", {"odd": None}), ("surrogate", "?")):
        with pytest.raises(JobConflictError):
            queue.enqueue(payload, job_id=job_id)
    clock.advance(86_401)
    assert queue.enqueue("done", job_id="done").created


# --- the directory afterwards


def test_the_old_log_stays_as_it_is_until_the_next_compaction(open_queue, written):
    directory, _, _ = written
    (old,) = directory.glob("*.log")
    data = old.read_bytes()
    queue = open_queue(directory)
    queue.enqueue("new")
    assert old.read_bytes() == data
    assert live_log(directory) != old
    queue.compact()
    assert not old.exists()
    assert len(list(directory.glob("*.log"))) == 1


def test_new_files_get_our_modes(open_queue, written):
    directory, _, _ = written
    open_queue(directory, file_mode=0o600)
    for path in (live_log(directory), directory / "default.current"):
        assert path.stat().st_mode & 0o777 == 0o600


VERBS_OF_VERSION_1 = """
import sys, nobroker
directory = sys.argv[1]
queue = None
for line in sys.stdin:
    verb = line.strip()
    try:
        if verb == "open":
            queue = nobroker.Queue(directory, lock_timeout=0.1)
        else:
            getattr(queue, verb)(*{"enqueue": ["x"], "ack": ["n4"], "get": ["n4"]}.get(verb, []))
        print("done", flush=True)
    except nobroker.NobrokerError as error:
        print(type(error).__name__, flush=True)
"""
VERBS = ["stats", "enqueue", "lease", "ack", "get", "list_jobs", "requeue_dead", "purge", "compact", "stats"]


def ask(process: Popen[str], verb: str) -> str:
    process.stdin.write(verb + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.parametrize("ours", ["open", "closed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_version_1_stops_cleanly_whenever_it_was_opened_and_damages_nothing(open_queue, written, ours, when):
    directory, jobs, _ = written
    process = start(VERBS_OF_VERSION_1, directory)
    try:
        if when == "before":
            assert ask(process, "open") == "done"
            assert ask(process, "stats") == "done"
        queue = open_queue(directory)
        if ours == "closed":
            queue.close()
        before = files_of(directory)
        refusal = "LockTimeoutError" if ours == "open" else "CorruptLogError"
        if when == "after":
            assert ask(process, "open") == refusal
        else:
            assert [ask(process, verb) for verb in VERBS] == [refusal] * len(VERBS)
        assert files_of(directory) == before
    finally:
        process.communicate()
    assert jobs_of(open_queue(directory)) == jobs


RUNS_IN_A_LOOP = """
import os, sys, nobroker
directory, diary, me = sys.argv[1:]
out = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
note = lambda *words: os.write(out, (" ".join(words) + "\\n").encode())
number = 0
try:
    queue = nobroker.Queue(directory, lock_timeout=2, visibility_timeout=1000)
    while True:
        queue.enqueue({"from": me, "n": number}, job_id=f"{me}-{number}")
        note("enqueued", f"{me}-{number}")
        number += 1
        if number % 3 == 0:
            job = queue.lease_one()
            queue.ack(job)
            note("acked", job.id)
        if number % 20 == 0:
            queue.compact()
except nobroker.NobrokerError as error:
    note("stopped", type(error).__name__)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_conversion_among_processes_of_version_1_that_run_loses_nothing(fast_dir, attempt):
    diary = Diary(fast_dir.parent / "diary")
    processes = [start(RUNS_IN_A_LOOP, fast_dir, diary.path, me) for me in ("one", "two")]
    wait_until(lambda: len(diary.lines()) > 10 + 25 * attempt and "two-0" in diary.path.read_text(), "their work")
    with Queue(fast_dir) as queue:
        for process in processes:
            finish(process)
        lines = [(kind, what) for kind, what in diary.lines()]
        stops = [what for kind, what in lines if kind == "stopped"]
        assert len(stops) == 2
        assert set(stops) <= {"CorruptLogError", "LockTimeoutError"}
        acked = {what for kind, what in lines if kind == "acked"}
        enqueued = {what for kind, what in lines if kind == "enqueued"}
        states = {job.id: job.state.value for job in queue.list_jobs()}
        assert enqueued - acked <= set(states)
        assert {states.get(job_id, "done") for job_id in acked} <= {"done"}
        assert [job_id for job_id, state in states.items() if state == "done" and job_id not in acked] == []
        queue.enqueue("ours goes on")
        queue.compact()
    with Queue(fast_dir) as queue:
        assert {job.id: job.state.value for job in queue.list_jobs()}.items() >= states.items()


def test_while_version_1_is_in_the_middle_of_a_call_nothing_is_converted(open_queue, written):
    directory, jobs, _ = written
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.flock(f, 2); print(1, flush=True); sys.stdin.read()"
    holder = start(code, directory / "default.lock")
    assert holder.stdout.readline()
    before = files_of(directory)
    with pytest.raises(LockTimeoutError, match="version 1"):
        open_queue(directory, lock_timeout=0.1)
    assert files_of(directory) == before
    finish(holder)
    assert jobs_of(open_queue(directory)) == jobs


def test_a_conversion_may_take_longer_than_the_lock_timeout(open_queue, written):
    directory, jobs, _ = written

    class Slow(Files):
        def rename(self, source, target):
            wait_until(Deadline(0.5).passed, "the end of the patience")
            super().rename(source, target)

    queue = open_queue(directory, files=Slow(), lock_timeout=0.5)
    assert jobs_of(queue) == jobs


def test_of_many_who_open_it_at_once_one_converts(fast_dir, clock):
    with opened(fast_dir, clock) as old:
        plain(old, clock)
    ready, go = os.pipe()
    pids = []
    for number in range(6):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(go)
                os.read(ready, 1)
                Queue(fast_dir, clock=clock).enqueue(number)
                os._exit(0)
            except BaseException:
                os._exit(1)
        pids.append(pid)
    os.close(go)
    os.close(ready)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 6
    assert sorted(path.name for path in fast_dir.glob("*.log")) == ["default.000000.log", "default.000001.log"]
    with Queue(fast_dir, clock=clock) as queue:
        assert sorted(job.payload for job in queue.list_jobs()[-6:]) == list(range(6))


# --- a reader beside a living version 1


def test_a_reader_follows_version_1_its_compactions_and_the_conversion(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        old.enqueue("a")
        reader = open_queue(fast_dir, read_only=True)
        assert [job.payload for job in reader.list_jobs()] == ["a"]
        old.enqueue("b")
        old.ack(old.lease_one())
        assert [(job.payload, job.state.value) for job in reader.list_jobs()] == [("a", "done"), ("b", "ready")]
        old.compact()
        assert [job.payload for job in reader.list_jobs()] == ["b"]
        old.enqueue("c")
        assert [job.payload for job in reader.list_jobs()] == ["b", "c"]
    writer = open_queue(fast_dir)
    assert [job.payload for job in reader.list_jobs()] == ["b", "c"]
    writer.enqueue("d")
    assert [job.payload for job in reader.list_jobs()] == ["b", "c", "d"]


def test_a_reader_needs_no_permission_to_write(open_queue, written):
    directory, jobs, _ = written
    for path in [*directory.iterdir(), directory]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert jobs_of(open_queue(directory, read_only=True)) == jobs
    finally:
        directory.chmod(0o755)


# --- torn tails and damage


@pytest.mark.parametrize("mode", ["writer", "reader"])
def test_a_torn_tail_at_every_byte_of_the_last_records(open_queue, written, clock, mode):
    """Held against version 1 itself, which is asked about a copy."""
    directory, _, _ = written
    (log,) = directory.glob("*.log")
    data, pristine = log.read_bytes(), files_of(directory)
    ends = boundaries(data)
    expected: dict[int, list[dict]] = {}
    for size in range(ends[-3], len(data) + 1):
        whole = max(end for end in ends if end <= size)
        log.write_bytes(data[:size])
        if whole not in expected:
            expected[whole] = old_jobs(directory)
        before = files_of(directory)
        queue = open_queue(directory, read_only=mode == "reader")
        assert jobs_of(queue) == expected[whole], size
        queue.close()
        after = files_of(directory)
        assert after[log.name] == data[:size]
        if mode == "reader":
            assert after == before
            continue
        torn = {name: content for name, content in after.items() if ".torn-" in name}
        assert list(torn.values()) == ([data[whole:size]] if size > whole else [])
        assert queue.recovery.repaired == (size > whole)
        assert queue.recovery.bytes_discarded == size - whole
        if size > whole:
            assert (queue.recovery.path, queue.recovery.offset) == (str(log), whole)
            assert Path(queue.recovery.kept_path).name in torn
        shutil.rmtree(directory)
        directory.mkdir()
        for name, content in pristine.items():
            (directory / name).write_bytes(content)
    assert len(expected) == 3


def small_log(directory: Path, clock) -> Path:
    with opened(directory, clock) as old:
        old.enqueue({"n": 1}, job_id="one")
        old.enqueue({"n": 2}, job_id="two")
        old.ack(old.lease_one())
    return directory / "default.000000.log"


@pytest.mark.contract("LOG-07")
def test_damage_before_intact_records_is_refused_by_writers_and_readers(open_queue, fast_dir, clock):
    log = small_log(fast_dir, clock)
    data = log.read_bytes()
    ends = boundaries(data)
    for begin, end in pairwise(ends[:-1]):
        for offset in range(begin, end):
            log.write_bytes(data[:offset] + bytes([data[offset] ^ 0x55]) + data[offset + 1 :])
            before = files_of(fast_dir)
            for read_only in (False, True):
                with pytest.raises(CorruptLogError) as refused:
                    open_queue(fast_dir, read_only=read_only)
                assert refused.value.path == str(log)
                assert refused.value.offset == begin
                assert files_of(fast_dir) == before


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("where", ["in the middle", "at the end"])
def test_a_sector_of_zeros_is_a_torn_tail_only_where_nothing_follows(open_queue, fast_dir, clock, where):
    with opened(fast_dir, clock) as old:
        for n in range(30):
            old.enqueue("x" * 100, job_id=f"job-{n}")
    log = fast_dir / "default.000000.log"
    data = log.read_bytes()
    ends = boundaries(data)
    begin = (len(data) // 1024 if where == "in the middle" else len(data) // 512) * 512
    log.write_bytes(data[:begin] + bytes(len(data[begin : begin + 512])) + data[begin + 512 :])
    whole = max(end for end in ends if end <= begin)
    if where == "in the middle":
        for read_only in (True, False):
            with pytest.raises(CorruptLogError, match="intact records follow") as refused:
                open_queue(fast_dir, read_only=read_only)
            assert refused.value.offset == whole
        return
    queue = open_queue(fast_dir)
    assert len(queue) == ends.index(whole)
    assert queue.recovery.offset == whole


@pytest.mark.contract("LOG-07")
def test_any_single_flipped_bit_is_noticed(open_queue, fast_dir, clock):
    log = small_log(fast_dir, clock)
    data = log.read_bytes()
    for offset in range(len(data)):
        flip(log, offset, 1 << offset % 8)
        before = files_of(fast_dir)
        with pytest.raises(CorruptLogError):
            open_queue(fast_dir)
        assert files_of(fast_dir) == before
        flip(log, offset, 1 << offset % 8)
    assert open_queue(fast_dir).stats().done == 1


@pytest.mark.parametrize(
    "odd",
    [
        record(10, {"id": "x"}),
        record(ENQUEUE, b"[1]"),
        record(ENQUEUE, b'{"id":"x","payload":}'),
        record(ENQUEUE, {"id": "x", "state": "sleeping"}),
        record(2, {"id": "x"}),
        record(4, {"at": 1}),
    ],
)
def test_a_record_that_version_1_cannot_have_written_is_refused_with_its_offset(open_queue, fast_dir, odd):
    log = write_log(fast_dir, [record(8, {"at": 1.0}), odd])
    before = files_of(fast_dir)
    for read_only in (True, False):
        with pytest.raises(CorruptLogError) as refused:
            open_queue(fast_dir, read_only=read_only)
        assert refused.value.offset == boundaries(log.read_bytes())[1]
    assert {name: data for name, data in files_of(fast_dir).items() if not name.endswith(".lock")} == before


# --- which log is the live one


def test_an_interrupted_first_compaction_of_version_1_leaves_two_logs_and_no_pointer(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        plain(old, clock)
    jobs = old_jobs(fast_dir)
    copy = fast_dir.parent / "copy"
    shutil.copytree(fast_dir, copy)
    with opened(copy, clock) as old:
        old.compact()
    shutil.copy(copy / "default.000001.log", fast_dir)
    assert jobs_of(open_queue(fast_dir, read_only=True)) == jobs
    assert jobs_of(open_queue(fast_dir)) == jobs
    assert live_log(fast_dir).name == "default.000002.log"


@pytest.mark.contract("LOG-10")
def test_a_lost_pointer_of_version_1_is_not_taken_for_one_that_never_was(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        old.enqueue("a")
    shutil.copy(fast_dir / "default.000000.log", fast_dir.parent)
    with opened(fast_dir, clock) as old:
        old.compact()
        old.enqueue("b")
    (fast_dir / "default.current").unlink()
    for both in (False, True):
        if both:
            shutil.copy(fast_dir.parent / "default.000000.log", fast_dir)
        before = files_of(fast_dir)
        for read_only in (False, True):
            with pytest.raises(PointerError):
                open_queue(fast_dir, read_only=read_only)
        assert files_of(fast_dir) == before


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("begins", "error", "says"),
    [
        (version1.header(0, 3), UnsupportedVersionError, "version 3.*version 2"),
        (version1.header(0, 2), PointerError, "default.current"),
        (version1.header(1, 1), CorruptLogError, "generation 1, the file name 0"),
        (b"nobroker" + version1.header(0, 1)[8:], CorruptLogError, "not a nobroker log"),
        (b"NOBROKER", CorruptLogError, "8 of 16 bytes"),
    ],
)
def test_a_lone_log_that_is_none_of_version_1_is_called_what_it_is(
    open_queue, fast_dir, begins, error, says, read_only
):
    write_log(fast_dir, []).write_bytes(begins)
    before = files_of(fast_dir)
    with pytest.raises(error, match=says):
        open_queue(fast_dir, read_only=read_only)
    assert {name: data for name, data in files_of(fast_dir).items() if not name.endswith(".lock")} == before


@pytest.mark.parametrize("version", [0, 3, 4, 65535])
def test_another_version_than_1_and_2_is_refused_by_name_and_nothing_is_written(open_queue, fast_dir, version):
    with open_queue(fast_dir) as queue:
        queue.enqueue(1)
    log = live_log(fast_dir)
    log.write_bytes(version1.header(1, version) + log.read_bytes()[16:])
    before = files_of(fast_dir)
    for read_only in (False, True):
        with pytest.raises(UnsupportedVersionError, match=f"version {version}.*version 2"):
            open_queue(fast_dir, read_only=read_only)
    assert files_of(fast_dir) == before


def test_a_payload_that_would_not_fit_is_refused_and_nothing_is_changed(open_queue, fast_dir, clock):
    with opened(fast_dir, clock) as old:
        old.enqueue("x" * (8 * 1024 * 1024 - 300), job_id="huge")
    before = files_of(fast_dir)
    with pytest.raises(StorageError, match="'huge'"):
        open_queue(fast_dir)
    after = files_of(fast_dir)
    assert after["default.000000.log"] == before["default.000000.log"]
    with opened(fast_dir, clock) as old:
        old.ack(old.lease_one())
        old.compact()
        old.enqueue("y" * (8 * 1024 * 1024 - 2000), job_id="large")
    queue = open_queue(fast_dir)
    for _ in range(2):
        queue.nack(queue.lease_one(), error="e" * 10_000, delay=0)
        queue.compact()
    assert len(queue.get("large").payload) == 8 * 1024 * 1024 - 2000


# --- crashes


def assert_old_or_new(directory: Path, jobs: list[dict], clock) -> bool:
    """Either version 1 still has its queue, or ours is complete; then ours opens. Whether it was the old one."""
    live = live_log(directory) if (directory / "default.current").exists() else directory / "default.000000.log"
    is_old = live.read_bytes()[8] == 1
    if is_old:
        assert old_jobs(directory) == jobs
    queue = Queue(directory, clock=clock)
    try:
        assert jobs_of(queue) == jobs
        queue.enqueue("goes on")
        queue.compact()
        assert len(list(directory.glob("*.log"))) == 1
        assert not list(directory.glob("*.tmp"))
    finally:
        queue.close()
    return is_old


def laid_out(directory: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)


@pytest.fixture(params=["without a pointer", "with one", "with a torn tail"])
def prepared(request, fast_dir, clock):
    """The files of a small queue of version 1, and its jobs."""
    log = small_log(fast_dir, clock)
    if request.param == "with one":
        with opened(fast_dir, clock) as old:
            old.compact()
            old.nack(old.lease_one(), error="no")
    elif request.param == "with a torn tail":
        log.write_bytes(log.read_bytes() + record(ENQUEUE, {"id": "torn"})[:-3])
    return fast_dir, files_of(fast_dir), old_jobs(fast_dir)


@pytest.mark.contract("LOG-05", "COMP-02")
@pytest.mark.parametrize("half", [False, True])
def test_a_conversion_that_is_killed_at_any_call(prepared, clock, half):
    directory, files, jobs = prepared
    outcomes = []
    for at in range(1000):
        laid_out(directory, files)
        dying = Dying(at, half=half)
        status = in_child(partial(Queue, directory, clock=clock, files=dying))
        outcomes.append(assert_old_or_new(directory, jobs, clock))
        if status != Dying.EXIT_CODE:
            break
    assert outcomes == sorted(outcomes, reverse=True)
    assert 20 < sum(outcomes) < len(outcomes) - 5


@pytest.mark.contract("API-03")
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_conversion_of_which_any_call_is_refused(prepared, clock, error):
    directory, files, jobs = prepared
    refused = 0
    for at in range(1000):
        laid_out(directory, files)
        failing = Failing()
        failing.arm(at, error, kinds=ALL)
        try:
            Queue(directory, clock=clock, files=failing).close()
        except CorruptLogError as damage:
            raise AssertionError(f"{failing.hit}: a fault that passed was taken for damage") from damage
        except NobrokerError:
            refused += 1
        assert assert_old_or_new(directory, jobs, clock) in (True, False)
        if failing.hit is None:
            break
    assert refused > 5


@pytest.mark.contract("LOG-05", "COMP-02")
def test_a_power_cut_at_any_moment_of_a_conversion(prepared, clock):
    directory, files, jobs = prepared
    trace = TraceFiles.over(directory, files)
    Queue(directory, clock=clock, files=trace).close()
    rng, disk, seen, outcomes = random.Random(3), Disk(), set(), set()
    scratch = directory.parent / "scratch"
    found = sum(event.kind == "found" for event in trace.trace)
    for number, event in enumerate(trace.trace):
        disk.apply(event)
        for _ in range(6 if number >= found - 1 else 0):
            image = disk.draw(rng)
            key = hash(frozenset(image.items()))
            if key in seen:
                continue
            seen.add(key)
            shutil.rmtree(scratch, ignore_errors=True)
            write_image(image, scratch)
            outcomes.add(assert_old_or_new(scratch, jobs, clock))
    assert outcomes == {True, False}
    assert len(seen) > 10


def test_the_clock_of_the_fixtures_is_the_one_of_version_1(fast_dir):
    """The comparisons above would prove little if version 1 ran on another clock."""
    clock = FakeClock(5.0)
    with opened(fast_dir, clock) as old:
        assert old.enqueue(1).enqueued_at == 5.0
    wait_until(lambda: (fast_dir / "default.lock").exists(), "the lock file")
