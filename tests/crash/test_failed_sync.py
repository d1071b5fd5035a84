"""A sync that fails once and then succeeds: nothing is believed until the bytes have been written again."""

import errno
import threading
from pathlib import Path

import pytest

from nobroker_django import NobrokerError, OutcomeUnknownError, Queue, QueueClosedError, StorageError
from tests.support.bytes import append_to, log_end
from tests.support.faulty import Call, Failing, Hooked, Recorder
from tests.support.procs import Child, Diary, run_all
from tests.support.scripts import open_queue

pytestmark = [pytest.mark.contract("LOG-09", "API-03")]
LOG = "default.000001.log"


def fail_one_sync(directory: Path, files: Failing, key: str) -> OutcomeUnknownError:
    """Enqueue while the log's next sync fails."""
    queue = open_queue(directory, files)
    files.arm(0, errno.EIO, kinds=frozenset({"datasync"}), path=".log")
    with pytest.raises(OutcomeUnknownError) as caught:
        queue.enqueue({"k": key}, job_id=key)
    assert caught.value.stored is None
    assert caught.value.job_ids == (key,)
    files.kept = queue  # type: ignore[attr-defined]
    return caught.value


def written_again(calls: list[Call], start: int, stop: int) -> bool:
    """Whether ``[start, stop)`` of the log was written between the opening of the file and a sync of it."""
    covered = start
    for call in calls:
        if call.path.endswith(LOG) and call.kind == "pwrite" and call.arguments[1] <= covered:
            covered = max(covered, call.arguments[1] + len(call.arguments[0]))
        if call.path.endswith(LOG) and call.kind == "datasync":
            return covered >= stop
    return False


@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("verb", ["enqueue", "known id", "ack", "close"])
def test_the_next_writer_writes_the_doubtful_bytes_again(fast_path: Path, opened: str, verb: str):
    files, recorder = Failing(), Recorder()
    other = None
    with open_queue(fast_path) as queue:
        queue.enqueue({"k": "first"})
        lease, log = queue.lease_one(), queue.path
        queue.enqueue({"k": "second"})
        if opened == "before":
            other = open_queue(fast_path, recorder)
            other.stats()
        size = log_end(log)
        fail_one_sync(fast_path, files, "doubtful")
        stop = log_end(log)
        assert stop > size
        other = other or open_queue(fast_path, recorder)
        if opened == "before":
            recorder.calls.clear()
        if verb == "enqueue":
            other.enqueue({"k": "third"})
        elif verb == "known id":
            assert not other.enqueue({"k": "doubtful"}, job_id="doubtful").created
        elif verb == "ack":
            other.ack(lease)
        other.close()
        if verb != "close" or opened == "after":
            assert written_again(recorder.calls, size, stop), [str(call) for call in recorder.calls]
        files.kept.close()  # type: ignore[attr-defined]
        assert "doubtful" in {job.payload["k"] for job in queue.list_jobs()}


def use(directory: Path, diary: Diary, key: str) -> None:
    with open_queue(directory) as queue:
        queue.enqueue({"k": key})
        diary.write(key)


def test_other_processes_go_on_after_a_failed_sync(fast_path: Path):
    diary, errors = Diary(fast_path / "diary"), Diary(fast_path / "errors")
    directory, files = fast_path / "queue", Failing()
    fail_one_sync(directory, files, "doubtful")
    run_all([Child(use, directory, diary, f"p{number}", errors=errors) for number in range(4)])
    files.kept.enqueue({"k": "same object"})  # type: ignore[attr-defined]
    shown = [job.payload["k"] for job in files.kept.list_jobs()]  # type: ignore[attr-defined]
    assert sorted(shown) == ["doubtful", "p0", "p1", "p2", "p3", "same object"]
    files.kept.close()  # type: ignore[attr-defined]
    assert errors.size() == 0
    diary.close()
    errors.close()


@pytest.mark.parametrize("waiters", [1, 3])
def test_whoever_waits_for_a_sync_that_fails_gets_no_success_without_a_rewrite(fast_path: Path, waiters: int):
    """Threads with handles of their own enqueue; the sync that they share fails. Each outcome is right."""
    failing, recorder = Failing(), Recorder()
    first = open_queue(fast_path, failing)
    others = [open_queue(fast_path, recorder) for _ in range(waiters)]
    log = first.path
    size = log_end(log)
    outcomes: dict[str, object] = {}
    in_sync, go = threading.Event(), threading.Event()

    def enqueue(queue: Queue, key: str) -> None:
        try:
            outcomes[key] = queue.enqueue({"k": key}).created
        except NobrokerError as error:
            outcomes[key] = error

    plain = failing.before

    def slow(call: Call) -> Call:
        if call.kind == "datasync" and call.path.endswith(".log") and not in_sync.is_set():
            in_sync.set()
            assert go.wait(60)
        return plain(call)

    failing.before = slow  # type: ignore[method-assign]
    failing.arm(0, errno.EIO, kinds=frozenset({"datasync"}), path=".log")
    threads = [threading.Thread(target=enqueue, args=(first, "first"))]
    threads[0].start()
    assert in_sync.wait(60)
    recorder.calls.clear()
    for number, queue in enumerate(others):
        threads.append(threading.Thread(target=enqueue, args=(queue, f"other {number}")))
        threads[-1].start()
    while sum(call.kind == "pwrite" and call.path.endswith(LOG) for call in recorder.calls) < waiters:
        pass
    appended = len(recorder.calls)
    stop = log_end(log)
    go.set()
    for thread in threads:
        thread.join(60)
    assert isinstance(outcomes["first"], OutcomeUnknownError)
    assert [outcomes[f"other {number}"] for number in range(waiters)] == [True] * waiters
    assert written_again(recorder.calls[appended:], size, stop)
    for queue in (first, *others):
        queue.close()
    with open_queue(fast_path) as queue:
        assert len(queue.list_jobs()) == 1 + waiters


def test_a_disk_that_fails_every_sync_refuses_every_promise_and_recovers(fast_path: Path):
    files = Failing()
    queue = open_queue(fast_path, files, lock_timeout=1.0)
    queue.enqueue({"k": "first"})
    files.arm(0, errno.EIO, kinds=frozenset({"datasync"}), times=1000)
    for key in ("a", "b", "c"):
        with pytest.raises(StorageError) as caught:
            queue.enqueue({"k": key})
        assert caught.value.stored is not True
    with pytest.raises(NobrokerError):
        Queue(fast_path, files=files, lock_timeout=1.0)
    files.disarm()
    queue.enqueue({"k": "last"})
    shown = [job.payload["k"] for job in queue.list_jobs()]
    assert shown[0] == "first"
    assert shown[-1] == "last"
    queue.close()


def test_what_is_written_is_never_said_to_be_not_stored(fast_path: Path):
    """The append succeeds, then everything that waiting for durability needs fails in one way or another."""
    for error_source in ("datasync", "pread", "lock_byte", "pwrite", "closed"):
        files, directory = Hooked(), fast_path / error_source
        queue = open_queue(directory, files, lock_timeout=1.0)
        queue.enqueue({"k": "first"})
        written: list[Call] = []

        def hook(
            call: Call, error_source: str = error_source, written: list[Call] = written, queue: Queue = queue
        ) -> None:
            appended = not written and call.kind == "pwrite" and call.path.endswith(".log")
            if appended or (len(written) == 1 and call.kind == "funlock"):
                written.append(call)
            elif len(written) > 1 and call.kind == error_source:
                raise OSError(errno.EIO, "made up", call.path)
            elif len(written) == 2 and error_source == "closed":
                written.append(call)
                queue._session._lock_file.control.begin_sync()  # as a process leaves it that died in a sync
                queue._session._closed = True

        files.hook = hook
        with pytest.raises(NobrokerError) as caught:
            queue.enqueue({"k": "x"})
        files.hook = None
        assert caught.value.stored is None, (error_source, caught.value)
        if error_source == "closed":
            assert isinstance(caught.value, QueueClosedError | OutcomeUnknownError)
            queue._session._closed = False
        queue.close()
        with open_queue(directory) as queue:
            assert [job.payload["k"] for job in queue.list_jobs()] == ["first", "x"]


@pytest.mark.contract("LOG-05", "ENQ-08")
def test_a_torn_tail_on_a_full_disk_leaves_no_heap_of_copies(fast_path: Path):
    with open_queue(fast_path) as queue:
        queue.enqueue({"k": "first"})
        log = queue.path
    append_to(log, b"\x10")
    for _ in range(5):
        files = Failing()
        files.arm(0, errno.ENOSPC, times=1000)
        with pytest.raises(StorageError):
            open_queue(fast_path, files)
    assert not list(fast_path.glob("default.torn-*"))
    with open_queue(fast_path) as queue:
        assert queue.recovery.bytes_discarded == 1
        assert [job.payload["k"] for job in queue.list_jobs()] == ["first"]
    assert len(list(fast_path.glob("default.torn-*"))) == 1
