"""How long the pages of the admin take over a large queue: ``python -m tests.bench.admin_pages DIRECTORY [JOBS]``.

The queue is made in DIRECTORY when it is not there (a million jobs take minutes): five tasks, one of them rare; ready,
delayed, leased, done and dead jobs. Then every page is asked for a number of times in one process, and its median and
slowest time are printed, in milliseconds, and the median of the processor time, which a busy machine does not change.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from nobroker_django import BackoffPolicy, Queue

ROUNDS = int(os.environ.get("ROUNDS", "7"))
TASKS = [f"shop.tasks.{name}" for name in ("send_mail", "thumbnail", "sync_stock", "invoice", "rare")]
BATCH = 10_000


def make(directory: Path, jobs: int) -> None:
    """Six of ten jobs finished, one in fifty of these dead; one in ten delayed."""
    with Queue(directory, retention=30 * 86_400, max_attempts=1, backoff=BackoffPolicy(base=0)) as queue:
        for start in range(0, jobs, BATCH):
            numbers = range(start, start + BATCH)
            queue.enqueue_many(
                [
                    {
                        "task": TASKS[4] if number % 50_000 == 7 else TASKS[number % 4],
                        "args": [number, "x" * 50],
                        "kwargs": {"to": f"user{number}@example.org"},
                    }
                    for number in numbers
                ],
                delay=[3600.0 if number % 10 == 0 else 0.0 for number in numbers],
            )
        finished = 0
        while finished < jobs * 0.6 and (leased := queue.lease(1000)):
            for job in leased[:20]:
                queue.nack(job, error=ValueError("no such address"))
            queue.ack_many(leased[20:])
            finished += len(leased)
        queue.lease(10, visibility_timeout=1e6)


def main(directory: Path, jobs: int) -> None:
    """Make what is not there, then measure."""
    if not (directory / "default.current").exists():
        make(directory, jobs)
    began = time.perf_counter()
    with Queue(directory, retention=30 * 86_400) as queue:
        queue.stats()
        print(f"the projection was brought up to date in {time.perf_counter() - began:.1f} s")
    os.environ.setdefault("NOBROKER_TESTS_DIR", tempfile.mkdtemp(prefix="nobroker-bench-"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.conf import settings

    settings.NOBROKER = {"DIR": str(directory)}
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser(f"bench{time.time_ns()}"))
    with Queue(directory, read_only=True) as queue:
        stats = queue.stats()
        some, dead = queue.list_jobs("ready", limit=1)[0], queue.dlq(limit=1)[0]
    print(stats)
    base = "/admin/nobroker_django"
    pages = {
        "list": f"{base}/job/",
        "list, oldest first": f"{base}/job/?o=4",
        "list, page 50": f"{base}/job/?p=50",
        "list, last page": f"{base}/job/?p=100",
        **{f"state {name}": f"{base}/job/?state={name}" for name in ("ready", "delayed", "leased", "done", "dead")},
        **{
            f"state {name}, oldest first": f"{base}/job/?state={name}&o=4"
            for name in ("ready", "delayed", "leased", "done")
        },
        "task, common": f"{base}/job/?task={TASKS[0]}",
        "task, rare": f"{base}/job/?task={TASKS[4]}",
        "task and state": f"{base}/job/?task={TASKS[0]}&state=done",
        "task, rare, and state": f"{base}/job/?task={TASKS[4]}&state=leased",
        "error": f"{base}/job/?error=ValueError",
        "error, none": f"{base}/job/?error=NoSuchError",
        "search by id": f"{base}/job/?q={some.id}",
        "search by id, none": f"{base}/job/?q=ffffffffffff",
        "search by beginning of id": f"{base}/job/?q={some.id[:9]}",
        "search by task": f"{base}/job/?q=shop.tasks.se",
        "search by rare task": f"{base}/job/?q=shop.tasks.rare",
        "search by every task": f"{base}/job/?q=shop",
        "detail": f"{base}/job/default:{some.id}/change/",
        "detail, dead": f"{base}/deadletter/default:{dead.id}/change/",
        "dead letters": f"{base}/deadletter/",
        "dead letters, last page": f"{base}/deadletter/?p=100",
        "dead letters of a task": f"{base}/deadletter/?task={TASKS[1]}",
        "dead letters by search": f"{base}/deadletter/?q=shop.tasks.th",
    }
    for name, address in pages.items():
        times, busy = [], []
        for _ in range(ROUNDS):
            began, began_busy = time.perf_counter(), time.process_time()
            response = client.get(address)
            times.append((time.perf_counter() - began) * 1000)
            busy.append((time.process_time() - began_busy) * 1000)
            assert response.status_code == 200, (name, response.status_code, response.headers.get("Location"))
            assert b"nobroker-notice" not in response.content, (name, "not the whole queue")
        median, median_busy = statistics.median(times), statistics.median(busy)
        print(f"{name:32} median {median:7.1f} ms   slowest {max(times):7.1f} ms   processor {median_busy:7.1f} ms")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
