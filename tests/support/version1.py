"""Directories written by the real ``nobroker`` 0.1, and its processes: what the promises of LOG-03 are held to."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import nobroker

NAN = float("nan")
ODD_PAYLOADS: list[Any] = [
    NAN,
    {"nan": NAN, "inf": float("inf"), "-inf": [float("-inf")]},
    10**30,
    -(10**400),
    1e308,
    "\ud800",
    {"key \udfff": "\udc80 and \ud83d\ude00", "task": "\ud800"},
    {float("nan"): 1, float("nan"): 2},  # two keys "NaN"
    {1: "one", 2: None},
    ("a", ["tuple"]),
    {"task": "photos.tasks.resize", "args": [1], "kwargs": {}},
    "",
    None,
    True,
    "ünï → \x00\x1f\u2028",
    {"payload": {"payload": '","payload":1'}, "seq": 5},
]


@contextmanager
def opened(directory: Path, clock: Callable[[], float], name: str = "default", **options: Any) -> Iterator[Any]:
    """A queue of ``nobroker`` 0.1 whose time is ``clock``'s; in this process."""
    with mock.patch.object(nobroker.queue, "time", SimpleNamespace(time=clock)):
        queue = nobroker.Queue(directory, name, fsync=False, **options)
        try:
            yield queue
        finally:
            queue.close()


def fill(queue: Any, advance: Callable[[float], None]) -> None:
    """Jobs in every state, with every type of record behind them."""
    queue.enqueue("purged", job_id="purged")
    queue.purge()
    for number, payload in enumerate(ODD_PAYLOADS):
        queue.enqueue(payload, job_id=f"odd-{number}", priority=-number)
    queue.enqueue({"k": "delayed"}, job_id="delayed", delay=1000)
    queue.enqueue_many(["first", "second"], job_ids=["twice", "twice"])  # version 1 writes both, the last one counts
    queue.enqueue_many([{"n": n} for n in range(12)], job_ids=[f"n{n}" for n in range(12)], priority=5, max_attempts=2)
    advance(1)
    jobs = {job.id: job for job in queue.lease(12, visibility_timeout=100)}
    queue.ack(jobs["n0"])
    queue.ack(jobs["n1"])
    queue.nack(jobs["n2"], error="it failed: \ud800 ünï")
    queue.nack(jobs["n3"], delay=0)
    queue.extend(jobs["n4"], 500)
    queue.extend(jobs["n5"], 500)
    queue.nack(jobs["n6"], error="first", delay=0)
    advance(1)
    again = {job.id: job for job in queue.lease(2, visibility_timeout=1000)}
    assert set(again) == {"n3", "n6"}
    queue.nack(again["n6"], error="second")  # a dead letter
    queue.nack(again["n3"])  # one without a word
    queue.enqueue("dies twice", job_id="phoenix", priority=9, max_attempts=1)
    queue.nack(queue.lease_one(), error="ashes")
    queue.requeue_dead("phoenix")
    advance(200)  # the leases of n7 ... n11 have run out: RECLAIM
    queue.stats()
    queue.enqueue("left behind", job_id="left", priority=9, max_attempts=1)
    queue.lease(1, visibility_timeout=1)
    queue.lease(1, visibility_timeout=10)  # n7's second and last
    advance(20)
    queue.stats()  # DEAD by time
    queue.enqueue("last", job_id="last", delay=3)
    queue.lease(1, visibility_timeout=50)


def fill_with_keys(directory: Path, clock: Callable[[], float]) -> dict[str, tuple[str, int]]:
    """A few jobs with a ``k`` each, in every state; the states and attempts, in insertion order."""
    with opened(directory, clock) as queue:
        for number in range(7):
            key = f"old{number}"
            queue.enqueue({"k": key, "filler": "x" * 100 * number}, job_id=key, max_attempts=1 + (number != 2))
        jobs = queue.lease(5, visibility_timeout=1e6)
        queue.ack(jobs[0])
        queue.nack(jobs[1], error="once", delay=0)
        queue.nack(jobs[2], error="a dead letter")
        return {job.payload["k"]: (job.state.value, job.attempts) for job in queue.list_jobs()}


def shown(job: Any) -> dict[str, Any]:
    """What version 1 knows of a job, so that NaN equals NaN; from a job of either package."""
    return {
        "id": job.id,
        "payload": json.dumps(job.payload, sort_keys=True),
        "priority": job.priority,
        "state": job.state.value,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "available_at": job.available_at,
        "enqueued_at": job.enqueued_at,
        "lease_deadline": job.lease_deadline,
        "lease_token": job.lease_token,
        "last_error": None if job.last_error is None else job.last_error.encode("utf-8", "backslashreplace").decode(),
    }


def counts(stats: Any) -> dict[str, int]:
    """The counts that both packages have."""
    return {name: getattr(stats, name) for name in ("ready", "delayed", "leased", "done", "dead", "total")}


def record(kind: int, fields: dict[str, Any] | bytes) -> bytes:
    """A record as version 1 writes it."""
    body = fields if isinstance(fields, bytes) else json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    return struct.pack("<IBI", len(body), kind, zlib.crc32(bytes([kind]) + body)) + body


def header(generation: int = 0, version: int = 1) -> bytes:
    """The first bytes of a log."""
    return struct.pack("<8sHIH", b"NOBROKER", version, generation, 0)


def write_log(directory: Path, records: Iterable[bytes], generation: int = 0, name: str = "default") -> Path:
    """A log of version 1 without a pointer."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.{generation:06d}.log"
    path.write_bytes(header(generation) + b"".join(records))
    return path


def boundaries(data: bytes) -> list[int]:
    """Where the records of a sound log of version 1 begin, and where the last one ends."""
    found = [16]
    while found[-1] < len(data):
        found.append(found[-1] + 9 + struct.unpack_from("<I", data, found[-1])[0])
    return found


def files_of(directory: Path) -> dict[str, bytes]:
    """Everything in a directory, by name."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own that knows nothing of this package."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed, once it has ended well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out
