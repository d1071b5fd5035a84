"""ENQ-01 to ENQ-08: what holds when ``enqueue`` returns, and what holds when it raises."""

import errno
import json
import math
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import (
    InvalidOptionError,
    JobConflictError,
    JobNotFoundError,
    JobState,
    Queue,
    SerializationError,
    StorageError,
)
from nobroker_django.engine import payload as payload_module
from tests.support.bytes import log_bytes, log_end

from .helpers import (
    ENQUEUE,
    FailingFiles,
    RecordingFiles,
    live_log,
    read_log,
    run_python,
    start_python,
)

LOG_WRITES = ("write", "pwrite", "allocate", "datasync", "sync", "truncate")


def log_calls(files: RecordingFiles) -> list[str]:
    return [call.name for call in files.record.on(".log", *LOG_WRITES)]


# --- ENQ-01


@pytest.mark.contract("ENQ-01")
@pytest.mark.parametrize(
    "add",
    [
        lambda queue: queue.enqueue("x"),
        lambda queue: queue.enqueue("x", job_id="mine"),
        lambda queue: queue.enqueue_many(["x", "y"]),
        lambda queue: queue.enqueue_many(["x", "y"], job_ids=["a", None]),
    ],
)
def test_the_log_is_synced_after_the_job_was_written_and_before_the_call_returns(open_queue, add):
    files = RecordingFiles()
    queue = open_queue(files=files)
    files.record.clear()
    add(queue)
    assert log_calls(files) == ["pwrite", "datasync"]


@pytest.mark.contract("ENQ-01")
def test_a_new_queue_is_durable_with_its_directory_entry(open_queue, queue_dir):
    files = RecordingFiles()
    open_queue(files=files).enqueue(1)
    names = [(call.name, Path(call.path).suffix or "directory") for call in files.record.calls]
    log_named = names.index(("rename", ".log"))
    pointer_named = names.index(("rename", ".current"))
    assert ("sync", "directory") in names[log_named:pointer_named]
    assert ("sync", "directory") in names[pointer_named:]
    assert ("sync", ".tmp") in names[:log_named] or ("sync", ".log") in names[:pointer_named]


@pytest.mark.contract("ENQ-01")
def test_the_verb_has_not_returned_while_the_sync_is_under_way(open_queue):
    syncing, go_on, returned = threading.Event(), threading.Event(), threading.Event()

    def before(call):
        if armed and call.name == "datasync" and call.path.endswith(".log"):
            syncing.set()
            assert go_on.wait(60)

    armed = False
    queue = open_queue(files=RecordingFiles(before))
    armed = True
    thread = threading.Thread(target=lambda: (queue.enqueue(1), returned.set()))
    thread.start()
    assert syncing.wait(60)
    assert not returned.is_set()
    go_on.set()
    thread.join(60)
    assert returned.is_set()


@pytest.mark.contract("ENQ-01")
def test_without_fsync_nothing_is_synced_and_the_documentation_says_not_durable(open_queue):
    files = RecordingFiles()
    queue = open_queue(files=files, fsync=False)
    files.record.clear()
    queue.enqueue(1)
    queue.enqueue_many([2, 3], job_ids=["a", "b"])
    assert log_calls(files) == ["pwrite", "pwrite"]
    assert "not durable" in Queue.__doc__


# --- ENQ-02, ENQ-03: the values are tried one by one in tests/unit/engine/test_payload.py


@pytest.mark.contract("ENQ-02")
def test_a_payload_comes_back_equal_in_type_and_digits(open_queue):
    value = {
        "ints": [0, -1, 2**63, -(2**64), 10**600],
        "floats": [0.1, -0.0, 1e22, 5e-324, 1.7976931348623157e308, 1.0],
        "text": ["", "\x00\x1f\x7f", "\u2028\ufeff\uffff", "e\u0301", "\U0001f600"],
        "rest": [None, True, False, {}, [], {"": {"a b": [[]]}}],
    }
    first = open_queue()
    job_id = first.enqueue(value).id
    assert repr(first.get(job_id).payload) == repr(value)
    first.close()
    second = open_queue()
    assert repr(second.get(job_id).payload) == repr(value)
    second.compact()
    assert repr(second.lease_one().payload) == repr(value)


@pytest.mark.contract("ENQ-02")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1: "a"}, "payload"),
        ({"a": [1, math.nan]}, 'payload["a"][1]'),
        ([[-math.inf]], "payload[0][0]"),
        ({"a": {"b": "\ud800"}}, 'payload["a"]["b"]'),
        ([b"x"], "payload[0]"),
        ([1, {2}], "payload[1]"),
        (object(), "payload"),
    ],
)
def test_what_json_would_change_is_refused_with_its_path_and_nothing_is_written(open_queue, value, path):
    files = RecordingFiles()
    queue = open_queue(files=files)
    files.record.clear()
    with pytest.raises(SerializationError) as refused:
        queue.enqueue(value)
    assert refused.value.path == path
    assert path in str(refused.value)
    with pytest.raises(SerializationError) as refused:
        queue.enqueue_many([0, value])
    assert refused.value.path == path.replace("payload", "payloads[1]", 1)
    assert files.record.named("write", "pwrite") == []


@pytest.mark.contract("ENQ-02")
def test_a_tuple_comes_back_as_a_list(queue):
    assert queue.get(queue.enqueue({"a": (1, (2, ()))}).id).payload == {"a": [1, [2, []]]}


@pytest.mark.contract("ENQ-03")
def test_the_largest_payload_is_stored_and_one_byte_more_is_refused_before_anything_is_written(open_queue, queue_dir):
    queue = open_queue()
    room = payload_module.MAX_PAYLOAD_BYTES - 2
    largest = "x" * (room - 3) + "€"
    job = queue.enqueue(largest, job_id="i" * 200, meta={"m": "y" * 8000})
    size = log_end(live_log(queue_dir))
    with pytest.raises(SerializationError, match=f"limit is {payload_module.MAX_PAYLOAD_BYTES}"):
        queue.enqueue(largest + "x")
    assert log_end(live_log(queue_dir)) == size
    queue.close()
    again = open_queue()
    assert again.get(job.id).payload == largest
    again.compact()
    assert again.lease_one().payload == largest


@pytest.mark.contract("ENQ-03")
def test_nesting_that_could_not_be_read_back_is_refused_and_the_deepest_allowed_comes_back(queue):
    deepest: Any = None
    for _ in range(payload_module.MAX_DEPTH):
        deepest = [deepest]
    assert queue.get(queue.enqueue(deepest).id).payload == deepest
    with pytest.raises(SerializationError, match="nested"):
        queue.enqueue([deepest])
    bottomless: list[object] = []
    bottomless.append(bottomless)
    with pytest.raises(SerializationError, match="nested"):
        queue.enqueue(bottomless)
    assert len(queue) == 1


# --- ENQ-04


@pytest.mark.contract("ENQ-04")
def test_a_known_id_returns_the_existing_job_in_every_state_and_adds_nothing(open_queue, queue_dir):
    queue = open_queue(retention=100)
    first = queue.enqueue({"n": 1, "m": 2}, job_id="once")
    assert first.created

    def again():
        before = live_log(queue_dir).read_bytes()
        job = queue.enqueue({"m": 2, "n": 1}, job_id="once")
        assert live_log(queue_dir).read_bytes() == before
        assert not job.created
        return job.state

    assert again() is JobState.READY
    leased = queue.lease_one()
    assert again() is JobState.LEASED
    queue.nack(leased, delay=0)
    leased = queue.lease_one()
    queue.ack(leased)
    assert again() is JobState.DONE
    buried = queue.enqueue({"n": 1}, job_id="dead", max_attempts=1)
    queue.nack(queue.lease_one())
    known = queue.enqueue({"n": 1}, job_id="dead")
    assert (known.created, known.state, known.id) == (False, JobState.DEAD, buried.id)
    assert queue.stats().enqueued_total == 2


@pytest.mark.contract("ENQ-04")
def test_a_finished_id_is_known_for_the_retention_time_whenever_compaction_runs(open_queue, clock):
    """C89."""
    queue = open_queue(retention=100)
    queue.enqueue(1, job_id="x")
    queue.ack(queue.lease_one(), result="r")
    clock.advance(99)
    assert not queue.enqueue(1, job_id="x").created
    with pytest.raises(JobConflictError):
        queue.enqueue(2, job_id="x")
    queue.compact()
    with pytest.raises(JobConflictError):
        queue.enqueue(2, job_id="x")
    assert open_queue(name="another").enqueue(2, job_id="x").created
    known = queue.enqueue(1, job_id="x")
    assert (known.created, known.state, known.result) == (False, JobState.DONE, "r")
    clock.advance(1)
    assert queue.enqueue(1, job_id="x").created
    assert [job.id for job in queue.list_jobs()] == ["x"]
    assert queue.lease_one().id == "x"


@pytest.mark.contract("ENQ-04")
def test_without_retention_the_id_is_free_when_the_job_is_done(queue):
    queue.enqueue(1, job_id="x")
    queue.ack(queue.lease_one())
    assert queue.enqueue(2, job_id="x").created


@pytest.mark.contract("ENQ-04")
def test_the_retention_of_the_ack_counts_and_not_that_of_the_process_that_asks(open_queue):
    open_queue(retention=100).enqueue(1, job_id="x")
    acker = open_queue(retention=100)
    acker.ack(acker.lease_one())
    assert not open_queue(retention=0).enqueue(1, job_id="x").created


@pytest.mark.contract("ENQ-04")
def test_another_payload_under_a_known_id_is_reported_also_after_compaction(queue):
    queue.enqueue({"n": 1}, job_id="x")
    for _ in range(2):
        with pytest.raises(JobConflictError):
            queue.enqueue({"n": 1.0}, job_id="x")
        queue.compact()
    assert [job.payload for job in queue.list_jobs()] == [{"n": 1}]


@pytest.mark.contract("ENQ-04")
def test_ids_are_idempotent_within_one_enqueue_many(queue):
    queue.enqueue("old", job_id="old")
    jobs = queue.enqueue_many(["a", "a", "old", "b"], job_ids=["one", "one", "old", None])
    assert [job.created for job in jobs] == [True, False, False, True]
    assert [job.payload for job in queue.list_jobs()] == ["old", "a", "b"]
    assert jobs[0].seq == jobs[1].seq


@pytest.mark.contract("ENQ-04")
@pytest.mark.parametrize("ids", [["n1", "n2", "old"], ["same", "n2", "same"]])
def test_one_conflict_refuses_the_whole_enqueue_many(queue, queue_dir, ids):
    queue.enqueue("old", job_id="old")
    before = live_log(queue_dir).read_bytes()
    with pytest.raises(JobConflictError):
        queue.enqueue_many([1, 2, 3], job_ids=ids)
    assert live_log(queue_dir).read_bytes() == before


TEN_PROCESSES = """
import sys
from nobroker_django import Queue
queue = Queue(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
print(sum(queue.enqueue({"n": n}, job_id=f"job-{n}").created for n in range(20)))
"""


@pytest.mark.contract("ENQ-04")
def test_ten_processes_with_the_same_ids_at_once_make_each_job_once(open_queue, queue_dir):
    children = [start_python(TEN_PROCESSES, queue_dir) for _ in range(10)]
    for child in children:
        assert child.stdout.readline() == "open\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    created = [int(child.communicate(timeout=60)[0]) for child in children]
    assert [child.returncode for child in children] == [0] * 10
    assert sum(created) == 20
    jobs = open_queue().list_jobs()
    assert sorted(job.payload["n"] for job in jobs) == list(range(20))


# --- ENQ-05: every byte offset is tried in tests/crash


@pytest.mark.contract("ENQ-02")
@pytest.mark.parametrize("values", [[{"k": 1}, {"k": -0.0, "l": None}], [{"k": [1]}, {"k": (1,)}], ["a", {"k": 1}]])
def test_payloads_of_enqueue_many_come_back_as_stored_and_are_nobody_elses(queue, values):
    jobs = queue.enqueue_many(values)
    stored = [repr(queue.get(job.id).payload) for job in jobs]
    for value in values:
        if isinstance(value, dict):
            value["later"] = True
    assert [repr(job.payload) for job in jobs] == stored


@pytest.mark.contract("ENQ-05")
def test_enqueue_many_is_one_write_and_one_batch(open_queue, queue_dir):
    files = RecordingFiles()
    queue = open_queue(files=files)
    files.record.clear()
    queue.enqueue_many(range(1000))
    assert log_calls(files) == ["allocate", "pwrite", "datasync"]
    jobs = [record.body for record in read_log(live_log(queue_dir)) if record.type == ENQUEUE]
    assert jobs[0]["n"] == 1000
    assert not any("n" in job for job in jobs[1:])


@pytest.mark.contract("ENQ-05")
def test_a_batch_of_which_a_crash_left_a_part_is_not_there_at_all(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("before")
    log = live_log(queue_dir)
    certain = log_end(log)
    whole = []

    def before(call):
        if call.name == "pwrite" and call.path.endswith(".log"):
            whole.append(call.data)

    other = open_queue(files=RecordingFiles(before), fsync=False)
    whole.clear()
    other.enqueue_many(["a", "b", "c"])
    other.close()
    queue.close()
    data = log.read_bytes()[:certain] + whole[0]
    for cut in (1, 20, len(whole[0]) // 2, len(whole[0]) - 1):
        (queue_dir / "default.lock").unlink(missing_ok=True)
        log.write_bytes(data[:-cut])
        with Queue(queue_dir) as after:
            assert [job.payload for job in after.list_jobs()] == ["before"]
            assert after.recovery.repaired
    (queue_dir / "default.lock").unlink()
    log.write_bytes(data)
    with Queue(queue_dir) as after:
        assert [job.payload for job in after.list_jobs()] == ["before", "a", "b", "c"]


@pytest.mark.contract("ENQ-05")
def test_the_answer_that_an_id_exists_waits_until_what_was_seen_is_durable(open_queue):
    careless = open_queue(fsync=False)
    careless.enqueue(1, job_id="x")
    files = RecordingFiles()
    careful = open_queue(files=files)
    files.record.clear()
    assert not careful.enqueue(1, job_id="x").created
    assert log_calls(files) == ["datasync"]
    files.record.clear()
    assert not careful.enqueue(1, job_id="x").created
    assert log_calls(files) == []


# --- ENQ-06


@pytest.mark.contract("ENQ-06")
@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("delay", [math.nan, math.inf, -math.inf, -1, -1e-9, "10", True, None, [1], 10**400, 1e12]),
        ("priority", [math.nan, math.inf, 1.5, 1.0, "10", True, None, 2**31, -(2**31) - 1]),
        ("max_attempts", [math.nan, 0, -1, 1.5, "10", True, 2**31]),
        ("visibility_timeout", [math.nan, math.inf, 0, -1, "10", True]),
        ("job_id", ["", "x" * 201, 5, b"x", "\ud800", True]),
    ],
)
def test_options_are_validated_by_name(open_queue, option, values):
    files = RecordingFiles()
    queue = open_queue(files=files)
    files.record.clear()
    for value in values:
        with pytest.raises(InvalidOptionError) as refused:
            queue.enqueue(1, **{option: value})
        assert refused.value.option == option, value
        assert option in str(refused.value)
    assert files.record.named("write", "pwrite") == []


@pytest.mark.contract("ENQ-06")
@pytest.mark.parametrize(
    ("option", "values"),
    [("priority", [0, "x"]), ("delay", [0, -1]), ("max_attempts", [1, 0]), ("visibility_timeout", [1, 0])],
)
def test_one_bad_option_in_a_sequence_refuses_the_whole_enqueue_many(queue, option, values):
    with pytest.raises(InvalidOptionError) as refused:
        queue.enqueue_many([1, 2], **{option: values})
    assert refused.value.option == option
    with pytest.raises(InvalidOptionError) as refused:
        queue.enqueue_many([1, 2], **{option: [1]})
    assert refused.value.option == option
    assert len(queue) == 0


@pytest.mark.contract("ENQ-06")
def test_an_explicit_zero_is_never_replaced_by_a_default(open_queue, clock):
    queue = open_queue(max_attempts=7)
    job = queue.enqueue(1, priority=0, delay=0)
    assert (job.priority, job.available_at) == (0, clock())
    leased = queue.lease_one(timeout=0)
    failed = queue.nack(leased, delay=0)
    assert failed.available_at == clock()
    assert queue.lease_one().attempts == 2
    assert queue.list_jobs(limit=0) == []
    for option in ("visibility_timeout",):
        with pytest.raises(InvalidOptionError):
            queue.lease(**{option: 0})
    with pytest.raises(InvalidOptionError):
        queue.enqueue(1, max_attempts=0)
    with pytest.raises(InvalidOptionError):
        queue.lease(0)


@pytest.mark.contract("ENQ-06")
def test_the_limits_themselves_are_allowed(queue):
    jobs = queue.enqueue_many([1, 2], priority=[2**31 - 1, -(2**31)], delay=[0.0, 1e9], max_attempts=[1, 2**31 - 1])
    assert [job.priority for job in queue.list_jobs()] == [job.priority for job in jobs]
    assert queue.enqueue(1, job_id="ü" * 200).id == "ü" * 200


# --- ENQ-07


def cost_of_one_enqueue(queue: Queue, files: RecordingFiles) -> tuple[int, int]:
    files.record.clear()
    queue.enqueue("one more")
    return len(files.record.calls), files.record.bytes_read


@pytest.mark.contract("ENQ-07")
def test_the_cost_of_an_enqueue_does_not_grow_with_the_queue(open_queue):
    files = RecordingFiles()
    queue = open_queue(files=files)
    queue.enqueue("first")
    empty = cost_of_one_enqueue(queue, files)
    for _ in range(3):
        queue.enqueue_many(["some text"] * 5000)
    assert cost_of_one_enqueue(queue, files) == empty
    assert empty[0] < 20
    assert empty[1] < 1000


@pytest.mark.contract("ENQ-07")
@pytest.mark.parametrize("alone", [True, False])
def test_a_fresh_process_pays_no_start_up_for_an_enqueue(open_queue, queue_dir, alone):
    """The first opener reads the last write again, to find damage in it; nobody reads what is before."""
    with Queue(queue_dir) as first:
        first.enqueue_many(["some text"] * 20_000)
        first.enqueue("the last write")
    other = None if alone else open_queue()
    size = log_end(live_log(queue_dir))
    files = RecordingFiles()
    queue = open_queue(files=files)
    queue.enqueue("mine")
    assert files.record.bytes_read < 20_000 < size
    assert len(files.record.calls) < 100
    assert (queue_dir / "default.run").exists() is False  # no projection was needed
    del other


# --- ENQ-08

FILE_SIZE_LIMIT = """
import json, resource, sys
from nobroker_django import Queue, StorageError
from tests.support.bytes import log_end
queue = Queue(sys.argv[1])
stored = [queue.enqueue("before").id]
size = log_end(queue.path)
soft = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, soft[1]))
refused = 0
for add in (lambda: queue.enqueue("x" * 700), lambda: queue.enqueue_many(["y" * 700] * 20)):
    while True:
        try:
            new = add()
        except StorageError as error:
            assert error.stored is False, error
            refused += 1
            break
        stored += [job.id for job in (new if isinstance(new, list) else [new])]
end = log_end(queue.path)
assert size + 4000 < end <= size + 5000
for _ in range(3):
    try:
        queue.enqueue("z" * 6000)
    except StorageError:
        refused += 1
assert log_end(queue.path) == end            # no part of it stays
resource.setrlimit(resource.RLIMIT_FSIZE, soft)
stored.append(queue.enqueue("after").id)
assert not queue.recovery.repaired
print(json.dumps([stored, refused]))
queue.close()
"""


@pytest.mark.contract("ENQ-08")
def test_at_a_file_size_limit_enqueue_raises_and_everything_goes_on_when_it_is_lifted(open_queue, queue_dir):
    stored, refused = json.loads(run_python(FILE_SIZE_LIMIT, queue_dir))
    assert refused == 5
    assert len(stored) > 4
    read_log(live_log(queue_dir))  # every record is whole
    queue = open_queue()
    assert not queue.recovery.repaired
    assert [job.id for job in queue.list_jobs()] == stored


@pytest.mark.contract("ENQ-08")
@pytest.mark.parametrize("written", [0, 1, 30])
def test_a_short_write_followed_by_an_error_leaves_no_part_behind(open_queue, queue_dir, written):
    class ShortFiles(RecordingFiles):
        armed = False
        short = False

        def pwrite(self, fd, data, offset):
            if self.armed and self.paths[fd].endswith(".log"):
                if len(data) <= 30 or not written or self.short:
                    raise OSError(errno.ENOSPC, "no space left")
                self.short = True
                return super().pwrite(fd, data[:written], offset)
            return super().pwrite(fd, data, offset)

    files = ShortFiles()
    queue = open_queue(files=files)
    queue.enqueue("before", job_id="before")
    before = log_bytes(live_log(queue_dir))
    files.armed = True
    with pytest.raises(StorageError) as full:
        queue.enqueue("lost", job_id="lost")
    assert full.value.stored is False
    assert live_log(queue_dir).read_bytes() == before
    files.armed = False
    with pytest.raises(JobNotFoundError):
        queue.get("lost")
    assert queue.enqueue("after", job_id="after").created
    assert [job.id for job in open_queue().list_jobs()] == ["before", "after"]


@pytest.mark.contract("ENQ-08")
def test_a_failed_write_that_cannot_be_taken_back_poisons_the_queue_until_the_tail_is_secured(open_queue, queue_dir):
    def matches(call):
        return call.path.endswith(".log") and call.name in ("pwrite", "truncate")

    files = FailingFiles(matches, OSError(errno.EIO, "gone"), times=2)
    files.armed = False
    queue = open_queue(files=files)
    queue.enqueue("before", job_id="before")
    files.armed = True
    with pytest.raises(StorageError) as unknown:
        queue.enqueue("lost", job_id="lost")
    assert unknown.value.stored is None
    assert queue.enqueue("after", job_id="after").created
    assert [job.id for job in queue.list_jobs()] == ["before", "after"]


PRODUCER = """
import json, sys
from nobroker_django import Queue, StorageError
queue = Queue(sys.argv[1])
print("open", flush=True)
stored = []
try:
    while True:
        stored.append(queue.enqueue("x" * 500).id)
except StorageError as error:
    assert error.stored is False, error
print(json.dumps(stored), flush=True)
sys.stdin.readline()
stored.append(queue.enqueue("after").id)
print(json.dumps(stored[-1:]), flush=True)
queue.close()
"""


@pytest.mark.contract("ENQ-08")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_on_a_full_disk_with_several_processes_nothing_is_lost_and_no_repair_is_needed(tmp_path, clock):
    """C64."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", mount], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        ballast = mount / "ballast"
        ballast.write_bytes(bytes(3_000_000))
        with Queue(mount / "queue") as queue:
            first = queue.enqueue("first")
            leased = queue.lease_one()
            children = [start_python(PRODUCER, mount / "queue") for _ in range(2)]
            for child in children:
                assert child.stdout.readline() == "open\n"
            stored = [job_id for child in children for job_id in json.loads(child.stdout.readline())]
            acked = _try_to_ack(queue, leased)
            ballast.unlink()
            for child in children:
                child.stdin.write("go\n")
                child.stdin.flush()
            stored += [job_id for child in children for job_id in json.loads(child.communicate(timeout=60)[0])]
            assert [child.returncode for child in children] == [0, 0]
            assert not queue.recovery.repaired
            if not acked:
                queue.ack(leased)
            assert queue.get(first.id).state is JobState.DONE
            assert {job.id for job in queue.list_jobs("ready")} == set(stored)
            assert len(stored) > 100
        read_log(live_log(mount / "queue"))
        assert list((mount / "queue").glob("*.torn-*")) == []
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def _try_to_ack(queue, job) -> bool:
    """An ack on the full disk is stored, or the job is leased as before."""
    try:
        queue.ack(job)
    except StorageError as error:
        return bool(error.stored)
    return True
