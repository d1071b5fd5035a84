"""PROC-01 to PROC-05: many processes, forks, lock files, modes, names."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nobroker_django import BackoffPolicy, InvalidOptionError, JobState, LockTimeoutError, NobrokerError, Queue
from nobroker_django.engine.clock import Deadline
from nobroker_django.engine.control import SESSION_BYTE
from nobroker_django.engine.errors import ReentrantCallError
from nobroker_django.engine.files import Files
from tests.support.procs import wait_until

from .helpers import ROOT, RecordingFiles, in_child, live_log, read_log, run_python, start_python

# --- PROC-01

PRODUCER = """
import sys
from nobroker_django import Queue
with Queue(sys.argv[1]) as queue:
    print("open", flush=True)
    sys.stdin.readline()
    for n in range(25):
        queue.enqueue([sys.argv[2], n])
"""


@pytest.mark.contract("PROC-01")
def test_many_processes_that_write_at_once_lose_and_double_nothing(open_queue, queue_dir):
    producers = [start_python(PRODUCER, queue_dir, name) for name in "abcdef"]
    for producer in producers:
        assert producer.stdout.readline() == "open\n"
    for producer in producers:
        producer.communicate("go\n", timeout=60)
    assert [producer.returncode for producer in producers] == [0] * 6
    jobs = open_queue().list_jobs()
    assert sorted(job.payload for job in jobs) == [[name, n] for name in "abcdef" for n in range(25)]
    assert len({job.id for job in jobs}) == len({job.seq for job in jobs}) == 150
    for name in "abcdef":
        assert [job.payload[1] for job in jobs if job.payload[0] == name] == list(range(25))
    read_log(live_log(queue_dir))


@pytest.mark.contract("PROC-01")
def test_queues_that_are_created_by_many_processes_at_once_are_one_queue(open_queue, queue_dir):
    code = (
        "import sys; from nobroker_django import Queue; sys.stdin.readline()\n"
        "q = Queue(sys.argv[1]); q.enqueue(sys.argv[2]); q.close()"
    )
    children = [start_python(code, queue_dir, number) for number in range(6)]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    errors = [child.communicate(timeout=60)[1] for child in children]
    assert errors == [""] * 6
    assert sorted(job.payload for job in open_queue().list_jobs()) == [str(number) for number in range(6)]


@pytest.mark.contract("PROC-01")
def test_threads_may_share_one_queue_object(open_queue):
    queue = open_queue()
    threads = [
        threading.Thread(target=lambda name=name: [queue.enqueue([name, n]) for n in range(20)]) for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job.payload for job in queue.list_jobs()) == [[name, n] for name in "abcd" for n in range(20)]


@pytest.mark.contract("PROC-01")
def test_named_queues_of_one_directory_do_not_contend_and_do_not_mix(open_queue, queue_dir):
    a, b = open_queue(name="a"), open_queue(name="b", lock_timeout=0.2)
    with a._session.locked():  # a is busy for as long as this lasts
        b.enqueue("b's")
        assert b.lease_one().payload == "b's"
        with pytest.raises(LockTimeoutError):
            open_queue(name="a", lock_timeout=0.05)
    assert a.list_jobs() == []
    assert b.purge() == 1


@pytest.mark.contract("PROC-01")
def test_names_that_contain_each_other_are_different_queues(open_queue):
    """C86."""
    queues = {name: open_queue(name=name) for name in ("b", "a-b", "b-1", "b_1", "b1", "bb", "1")}
    for name, queue in queues.items():
        queue.enqueue_many([name] * 3, max_attempts=1)
        queue.nack(queue.lease_one())
    queues["b"].compact()
    assert queues["b"].purge() == 3
    for name, queue in queues.items():
        assert [job.payload for job in queue.list_jobs()] == ([] if name == "b" else [name] * 3)
        assert len(queue.dlq()) == (name != "b")


# --- PROC-02

FORKING = """
import json, os, sys
from nobroker_django import Queue
way, busy = sys.argv[2], sys.argv[3] == "busy"
queue = Queue(sys.argv[1], visibility_timeout=60, retention=60)
first = queue.enqueue("first")
leased = queue.lease_one()
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    if busy:
        for n in range(100):
            queue.enqueue(["child", n])
        assert queue.lease_one(visibility_timeout=60).payload == ["child", 0]
    if way == "os._exit":
        os._exit(0)
    if way == "exception":
        sys.stderr = open(os.devnull, "w")
        raise RuntimeError("out of the child")
    if way == "close":
        queue.close()
    sys.exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert status == (1 if way == "exception" else 0), status
assert queue.lease_one() is None or busy      # the parent's lease holds
queue.enqueue("second", priority=1)
second = queue.lease_one()
assert second.payload == "second", second
queue.ack(second)
queue.ack(leased)
queue.compact()
queue.enqueue("third")
queue.close()
"""


@pytest.mark.contract("PROC-02")
@pytest.mark.parametrize("busy", ["idle", "busy"])
@pytest.mark.parametrize("way", ["os._exit", "sys.exit", "exception", "close"])
def test_a_forked_child_harms_the_parent_in_no_way_however_it_leaves(open_queue, queue_dir, way, busy):
    """C52."""
    run_python(FORKING, queue_dir, way, busy)
    queue = open_queue()
    assert not queue.recovery.repaired
    jobs = queue.list_jobs()
    assert [job.payload for job in jobs if job.state is JobState.DONE] == ["first", "second"]
    children = [job for job in jobs if isinstance(job.payload, list)]
    assert [job.payload for job in children] == ([["child", n] for n in range(100)] if busy == "busy" else [])
    assert len({job.id for job in jobs}) == len({job.seq for job in jobs}) == len(jobs)


@pytest.mark.contract("PROC-02")
def test_the_childs_verbs_use_descriptors_and_locks_of_its_own(open_queue):
    files = RecordingFiles()
    queue = open_queue(files=files)
    queue.enqueue("parent's")
    queue.stats()
    mine = dict(files.paths)

    def work():
        files.record.clear()
        job = queue.lease_one()
        assert job.payload == "parent's"
        queue.ack(job)
        calls = files.record.calls
        assert {name for name, path in ((call.name, call.path) for call in calls) if name == "open"}
        first_verb = next(i for i, call in enumerate(calls) if call.name == "flock")
        opened = [call.path for call in calls[:first_verb] if call.name == "open"]
        assert any(path.endswith(".log") for path in opened)
        assert any(path.endswith(".lock") for path in opened)
        assert "funlock" not in [call.name for call in calls[:first_verb]]
        queue.close()

    assert in_child(work) == 0
    assert files.paths == mine
    for fd in mine:
        os.fstat(fd)
    assert queue.lease_one() is None
    assert queue.enqueue("after").created


@pytest.mark.contract("PROC-02")
def test_a_child_that_closes_or_exits_does_not_end_the_parents_session(open_queue, queue_dir):
    """If it did, the next opener would take itself for the first, and secure a tail that others write to."""
    queue = open_queue()
    queue.enqueue("x")
    assert in_child(queue.close) == 0
    assert in_child(lambda: queue.enqueue("y") and queue.close()) == 0
    openings = [record.type for record in read_log(live_log(queue_dir))].count(16)
    files = RecordingFiles()
    open_queue(files=files)
    assert [record.type for record in read_log(live_log(queue_dir))].count(16) == openings
    assert files.record.on(".log", "write", "pwrite", "allocate", "truncate") == []


@pytest.mark.contract("PROC-02")
def test_the_parents_locks_hold_after_a_child_has_closed_its_copies(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("x")
    assert in_child(queue.close) == 0
    assert in_child(queue.stats) == 0
    probe = Files()
    fd = probe.open(queue_dir / "default.lock", os.O_RDWR)
    try:
        assert not probe.flock(fd, exclusive=True)  # what keeps version 1 out
        assert not probe.lock_byte(fd, SESSION_BYTE, exclusive=True)
    finally:
        os.close(fd)


@pytest.mark.contract("PROC-02")
def test_a_fork_waits_until_no_thread_of_the_process_is_in_the_middle_of_a_verb(open_queue, queue_dir):
    """Otherwise the child would inherit a lock that nobody in it lets go."""
    queue = open_queue()
    stop = threading.Event()
    trouble: list = []

    def work():
        try:
            while not stop.is_set():
                queue.enqueue("x")
                job = queue.lease_one()
                if job is not None:
                    queue.ack(job)
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        statuses = [in_child(lambda: queue.enqueue("child") and queue.stats()) for _ in range(15)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert statuses == [0] * 15
    assert trouble == []
    assert queue.stats().enqueued_total >= 15
    read_log(live_log(queue_dir))


@pytest.mark.contract("PROC-02")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing_children_of_every_start_method_may_use_the_queue(queue_dir, tmp_path, method):
    """C54, C56: pre-loaded web servers, tasks that start processes."""
    script = tmp_path / "program.py"
    script.write_text(f"""
import multiprocessing, sys
from nobroker_django import Queue
directory = sys.argv[1]
queue = None

def work(number):
    own = queue or Queue(directory, fsync=False)
    return [own.enqueue([number, n]).id for n in range(20)]

if __name__ == "__main__":
    with Queue(directory) as queue:
        queue.enqueue("preloaded")
        with multiprocessing.get_context({method!r}).Pool(3) as pool:
            ids = [job_id for found in pool.map(work, range(6)) for job_id in found]
        assert len(set(ids)) == 120
        stored = queue.list_jobs()
        assert {{job.id for job in stored}} == {{*ids, stored[0].id}}, len(stored)
""")
    done = subprocess.run(
        [sys.executable, script, queue_dir],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.contract("PROC-02")
def test_jitter_and_ids_differ_between_forked_children(open_queue):
    queue = open_queue(backoff=BackoffPolicy(base=1000, jitter=1))
    queue.enqueue("x")
    read, write = os.pipe()
    for _ in range(4):
        assert (
            in_child(
                lambda: os.write(write, json.dumps([queue.backoff.delay_for(1), queue.enqueue(1).id]).encode() + b"\n")
            )
            == 0
        )
    os.close(write)
    with os.fdopen(read) as lines:
        found = [json.loads(line) for line in lines]
    assert len({delay for delay, _ in found}) == 4
    assert len({job_id for _, job_id in found}) == 4


# --- PROC-03


@pytest.mark.contract("PROC-03")
@pytest.mark.parametrize("how", ["removed", "replaced", "moved and touched"])
def test_a_lock_file_that_is_deleted_or_replaced_does_not_make_two_owners(open_queue, queue_dir, how):
    """C73."""
    first, second = open_queue(lock_timeout=0.2), open_queue(lock_timeout=0.2)
    first.enqueue("before")
    lock = queue_dir / "default.lock"
    with first._session.locked():
        lock.rename(queue_dir / "aside")
        if how == "replaced":
            lock.write_bytes((queue_dir / "aside").read_bytes())
        elif how == "moved and touched":
            lock.touch()
        with pytest.raises(LockTimeoutError):
            second.enqueue("while the first is at it")
        with pytest.raises(LockTimeoutError):
            open_queue(lock_timeout=0.1)
    for number in range(3):
        first.enqueue(f"first {number}")
        second.enqueue(f"second {number}")
        open_queue().enqueue(f"third {number}")
    expected = ["before"] + [f"{who} {number}" for number in range(3) for who in ("first", "second", "third")]
    for queue in (first, second, open_queue()):
        assert [job.payload for job in queue.list_jobs()] == expected
    assert lock.exists()
    read_log(live_log(queue_dir))


TRUNCATING = """
import os, sys
from nobroker_django import Queue
with Queue(sys.argv[1]) as first, Queue(sys.argv[1]) as second:
    first.enqueue("before")
    for size in (0, 5, 60, 100):
        os.truncate(sys.argv[1] + "/default.lock", size)
        first.enqueue(["first", size])
        second.enqueue(["second", size])
        second.stats()
    assert len(first.list_jobs()) == 9
    assert len(first.path.read_bytes().rstrip(bytes(1))) < 10_000
"""


@pytest.mark.contract("PROC-03")
def test_a_lock_file_that_is_truncated_under_open_queues_is_filled_again(open_queue, queue_dir):
    """In a process of its own, which must end."""
    run_python(TRUNCATING, queue_dir)
    assert len(open_queue().list_jobs()) == 9


@pytest.mark.contract("PROC-03")
def test_the_log_itself_moved_away_or_put_back_makes_no_second_owner_either(open_queue, queue_dir):
    queue = open_queue()
    queue.enqueue("before")
    log = live_log(queue_dir)
    copy = log.read_bytes()
    log.rename(queue_dir / "aside")
    with pytest.raises(NobrokerError):
        queue.enqueue("nowhere")
    log.write_bytes(copy)
    queue.enqueue("after")
    assert (queue_dir / "aside").read_bytes() == copy
    assert [job.payload for job in queue.list_jobs()] == ["before", "after"]


@pytest.mark.contract("PROC-03")
def test_no_verb_ever_unlinks_a_lock_file(open_queue, queue_dir, clock):
    files = RecordingFiles()
    queue = open_queue(files=files)
    lock = os.stat(queue_dir / "default.lock").st_ino
    queue.enqueue("x")
    queue.compact()
    queue.purge()
    queue.compact()
    queue.close()
    open_queue(files=files).close()
    assert os.stat(queue_dir / "default.lock").st_ino == lock
    assert [call for call in files.record.named("unlink", "rename") if call.path.endswith(".lock")] == []


@pytest.mark.contract("PROC-03")
def test_a_stopped_holder_is_waited_for_and_then_reported(open_queue, queue_dir):
    queue = open_queue(lock_timeout=0.1)
    fd = os.open(live_log(queue_dir), os.O_RDWR)
    try:
        assert Files().flock(fd, exclusive=True)
        with pytest.raises(LockTimeoutError) as late:
            queue.enqueue(1)
        assert (late.value.seconds, late.value.stored) == (0.1, False)
    finally:
        os.close(fd)
    assert queue.enqueue(1).created


@pytest.mark.contract("PROC-03")
def test_creating_the_queue_may_take_longer_than_the_lock_timeout(open_queue):
    """A slow disk is no lock that somebody holds."""

    class Slow(Files):
        def rename(self, source, target):
            wait_until(Deadline(0.5).passed, "the end of the patience")
            super().rename(source, target)

    assert open_queue(files=Slow(), lock_timeout=0.5).enqueue("x").created


# --- PROC-04


def modes(directory: Path) -> dict[str, int]:
    """Permission bits of everything that the queue made."""
    return {
        str(entry.relative_to(directory)): stat.S_IMODE(entry.stat().st_mode)
        for entry in [directory, *directory.rglob("*")]
    }


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o177])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.contract("PROC-04")
@pytest.mark.parametrize(
    ("options", "file_mode", "dir_mode"),
    [({}, 0o600, 0o700), ({"file_mode": 0o660, "dir_mode": 0o2770}, 0o660, 0o2770)],
)
def test_everything_gets_the_modes_asked_for_whatever_the_umask_also_in_new_generations(
    tmp_path, clock, umask, options, file_mode, dir_mode
):
    """C76."""
    directory = tmp_path / "made"
    with Queue(directory, clock=clock, **options) as queue:
        queue.enqueue("x")
        queue.nack(queue.lease_one())
        queue.stats()
        _check_modes(directory, file_mode, dir_mode)
        queue.compact()
        queue.stats()
        _check_modes(directory, file_mode, dir_mode)
    _check_modes(directory, file_mode, dir_mode)
    log = live_log(directory)
    log.write_bytes(log.read_bytes() + b"torn")
    with Queue(directory, clock=clock, **options) as queue:
        assert queue.recovery.repaired
        _check_modes(directory, file_mode, dir_mode)


def _check_modes(directory, file_mode, dir_mode):
    found = modes(directory)
    assert len(found) >= 5
    wrong = {
        name: oct(mode)
        for name, mode in found.items()
        if mode != (dir_mode if (directory / name).is_dir() else file_mode)
    }
    assert wrong == {}


@pytest.mark.contract("PROC-04")
def test_a_directory_that_was_there_keeps_its_modes(tmp_path, clock):
    directory = tmp_path / "there"
    directory.mkdir()
    directory.chmod(0o755)  # whatever the umask
    with Queue(directory, clock=clock) as queue:
        queue.enqueue(1)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


# --- PROC-05


@pytest.mark.contract("PROC-05")
@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "a.b", "a/b", "../a", "/etc/x", "b ", " b", "-a", "_a", "a\n", "a\0", "é", "e\u0301", "ａ",
        "a" * 65, None, 5, b"a", "b.dlq", "a\\b", "~",
    ],
)  # fmt: skip
def test_other_names_are_refused_and_make_nothing(queue_dir, name):
    """C86."""
    with pytest.raises(InvalidOptionError) as refused:
        Queue(queue_dir, name)
    assert refused.value.option == "name"
    assert not queue_dir.exists()


@pytest.mark.contract("PROC-05")
@pytest.mark.parametrize("name", ["a", "A", "0", "a-b_C9", "x" * 64])
def test_names_that_match_are_queues_within_the_directory(open_queue, queue_dir, name):
    queue = open_queue(name=name)
    queue.enqueue(name)
    queue.stats()
    assert {entry.name.split(".")[0] for entry in queue_dir.iterdir()} == {name}
    assert [entry.name for entry in queue_dir.parent.iterdir()] == [queue_dir.name]


@pytest.mark.contract("PROC-05")
@pytest.mark.parametrize("lock", ["kept", "lost"])
def test_a_name_that_differs_from_an_existing_queue_only_by_case_is_refused(open_queue, queue_dir, lock):
    with open_queue(name="Mails") as queue:
        queue.enqueue("x")
    if lock == "lost":
        (queue_dir / "Mails.lock").unlink()
    before = sorted(entry.name for entry in queue_dir.iterdir())
    for name in ("mails", "MAILS"):
        with pytest.raises(InvalidOptionError, match="Mails"):
            open_queue(name=name)
    assert sorted(entry.name for entry in queue_dir.iterdir()) == before
    assert len(open_queue(name="Mails")) == 1


@pytest.mark.contract("PROC-05")
def test_a_chdir_changes_nothing_for_an_open_queue(tmp_path, monkeypatch, clock):
    monkeypatch.chdir(tmp_path)
    with Queue("relative", clock=clock) as queue:
        queue.enqueue(1)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        queue.enqueue(2)
        queue.compact()
        assert len(queue) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- signals: part of PROC-01, a handler is one more caller

HANDLER = """
import signal, sys
from nobroker_django import Queue
from nobroker_django.engine.errors import ReentrantCallError
stored = refused = 0
def handler(*ignored):
    global stored, refused
    try:
        queue.enqueue("from the handler")
        stored += 1
    except ReentrantCallError:
        refused += 1
    signal.setitimer(signal.ITIMER_REAL, 0.01)  # not sooner: the loop has to get on as well
queue = Queue(sys.argv[1])
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01)
rounds = 0
while stored + refused < 40:
    queue.enqueue("from the loop")
    rounds += 1
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert queue.stats().total == rounds + stored, (rounds, stored, queue.stats())
"""


@pytest.mark.contract("PROC-01")
def test_a_signal_handler_that_enqueues_stores_its_job_or_is_told_that_it_interrupted_a_call(queue_dir):
    run_python(HANDLER, queue_dir)


def test_a_call_from_within_a_call_of_the_same_thread_is_refused_at_once(open_queue):
    queue = open_queue()
    with queue._session.locked(), pytest.raises(ReentrantCallError):
        queue.enqueue("inner")
    with queue._session.locked() as held, queue._session.syncs.locked(held.log, Deadline(1)):
        pass
    queue.enqueue("outer")
    assert [job.payload for job in queue.list_jobs()] == ["outer"]


def test_an_exception_of_a_signal_handler_between_taking_the_lock_and_using_it_gives_it_back(open_queue):
    queue, other = open_queue(lock_timeout=0.2), open_queue(lock_timeout=0.2)
    queue._session.locked()  # nobody holds on to what it returns
    queue._session.syncs.try_lock(queue._session._log)
    other.enqueue("another")
    queue.enqueue("and this one")


# --- PROC-04, made by root


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.contract("PROC-04")
def test_what_root_makes_belongs_to_the_owner_of_the_directory(open_queue, queue_dir):
    queue_dir.mkdir()
    os.chown(queue_dir, 65534, 65534)
    queue = open_queue()
    queue.enqueue("x")
    queue.lease()
    queue.compact()
    queue.stats()
    found = {path.name: path.stat() for path in queue_dir.rglob("*")}
    assert {"default.lock", "default.current", "default.run"} < set(found)
    assert {(st.st_uid, st.st_gid) for st in found.values()} == {(65534, 65534)}
