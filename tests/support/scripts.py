"""Scripts of verbs that the crash tests interrupt: every record type, a compaction, closing and opening again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nobroker_django import BackoffPolicy, Queue
from nobroker_django.engine.worker_queue import WorkerQueue

from .ledger import Ledger, Script

NOW = 1_700_000_000.0


def clock() -> float:
    """A clock that stands still: nothing runs out."""
    return NOW


def open_queue(directory: Path, files: Any = None, **options: Any) -> Queue:
    """A queue whose times do not matter."""
    options = {"clock": clock, "visibility_timeout": 1e6, "backoff": BackoffPolicy(base=0.0), **options}
    return WorkerQueue(directory, files=files, **options)


def every_verb(script: Script) -> None:
    """All verbs and record types, in about forty writes."""
    script.enqueue("a1")
    script.enqueue("a2", "a3", "a4")
    script.known("i1")
    script.known("i1")
    one, two = (*script.lease(2), None, None)[:2]
    if one:
        script.extend(one)
        script.ack(one, result={"n": 1})
    if two:
        script.nack(two)
    three = script.lease(1)
    if three:
        script.release(*three)
    script.enqueue("b1", max_attempts=1, priority=5)
    for job in script.lease(1):
        script.nack(job)
    script.enqueue("b2", priority=4)
    for job in script.lease(1):
        script.bury(job)
    script.requeue_dead()


def with_compaction(script: Script) -> None:
    """``every_verb``, a compaction, and work behind it."""
    every_verb(script)
    script.compact()
    script.enqueue("c1")
    jobs = script.lease(2)
    if jobs:
        script.ack(*jobs)
    script.known("i1")
    script.enqueue("c2", "c3")


def reclaiming(directory: Path) -> None:
    """Leases that ran out, with and without attempts left: RECLAIM and DEAD records."""
    time = [NOW]
    with open_queue(directory, clock=lambda: time[0], visibility_timeout=10.0) as queue:
        queue.enqueue({"k": "r1"}, priority=9)
        queue.enqueue({"k": "r2"}, priority=9, max_attempts=1)
        queue.enqueue({"k": "r3"}, delay=1e6)
        queue.lease(2)
        time[0] += 20
        queue.lease(1)


def all_record_types(directory: Path) -> None:
    """A log with every record type, behind a compaction; nobody has the queue open."""
    run(directory, SCRIPTS["compaction"])
    reclaiming(directory)
    with open_queue(directory) as queue:
        for job in queue.lease(2):
            queue.nack(job, error=ValueError("x"), delay=1.0)
        jobs = queue.lease(3)
        queue.extend(jobs[0], 5.0)
        queue.ack(jobs[0], result=[1])
        queue.release(jobs[1:])
        queue.requeue_dead()
        queue.stats()


def purging(script: Script) -> None:
    """A purge between jobs."""
    script.enqueue("p1", "p2")
    script.lease(1)
    script.purge()
    script.enqueue("p3")


def brief(script: Script) -> None:
    """Few writes, for trying everything."""
    script.enqueue("s1")
    script.enqueue("s2", "s3")
    for job in script.lease(1):
        script.ack(job)
    script.lease(1)
    script.enqueue("s4")


def leasing(script: Script) -> None:
    """Many leases in a row, none of them durable: a power cut takes all of them."""
    script.enqueue(*[f"l{number}" for number in range(6)])
    for _ in range(5):
        script.lease(1)


def working(script: Script) -> None:
    """As the process of a worker does it, until it is killed: several outcomes, beginnings and leases in one write."""
    holder = "0123456789abcdef-1000"
    script.enqueue("w1", "w2", "w3", "w4", "w5", "w6")
    first = script.exchange(count=4, begin=1, holder=holder)
    script.exchange(succeeded=first[:1], started=first[1:2], confirm=False)
    script.exchange(failed=first[1:2], given_back=first[2:3], started=first[3:4], confirm=False)
    second = script.exchange(count=2, begin=1, holder=holder)
    script.exchange(succeeded=second[:1], confirm=False)
    script.enqueue("w7")
    script.worker_ended(holder)
    script.exchange(count=1, begin=1, holder=holder, confirm=False)


SCRIPTS: dict[str, Callable[[Script], None]] = {
    "every verb": every_verb,
    "compaction": with_compaction,
    "purge": purging,
    "brief": brief,
    "leases": leasing,
    "worker": working,
}


def run(directory: Path, body: Callable[[Script], None], files: Any = None, **options: Any) -> Ledger:
    """Open, run the script, close; the ledger."""
    ledger = Ledger()
    with open_queue(directory, files, **options) as queue:
        body(Script(queue, ledger))
    return ledger
