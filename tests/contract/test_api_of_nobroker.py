"""API-01: what programs of the package ``nobroker`` 0.1 rely on.

Each behaviour is asked of that package itself, too: what it does is what is promised. Where this package differs on
purpose, the second half says how, and docs/how-to/move-from-nobroker.md why.
"""

import dataclasses
import inspect
import json
import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nobroker_django as ours
from tests.support.procs import PATIENCE, wait_until

from .helpers import ROOT, FakeClock, live_log, run_python, start_python

theirs = pytest.importorskip("nobroker")
pytestmark = pytest.mark.contract("API-01")

PAGE = (ROOT / "docs" / "how-to" / "move-from-nobroker.md").read_text(encoding="utf-8")


BEGINNING_OF_A_RECORD = struct.pack("<IBI", 100, 1, 0x1234567) + b'{"id":"never complete'


@pytest.fixture(params=["nobroker", "nobroker_django"])
def api(request: pytest.FixtureRequest) -> Any:
    """The package that is asked."""
    return import_module(request.param)


@pytest.fixture
def open_(
    api: Any, clock: FakeClock, queue_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Opens queues of the package on the clock that stands still; failed jobs are ready again at once."""
    monkeypatch.setattr(theirs.queue, "time", SimpleNamespace(time=clock))
    opened = []

    def open_queue(name: str = "default", **options: Any) -> Any:
        if api is ours:
            options["clock"] = clock
        opened.append(api.Queue(queue_dir, name, **{"backoff": api.BackoffPolicy(base=0.0, jitter=0.0), **options}))
        return opened[-1]

    yield open_queue
    for queue in opened:
        queue.close()


@pytest.fixture
def q(open_: Callable[..., Any]) -> Any:
    return open_()


def payloads(jobs: list[Any]) -> list[Any]:
    return [job.payload for job in jobs]


# --- names


def test_every_public_name_is_there():
    assert set(theirs.__all__) <= set(ours.__all__)


CALLS = [
    *("__init__", "enqueue", "enqueue_many", "lease", "lease_one", "ack", "nack", "extend", "requeue_dead", "purge"),
    *("get", "stats", "list_jobs", "dlq", "compact", "close", "__len__", "__enter__", "__exit__"),
]


@pytest.mark.parametrize("call", CALLS)
def test_every_argument_of_a_queue_is_there_with_its_default(call):
    here, there = (inspect.signature(getattr(package.Queue, call)).parameters for package in (ours, theirs))
    mine = {name: (parameter.kind, parameter.default) for name, parameter in here.items()}
    if call != "__exit__":  # whose arguments nobody names
        assert {name: (parameter.kind, parameter.default) for name, parameter in there.items()}.items() <= mine.items()


def test_every_argument_of_a_worker_and_a_policy_is_there_with_its_default():
    for kind in ("Worker", "BackoffPolicy"):
        here, there = (inspect.signature(getattr(package, kind)).parameters for package in (ours, theirs))
        wanted = {name: parameter.default for name, parameter in there.items() if not name.startswith("_")}
        wanted.pop("stats", None)  # a result, no option
        assert wanted.items() <= {name: parameter.default for name, parameter in here.items()}.items()


@pytest.mark.parametrize(
    "kind", ["Job", "JobState", "QueueStats", "WorkerStats", "CompactionResult", "RecoveryReport"]
)
def test_every_field_and_method_of_what_is_returned_is_there(kind):
    here, there = getattr(ours, kind), getattr(theirs, kind)
    fields = {field.name for field in dataclasses.fields(there)} if dataclasses.is_dataclass(there) else set()
    public = {name for name in {*dir(there), *fields} if not name.startswith("_")}
    assert public - set(dir(here)) - set(getattr(here, "__annotations__", ())) == (
        {"version", "snapshot", "from_dict"} if kind == "Job" else set()
    )


def test_errors_are_of_one_family():
    names = [name for name in theirs.__all__ if name.endswith("Error")]
    assert len(names) == 8
    for name in names:
        assert issubclass(getattr(ours, name), ours.NobrokerError)


# --- enqueue, lease, ack


def test_a_job_goes_its_way(api, q):
    job = q.enqueue({"task": "hello"})
    assert (job.state, job.attempts) == (api.JobState.READY, 0)
    leased = q.lease_one()
    assert (leased.id, leased.state, leased.attempts) == (job.id, api.JobState.LEASED, 1)
    q.ack(leased)
    assert q.get(job.id).state is api.JobState.DONE
    assert (q.stats().done, q.stats().total) == (1, 1)


def test_what_is_leased_is_leased_once_and_a_short_queue_gives_what_it_has(q):
    assert (q.lease(5), q.lease_one()) == ([], None)
    q.enqueue_many(["a", "b"])
    assert payloads(q.lease(10)) == ["a", "b"]
    assert q.lease_one() is None
    assert len(q) == 2


def test_payloads_come_back_as_they_went(q):
    values = [None, 0, "", "text", 3.5, True, [1, {"a": None}], {"k": [1, 2]}]
    q.enqueue_many(values)
    assert payloads(q.list_jobs()) == values


def test_an_ack_again_is_harmless_and_one_without_a_lease_is_refused(api, q):
    q.enqueue("x")
    leased = q.lease_one()
    q.ack(leased)
    q.ack(leased)
    waiting = q.enqueue("y")
    with pytest.raises(api.NotLeasedError):
        q.ack(waiting.id)
    assert (q.stats().done, q.stats().ready) == (1, 1)


def test_an_unknown_id_is_refused(api, q):
    for verb in (q.get, q.ack, q.nack, q.requeue_dead, lambda job_id: q.extend(job_id, 1)):
        with pytest.raises(api.JobNotFoundError):
            verb("nobody")


def test_a_bare_id_is_enough_for_an_operator(api, q):
    job = q.enqueue("x", max_attempts=1)
    q.lease_one()
    assert q.extend(job.id, 5).state is api.JobState.LEASED
    assert q.nack(job.id, error="no").state is api.JobState.DEAD


def test_nonsense_is_a_value_error(q):
    with pytest.raises(ValueError, match="count"):
        q.lease(0)
    with pytest.raises(ValueError, match="job_ids"):
        q.enqueue_many([1, 2], job_ids=["one"])


# --- order


def test_priority_comes_first_then_the_order_of_insertion(q):
    for payload, priority in (("low", 0), ("high", 10), ("middle", 5), ("low too", 0)):
        q.enqueue(payload, priority=priority)
    assert payloads(q.lease(9)) == ["high", "middle", "low", "low too"]


def test_jobs_of_one_priority_come_in_the_order_of_insertion(q):
    q.enqueue_many(range(20))
    assert payloads(q.lease(20)) == list(range(20))


def test_a_delayed_job_holds_up_nobody_and_comes_at_its_time(open_, clock):
    q = open_(visibility_timeout=1000.0)
    q.enqueue("urgent, later", priority=100, delay=30.0)
    q.enqueue("ordinary, now")
    assert payloads(q.lease(2)) == ["ordinary, now"]
    assert q.stats().delayed == 1
    clock.advance(30)
    assert payloads(q.lease(2)) == ["urgent, later"]


# --- failing


def test_a_nack_gives_the_job_another_attempt(api, q):
    q.enqueue("flaky")
    first = q.lease_one()
    failed = q.nack(first, error="boom")
    assert (failed.state, failed.last_error) == (api.JobState.READY, "boom")
    again = q.lease_one()
    assert (again.id, again.attempts) == (first.id, 2)


def test_out_of_attempts_is_a_dead_letter_until_it_is_requeued_with_new_ones(api, open_):
    q = open_(max_attempts=3)
    job = q.enqueue("doomed")
    for attempt in (1, 2, 3):
        leased = q.lease_one()
        assert leased.attempts == attempt
        q.nack(leased, error="always")
    assert q.lease_one() is None
    assert [(dead.id, dead.state) for dead in q.dlq()] == [(job.id, api.JobState.DEAD)]
    assert q.requeue_dead() == 1
    assert (q.requeue_dead(), q.dlq(), q.lease_one().attempts) == (0, [], 1)


def test_one_dead_letter_can_be_requeued_and_what_is_none_is_refused(api, q):
    first, second = q.enqueue_many(["a", "b"], max_attempts=1)
    for leased in q.lease(2):
        q.nack(leased)
    assert q.requeue_dead(second.id) == 1
    assert [job.id for job in q.dlq()] == [first.id]
    with pytest.raises(api.NotLeasedError):
        q.requeue_dead(second.id)


def test_a_retry_waits_for_its_backoff_or_for_the_delay_that_was_given(api, open_, clock):
    q = open_(backoff=api.BackoffPolicy(base=30.0, jitter=0.0))
    q.enqueue("x")
    assert q.nack(q.lease_one()).available_at == clock.now + 30
    assert (q.lease_one(), q.stats().delayed) == (None, 1)
    clock.advance(30)
    assert q.nack(q.lease_one(), delay=60.0).available_at == clock.now + 60


def test_a_job_may_have_its_own_number_of_attempts(api, q):
    q.enqueue("fragile", max_attempts=1)
    assert q.nack(q.lease_one()).state is api.JobState.DEAD


# --- visibility timeout


def test_a_lease_that_ran_out_is_delivered_again_and_its_first_holder_is_told(api, open_, clock):
    q = open_(visibility_timeout=10.0)
    q.enqueue("contested")
    first = q.lease_one()
    assert first.lease_deadline == clock.now + 10
    clock.advance(10)
    second = q.lease_one()
    assert (second.id, second.attempts) == (first.id, 2)
    assert second.lease_token != first.lease_token
    for verb in (q.ack, q.nack, lambda job: q.extend(job, 1)):
        with pytest.raises(api.NotLeasedError):
            verb(first)
    q.ack(second)


def test_an_extended_lease_holds(open_, clock):
    q = open_(visibility_timeout=10.0)
    q.enqueue("long")
    job = q.lease_one()
    clock.advance(9)
    assert q.extend(job, 5.0).lease_deadline == clock.now + 1 + 5
    clock.advance(5)
    assert q.lease_one() is None
    q.ack(job)


def test_leases_that_run_out_use_up_the_attempts(open_, clock):
    q = open_(visibility_timeout=10.0, max_attempts=2)
    q.enqueue("nobody acks this")
    for _ in range(2):
        assert q.lease_one() is not None
        clock.advance(10)
    assert q.lease_one() is None
    assert q.stats().dead == 1


# --- ids


def test_a_known_id_adds_nothing_also_after_a_restart(open_):
    with open_() as q:
        assert (
            q.enqueue({"charge": 100}, job_id="order").id == q.enqueue({"charge": 100}, job_id="order").id == "order"
        )
        assert len(q) == 1
    q = open_()
    assert [job.id for job in q.enqueue_many([{"charge": 100}, 2], job_ids=["order", "other"])] == ["order", "other"]
    assert len(q) == 2


# --- maintenance


def test_a_purge_forgets_everything_for_good(open_):
    with open_() as q:
        q.enqueue_many(["a", "b", "c"])
        assert q.purge() == 3
        assert (len(q), q.lease_one()) == (0, None)
    assert len(open_()) == 0


def test_a_compaction_drops_what_is_done_and_keeps_the_rest(open_):
    q = open_(max_attempts=1)
    q.enqueue_many(range(20))
    for job in q.lease(20):
        q.ack(job)
    q.enqueue("waits")
    q.enqueue("dies", priority=1)
    q.nack(q.lease_one())
    result = q.compact()
    assert (result.jobs_dropped, result.jobs_kept) == (20, 2)
    assert result.bytes_reclaimed == result.bytes_before - result.bytes_after > 0
    stats = q.stats()
    assert (stats.ready, stats.done, stats.dead, stats.total) == (1, 0, 1, 2)


def test_a_compacted_queue_is_the_same_when_it_is_opened_again(open_):
    with open_() as q:
        q.enqueue_many([{"text": "one\ntwo\n" * 8, "n": number} for number in range(10)])
        for job in q.lease(4):
            q.ack(job)
        q.enqueue("delayed", delay=60.0)
        q.compact()
        before = [job.to_dict() for job in q.list_jobs()]
    again = open_()
    assert not again.recovery.repaired
    assert [job.to_dict() for job in again.list_jobs()] == before


def test_a_lease_goes_on_over_a_compaction_and_ends_at_its_time(open_, clock):
    q = open_(visibility_timeout=10.0)
    q.enqueue("held")
    q.lease_one()
    q.compact()
    assert (q.stats().leased, q.lease_one()) == (1, None)
    clock.advance(10)
    assert q.lease_one().attempts == 2


def test_an_empty_queue_can_be_compacted(q):
    assert q.compact().jobs_kept == 0
    assert len(q) == 0


def test_queues_of_one_directory_do_not_see_each_other(open_):
    emails, thumbnails = open_("emails"), open_("thumbnails")
    emails.enqueue("send")
    assert (len(emails), len(thumbnails)) == (1, 0)
    thumbnails.enqueue("resize")
    assert emails.lease_one().payload == "send"


def test_a_closed_queue_says_so(api, open_):
    with open_() as q:
        q.enqueue("x")
    q.close()
    for verb in (q.stats, lambda: q.enqueue("y"), q.lease_one):
        with pytest.raises(api.QueueClosedError):
            verb()


# --- crashes


def test_a_new_queue_has_a_log_and_needs_no_repair_when_it_is_opened_again(open_):
    with open_() as q:
        assert q.path.exists()
        assert q.stats().total == 0
    assert not open_().recovery.repaired


@pytest.mark.parametrize("content", [b"", b"this is somebody else's file entirely"])
def test_a_file_that_is_no_log_is_refused(api, open_, content):
    with open_() as q:
        log = q.path
    log.write_bytes(content)
    with pytest.raises(api.CorruptLogError):
        open_()
    assert log.read_bytes() == content


def test_a_torn_tail_is_cut_and_told_once(open_):
    with open_() as q:
        q.enqueue_many(range(3))
        log = q.path
    log.write_bytes(log.read_bytes() + BEGINNING_OF_A_RECORD)
    with open_() as q:
        report = q.recovery
        assert (report.repaired, report.bytes_discarded, q.stats().total) == (True, len(BEGINNING_OF_A_RECORD), 3)
        assert str(report.bytes_discarded) in report.describe()
    again = open_().recovery
    assert not again.repaired
    assert again.describe() != report.describe()


def test_a_log_read_twice_gives_the_same_jobs(open_):
    with open_() as q:
        q.enqueue_many(range(8))
        for job in q.lease(3):
            q.ack(job)
    seen = []
    for _ in range(2):
        with open_() as q:
            seen.append([job.to_dict() for job in q.list_jobs()])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 8


DIES = """
import os, sys
from {package} import Queue
queue = Queue(sys.argv[1], visibility_timeout=1000.0)
for number in range(10):
    queue.enqueue(number)
for job in queue.lease(6)[:3]:
    queue.ack(job)
print("done", flush=True)
os._exit(9)
"""


def test_what_a_process_was_told_before_it_died_is_there_and_its_leases_come_back(api, open_, clock, queue_dir):
    process = start_python(DIES.format(package=api.__name__), queue_dir)
    assert process.communicate(timeout=PATIENCE)[0] == "done\n"
    assert process.returncode == 9
    clock.now = time.time()
    q = open_()
    stats = q.stats()
    assert (stats.total, stats.done, stats.leased, stats.ready) == (10, 3, 3, 4)
    assert not q.recovery.repaired
    clock.now = max(job.lease_deadline for job in q.list_jobs(api.JobState.LEASED))
    assert sorted(payloads(q.lease(10))) == [3, 4, 5, 6, 7, 8, 9]


# --- threads and processes


def test_threads_share_a_queue_and_no_job(q):
    taken: list[Any] = []

    def work(tag: int) -> None:
        for number in range(10):
            q.enqueue([tag, number])
        while jobs := q.lease(3):
            taken.extend(payloads(jobs))
            for job in jobs:
                q.ack(job)

    threads = [threading.Thread(target=work, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [[tag, number] for tag in range(4) for number in range(10)]
    assert q.stats().done == 40


WORKS = """
import json, sys
from {package} import Queue
with Queue(sys.argv[1]) as queue:
    for number in range(10):
        queue.enqueue([sys.argv[2], number])
    taken = []
    while jobs := queue.lease(3):
        taken += [job.payload for job in jobs]
        for job in jobs:
            queue.ack(job)
    print(json.dumps(taken))
"""


def test_processes_share_a_queue_and_no_job_and_a_reader_that_was_open_sees_it(api, queue_dir):
    with api.Queue(queue_dir) as reader:
        assert len(reader) == 0
        processes = [start_python(WORKS.format(package=api.__name__), queue_dir, name) for name in "abc"]
        taken = [payload for process in processes for payload in json.loads(process.communicate(timeout=PATIENCE)[0])]
        assert sorted(taken) == [[name, number] for name in "abc" for number in range(10)]
        assert reader.stats().done == 30
        assert len({job.seq for job in reader.list_jobs()}) == 30


# --- backoff


def test_pauses_grow_up_to_their_limit(api):
    policy = api.BackoffPolicy(base=1.0, factor=2.0, jitter=0.0, max_delay=10.0)
    assert [policy.delay_for(attempts) for attempts in (0, 1, 2, 3, 4, 5, 40)] == [0, 1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(("jitter", "least"), [(0.5, 4.0), (1.0, 0.0)])
def test_jitter_is_a_share_of_the_pause_and_repeats_with_its_generator(api, jitter, least):
    policy = api.BackoffPolicy(base=8.0, factor=1.0, jitter=jitter, max_delay=1e9)
    pauses = [policy.delay_for(1, rng=random.Random(seed)) for seed in range(500)]
    assert all(least <= pause <= 8.0 for pause in pauses)
    assert len(set(pauses)) > 100
    assert min(pauses) < least + 1
    assert pauses == [policy.delay_for(1, rng=random.Random(seed)) for seed in range(500)]


def test_a_policy_is_checked_when_it_is_made_and_never_changes(api):
    for wrong in ({"base": -1}, {"factor": 0.5}, {"jitter": 1.5}, {"jitter": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            api.BackoffPolicy(**wrong)
    policy = api.BackoffPolicy()
    with pytest.raises(AttributeError):
        policy.base = 99.0


# --- workers


def work(api: Any, q: Any, handler: Callable[[Any], Any], **options: Any) -> Any:
    """Until nothing is there any more."""
    return api.Worker(q, handler, **{"idle_timeout": 0.0, "poll_interval": 0.01, **options}).run()


@pytest.fixture
def in_thread(api: Any) -> Iterator[Callable[..., Any]]:
    """Runs workers in threads; they are stopped at the end, and must end then."""
    running = []

    def start(q: Any, handler: Callable[[Any], Any]) -> Any:
        worker = api.Worker(q, handler, poll_interval=0.01, handle_signals=False)
        thread = threading.Thread(target=worker.run)
        thread.start()
        running.append((worker, thread))
        return worker

    yield start
    for worker, thread in running:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_worker_acks_what_its_handler_returns_from(api, q):
    q.enqueue_many(range(5))
    seen: list[int] = []
    stats = work(api, q, lambda job: seen.append(job.payload))
    assert (seen, stats.leased, stats.succeeded, q.stats().done) == ([0, 1, 2, 3, 4], 5, 5, 5)
    assert stats.to_dict() == {"leased": 5, "succeeded": 5, "failed": 0, "dead": 0, "lost_leases": 0}


def test_a_handler_that_raises_is_tried_again(api, q):
    q.enqueue("flaky")
    attempts: list[int] = []

    def handler(job: Any) -> None:
        attempts.append(job.attempts)
        if job.attempts < 2:
            raise RuntimeError("not yet")

    stats = work(api, q, handler)
    assert (attempts, stats.failed, stats.succeeded, q.stats().done) == ([1, 2], 1, 1, 1)


def test_a_job_that_always_fails_becomes_a_dead_letter_with_class_and_text_of_its_error(api, open_):
    q = open_(max_attempts=2)
    q.enqueue("doomed")

    def handler(job: Any) -> None:
        raise ValueError("always broken")

    assert work(api, q, handler).dead == 1
    (dead,) = q.dlq()
    assert dead.last_error == "ValueError: always broken"


def test_a_worker_stops_after_so_many_jobs_or_when_it_is_idle(api, q):
    q.enqueue_many(range(10))
    assert work(api, q, lambda job: None, max_jobs=3, idle_timeout=None).leased == 3
    assert q.stats().ready == 7
    q.purge()
    assert work(api, q, lambda job: None, idle_timeout=0.05).leased == 0


def test_stopping_lets_the_running_job_finish(q, in_thread):
    entered, go = threading.Event(), threading.Event()

    def handler(job: Any) -> None:
        entered.set()
        assert go.wait(PATIENCE)

    q.enqueue_many(["in flight", "waits"])
    worker = in_thread(q, handler)
    assert entered.wait(PATIENCE)
    worker.stop()
    go.set()
    wait_until(lambda: q.stats().leased == 0, "the end of the job")
    assert (q.stats().done, q.stats().ready) == (1, 1)


def test_threads_of_a_worker_run_each_job_once(api, q):
    q.enqueue_many(range(60))
    seen: list[int] = []
    stats = work(api, q, lambda job: seen.append(job.payload), concurrency=6)
    assert (stats.succeeded, sorted(seen)) == (60, list(range(60)))


@pytest.mark.parametrize("fails", [False, True])
def test_a_purge_under_a_running_job_does_not_end_the_worker(q, in_thread, fails):
    entered, purged, again = threading.Event(), threading.Event(), threading.Event()

    def handler(job: Any) -> None:
        if job.payload == "after the purge":
            again.set()
            return
        entered.set()
        assert purged.wait(PATIENCE)
        if fails:
            raise RuntimeError("failed after its job was purged")

    q.enqueue("in flight")
    in_thread(q, handler)
    assert entered.wait(PATIENCE)
    q.purge()
    purged.set()
    q.enqueue("after the purge")
    assert again.wait(PATIENCE)
    wait_until(lambda: q.stats().done == 1, "the later job's ack")
    assert q.stats().total == 1


def test_the_lease_of_a_running_job_is_extended(api, open_, clock):
    q = open_(visibility_timeout=0.3)
    job_id = q.enqueue("slow").id
    attempts: list[int] = []

    def handler(job: Any) -> None:
        attempts.append(job.attempts)
        for _ in range(4):
            before = q.get(job_id).lease_deadline
            clock.now = before - 0.1
            wait_until(lambda before=before: q.get(job_id).lease_deadline > before, "the heartbeat")  # type: ignore[misc]

    assert work(api, q, handler).succeeded == 1
    assert attempts == [1]


# --- on purpose otherwise: each with its reason on the page

shown: list[str] = []


def differs(row: str) -> Callable[[Any], Any]:
    """Marks a test with the row of the page's table that it shows."""
    shown.append(row)
    return lambda test: test


def test_every_exception_is_on_the_page_with_its_reason():
    (table,) = re.findall(r"^\| what \| here \| why \|\n\|[-|]+\|\n(.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    assert [row[0] for row in rows] == shown
    assert all(len(row) == 3 and all(row) for row in rows)


@differs("damage")
@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:36] + bytes([data[36] ^ 0xFF]) + data[37:],
        lambda data: data[:-3],
        lambda data: data + b"garbage that is no beginning of a record",
    ],
    ids=["in the middle", "cut short", "garbage behind"],
)
def test_damage_that_no_crash_leaves_is_refused_and_nothing_is_cut(queue_dir, harm):
    with ours.Queue(queue_dir) as queue:
        queue.enqueue_many(range(6))
    log = live_log(queue_dir)
    log.write_bytes(harm(log.read_bytes()))
    before = log.read_bytes()
    with pytest.raises(ours.CorruptLogError):
        ours.Queue(queue_dir)
    assert log.read_bytes() == before


@differs("payloads that JSON would change")
@pytest.mark.parametrize("payload", [float("nan"), float("inf"), {1: "one"}, {"text": "\ud800"}])
def test_payloads_that_json_would_change_are_refused(queue, payload):
    with pytest.raises(ours.SerializationError):
        queue.enqueue(payload)
    assert len(queue) == 0


@differs("another payload under a known `job_id`, also within one `enqueue_many`")
def test_another_payload_under_a_known_id_is_an_error(queue):
    queue.enqueue(1, job_id="known")
    with pytest.raises(ours.JobConflictError):
        queue.enqueue(2, job_id="known")
    with pytest.raises(ours.JobConflictError):
        queue.enqueue_many([3, 4], job_ids=["twice", "twice"])


@differs("`ack` of a finished job with the token of another delivery")
def test_an_ack_of_what_another_delivery_finished_is_an_error(open_queue, clock):
    queue = open_queue(visibility_timeout=10, backoff=ours.BackoffPolicy(base=0))
    queue.enqueue("x")
    late = queue.lease_one()
    clock.advance(10)
    queue.ack(queue.lease_one())
    with pytest.raises(ours.NotLeasedError):
        queue.ack(late)


@differs("names of queues")
@pytest.mark.parametrize("name", ["", "a.b", "../a", "é", "a" * 65])
def test_names_of_queues_are_limited(queue_dir, name):
    with pytest.raises(ours.InvalidOptionError):
        ours.Queue(queue_dir, name)


@differs("options that make no sense")
def test_options_that_make_no_sense_are_refused(queue_dir, queue):
    for options in ({"visibility_timeout": 0}, {"max_attempts": 0}, {"lock_timeout": float("nan")}):
        with pytest.raises(ours.InvalidOptionError):
            ours.Queue(queue_dir, **options)
    for wrong in ({"delay": -1}, {"priority": 1.5}, {"job_id": 5}):
        with pytest.raises(ours.InvalidOptionError):
            queue.enqueue(1, **wrong)


@differs("leases that ran out")
def test_looking_takes_no_lease_back_and_a_holder_that_nobody_has_replaced_may_finish(open_queue, clock):
    queue = open_queue(visibility_timeout=10, max_attempts=1)
    queue.enqueue("x")
    job = queue.lease_one()
    clock.advance(100)
    assert (queue.stats().leased, len(queue.dlq())) == (1, 0)
    queue.ack(job)
    assert queue.stats().done == 1


@differs("`Worker`")
def test_a_worker_takes_its_options_by_name_and_counts_each_delivery_once(open_queue):
    queue = open_queue(max_attempts=2, backoff=ours.BackoffPolicy(base=0))
    with pytest.raises(TypeError):
        ours.Worker(queue, print, 4)  # type: ignore[call-arg]
    queue.enqueue("x")

    def handler(job: Any) -> None:
        raise SystemExit

    stats = ours.Worker(queue, handler, idle_timeout=0).run()
    assert (stats.leased, stats.failed, stats.dead) == (2, 1, 1)


@differs("`Job`, `RecoveryReport`")
def test_a_job_has_no_version_and_damage_is_text(queue):
    job = queue.enqueue("x")
    for name in ("version", "snapshot", "from_dict"):
        assert not hasattr(job, name)
    assert queue.recovery.damage == "none"


@differs("files")
def test_a_new_log_is_generation_1_and_holds_records(queue):
    assert queue.path.name == "default.000001.log"
    assert queue.path.stat().st_size > 16


@differs("`nobroker.codec`, `index`, `lock`, `logfile` and the other modules")
def test_the_modules_below_are_others(queue_dir):
    run_python("import sys, nobroker_django\nassert 'nobroker' not in sys.modules")
    for name in ("codec", "index", "lock", "logfile", "queue", "job", "errors"):
        with pytest.raises(ImportError):
            import_module(f"nobroker_django.{name}")
