"""API-02 to API-04: works without Django, errors of one tree, jobs that are copies."""

import errno
import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest

from nobroker_django import (
    AlreadyDoneError,
    CorruptLogError,
    InvalidOptionError,
    JobConflictError,
    JobNotFoundError,
    NobrokerError,
    NotLeasedError,
    OutcomeUnknownError,
    Queue,
    QueueClosedError,
    SerializationError,
    StorageError,
)
from nobroker_django.engine import errors
from tests.support.bytes import log_end

from .helpers import FailingFiles, FakeClock, RecordingFiles, live_log, run_python

WITHOUT_DJANGO = """
import sys
sys.modules["django"] = None            # every import of it fails from here on
import pkgutil, importlib
import nobroker_django, nobroker_django.engine
for module in pkgutil.iter_modules(nobroker_django.engine.__path__):
    importlib.import_module(f"nobroker_django.engine.{module.name}")
from nobroker_django import BackoffPolicy, Job, JobState, Queue, QueueStats, Worker, WorkerStats
done = []
with Queue(sys.argv[1]) as queue:
    queue.enqueue({"n": 1})
    queue.enqueue({"n": 2})
    stats = Worker(queue, lambda job: done.append(job.payload["n"]), max_jobs=2).run()
    assert stats.succeeded == 2, stats
    queue.compact()
assert not [name for name in sys.modules if name.startswith("django.")]
print(done)
"""


@pytest.mark.contract("API-02")
def test_the_engine_works_where_django_cannot_even_be_imported(queue_dir):
    assert run_python(WITHOUT_DJANGO, queue_dir) == "[1, 2]\n"


@pytest.mark.contract("API-02")
def test_the_engine_works_with_django_installed_and_not_configured(queue_dir):
    code = WITHOUT_DJANGO.replace(
        'sys.modules["django"] = None', "import os; os.environ.pop('DJANGO_SETTINGS_MODULE', 0)"
    )
    assert run_python(code, queue_dir) == "[1, 2]\n"


# --- API-03


@pytest.mark.contract("API-03")
def test_every_error_derives_from_nobroker_error():
    classes = [
        value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    assert len(classes) > 10
    assert [cls for cls in classes if not issubclass(cls, NobrokerError)] == []


@pytest.mark.contract("API-03")
def test_a_lost_lease_an_ack_after_somebody_elses_and_a_damaged_disk_are_different_types(open_queue, queue_dir, clock):
    queue = open_queue(visibility_timeout=10)
    queue.enqueue("first")
    mine = queue.lease_one()
    clock.advance(11)
    theirs = queue.lease_one(timeout=0) or _after_backoff(queue, clock)
    with pytest.raises(NotLeasedError) as lost:
        queue.ack(mine)
    assert not isinstance(lost.value, AlreadyDoneError)
    assert (lost.value.job_id, lost.value.stored) == (mine.id, False)
    queue.ack(theirs)
    with pytest.raises(AlreadyDoneError) as done:
        queue.ack(mine)
    assert done.value.job_id == mine.id
    queue.close()
    log = live_log(queue_dir)
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(CorruptLogError) as damaged:
        open_queue()
    assert not isinstance(damaged.value, NotLeasedError)
    assert (damaged.value.path, damaged.value.offset) == (str(log), log_end(log))
    assert damaged.value.reason


def _after_backoff(queue: Queue, clock: FakeClock) -> Any:
    clock.advance(301)
    return queue.lease_one()


@pytest.mark.contract("API-03")
def test_errors_carry_their_facts_and_say_that_nothing_was_stored(queue):
    known = queue.enqueue(1, job_id="known")
    with pytest.raises(JobConflictError) as conflict:
        queue.enqueue(2, job_id="known")
    assert (conflict.value.job_id, conflict.value.queue, conflict.value.stored) == ("known", "default", False)
    with pytest.raises(JobNotFoundError) as missing:
        queue.get("nobody")
    assert (missing.value.job_id, missing.value.queue, missing.value.stored) == ("nobody", "default", False)
    with pytest.raises(InvalidOptionError) as option:
        queue.enqueue(1, delay=-1)
    assert (option.value.option, option.value.stored) == ("delay", False)
    assert isinstance(option.value, ValueError)
    with pytest.raises(SerializationError) as payload:
        queue.enqueue({"a": [1, {2}]})
    assert (payload.value.path, payload.value.stored) == ('payload["a"][1]', False)
    assert [job.id for job in queue.list_jobs()] == [known.id]


@pytest.mark.contract("API-03")
def test_a_full_disk_is_a_storage_error_with_path_errno_and_operation(open_queue):
    files = FailingFiles(
        lambda call: call.name == "pwrite" and call.path.endswith(".log"), OSError(errno.ENOSPC, "full")
    )
    files.armed = False
    queue = open_queue(files=files)
    files.armed = True
    with pytest.raises(StorageError) as full:
        queue.enqueue(1)
    assert (full.value.errno, full.value.operation, full.value.stored) == (errno.ENOSPC, "write to", False)
    assert full.value.path == str(queue.path)
    assert not isinstance(full.value, OSError)


@pytest.mark.contract("API-03")
def test_a_failed_sync_is_an_unknown_outcome_with_the_ids_of_the_jobs(open_queue):
    files = FailingFiles(
        lambda call: call.name == "datasync" and call.path.endswith(".log"), OSError(errno.EIO, "disk")
    )
    files.armed = False
    queue = open_queue(files=files)
    files.armed = True
    with pytest.raises(OutcomeUnknownError) as unknown:
        queue.enqueue_many([1, 2], job_ids=["a", "b"])
    assert unknown.value.stored is None
    assert unknown.value.job_ids == ("a", "b")


@pytest.mark.contract("API-03")
def test_a_closed_queue_says_so_for_every_verb(open_queue):
    queue = open_queue()
    job = queue.enqueue(1)
    queue.close()
    for verb in (
        lambda: queue.enqueue(1),
        lambda: queue.enqueue(1, job_id="x"),
        lambda: queue.lease(timeout=5),
        lambda: queue.ack(job),
        lambda: queue.nack(job),
        lambda: queue.extend(job, 1),
        queue.stats,
        queue.list_jobs,
        queue.compact,
        queue.purge,
    ):
        with pytest.raises(QueueClosedError):
            verb()
    queue.close()


def _prepare(path: Path, clock: FakeClock) -> str:
    """A queue with jobs in most states; the id of the dead letter."""
    with Queue(path, clock=clock) as queue:
        queue.enqueue_many(["r0", "r1", "r2"])
        queue.nack(queue.lease_one(), error="later", delay=1)
        dead = queue.enqueue("dead", max_attempts=1, priority=5)
        queue.nack(queue.lease_one(), error="no")
    return dead.id


def _scenario(directory: Path, clock: FakeClock, files: RecordingFiles, dead: str) -> tuple[list[str], set[str]]:
    """Every verb once: which ones let another error through than the package's own, and the jobs that were stored."""
    bare: list[str] = []
    stored: set[str] = set()

    def attempt(name: str, verb: Any) -> Any:
        try:
            return verb()
        except NobrokerError:
            return None
        except OSError as error:
            bare.append(f"{name}: {error!r}")
            return None

    queue = attempt("open", lambda: Queue(directory, clock=clock, files=files, lock_timeout=0.3))
    if queue is None:
        return bare, stored
    for name, add in (
        ("enqueue", lambda: [queue.enqueue("new")]),
        ("enqueue_many", lambda: queue.enqueue_many([1, 2])),
        ("enqueue with an id", lambda: [queue.enqueue("k", job_id="k")]),
        ("enqueue with a known id", lambda: [queue.enqueue("k", job_id="k")]),
    ):
        stored |= {job.id for job in attempt(name, add) or ()}
    jobs = attempt("lease", lambda: queue.lease(3)) or []
    for name, verb in zip(
        ("ack", "nack", "release"),
        (
            lambda job: queue.ack(job, result=1),
            lambda job: queue.nack(job, error="x"),
            lambda job: queue.release([job]),
        ),
        strict=True,
    ):
        if jobs:
            job = jobs.pop()
            attempt("extend", lambda job=job: queue.extend(job, 5))
            attempt(name, lambda job=job, verb=verb: verb(job))
    attempt("stats", queue.stats)
    attempt("list_jobs", queue.list_jobs)
    attempt("get", lambda: queue.get(dead))
    attempt("requeue_dead", queue.requeue_dead)
    attempt("compact", queue.compact)
    attempt("lease with a timeout", lambda: queue.lease(1, timeout=0.001))
    attempt("path", lambda: queue.path)
    attempt("close", queue.close)
    return bare, stored


@pytest.mark.contract("API-03")
@pytest.mark.parametrize("part", range(4))
def test_whatever_system_call_fails_no_bare_oserror_leaves_a_verb_and_nothing_stored_is_lost(memory_dir, clock, part):
    dead = _prepare(memory_dir / "before", clock)
    shutil.copytree(memory_dir / "before", memory_dir / "counted")
    counted = RecordingFiles()
    assert _scenario(memory_dir / "counted", clock, counted, dead)[0] == []
    assert len(counted.record.calls) > 200
    trouble = []
    for number, call in enumerate(counted.record.calls):
        if number % 4 != part:
            continue
        directory = memory_dir / str(number)
        shutil.copytree(memory_dir / "before", directory)
        files = FailingFiles(lambda call: True, OSError(errno.EIO, "made up"), skip=number)
        bare, stored = _scenario(directory, clock, files, dead)
        trouble += [f"call {number}, {call}: {text}" for text in bare]
        trouble += [f"call {number}, {call}: left {Path(path).name} open" for path in files.paths.values()]
        for fd in list(files.paths):
            files.close(fd)
        with Queue(directory, clock=clock) as after:
            lost = {
                job_id for job_id in stored - {job.id for job in after.list_jobs()} if not _was_acked(files, job_id)
            }
        trouble += [f"call {number}, {call}: stored and lost {job_id}" for job_id in lost]
        shutil.rmtree(directory)
    assert trouble == []


def _was_acked(files: RecordingFiles, job_id: str) -> bool:
    """Whether an ACK of the job was written: a compaction has then dropped it rightly."""
    return any(
        job_id.encode() in call.data and b"keep_until" in call.data for call in files.record.on(".log", "pwrite")
    )


# --- API-04


def _mutate(job: Any) -> None:
    job.payload["list"].append("changed")
    job.payload["new"] = True
    job.state = "done"
    job.attempts = 99
    job.errors.append("changed")
    job.priority = 77
    if job.meta is not None:
        job.meta["changed"] = True


@pytest.mark.contract("API-04")
def test_changing_a_returned_job_changes_nothing_in_the_queue(queue):
    payload: dict[str, list[Any]] = {"list": [1, 2]}
    returned = queue.enqueue(payload, job_id="a", meta={"m": 1})
    _mutate(returned)
    payload["list"].append("the caller's own value")
    known = queue.enqueue({"list": [1, 2]}, job_id="a")
    _mutate(known)
    _mutate(queue.get("a"))
    _mutate(queue.list_jobs()[0])
    leased = queue.lease_one()
    token = leased.lease_token
    _mutate(leased)
    _mutate(queue.get("a"))
    after = queue.get("a")
    assert after.payload == {"list": [1, 2]}
    assert (after.attempts, after.priority, after.errors, after.meta) == (1, 0, [], {"m": 1})
    leased.lease_token = token
    failed = queue.nack(leased, error="x", delay=0)
    _mutate(failed)
    again = queue.lease_one()
    assert (again.payload, again.attempts, len(again.errors)) == ({"list": [1, 2]}, 2, 1)


@pytest.mark.contract("API-04")
def test_a_payload_that_is_changed_after_the_call_is_stored_as_it_was(queue):
    payload = {"list": [1]}
    job = queue.enqueue(payload)
    payload["list"].append(2)
    assert job.payload == {"list": [1]}
    assert queue.lease_one().payload == {"list": [1]}
