"""How quick ``nobroker_work`` is: ``python -m tests.bench.worker`` (about two minutes; ``--jobs``, ``--dir``).

* 10,000 no-op jobs, durable, from the start of the command to its end with ``--drain``, and while it works;
* from the return of ``enqueue`` to the start of the job in an idle worker: median and 99th percentile;
* processor time of twenty idle workers in a minute, as a share of one core;
* from ``kill -9`` of the process that runs a job to the job's second start.

Each on a fresh directory below ``--dir`` (a local disk, not tmpfs).
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = """
SECRET_KEY = "bench"
INSTALLED_APPS = ["nobroker_django"]
NOBROKER = {"DIR": %r, "IMPORTS": ["bench_tasks"]}
USE_TZ = True
"""
TASKS = """
import os, signal, time
from nobroker_django import task

@task
def nothing():
    pass

@task
def stamp(path):
    with open(path, "a") as file:
        file.write(f"{time.time()} {os.getpid()}\\n")

@task
def hold(path):
    stamp(path)
    time.sleep(60)
"""


class Site:
    """A fresh project with a queue directory of its own."""

    def __init__(self, directory: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="worker-", dir=directory))
        (self.path / "bench_settings.py").write_text(SETTINGS % str(self.path / "queues"))
        (self.path / "bench_tasks.py").write_text(TASKS)
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "bench_settings",
            "PYTHONPATH": f"{self.path}{os.pathsep}{ROOT}",
        }

    def python(self, code: str) -> str:
        """What a program prints that has the project set up."""
        begin = "import django; django.setup(); import bench_tasks as tasks, time, sys\n"
        done = subprocess.run(
            [sys.executable, "-c", begin + code], env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def work(self, *arguments: object) -> subprocess.Popen[str]:
        """A started ``nobroker_work``, whose output can be read."""
        command = [sys.executable, "-u", "-m", "django", "nobroker_work", *map(str, arguments)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


def until_ready(work: subprocess.Popen[str], processes: int = 1) -> None:
    """Read the output until so many processes have said that they are ready; then leave it to be thrown away."""
    assert work.stdout is not None
    ready = 0
    while ready < processes:
        line = work.stdout.readline()
        assert line, "the worker has ended"
        ready += ": ready for" in line
    subprocess.Popen(["cat"], stdin=work.stdout, stdout=subprocess.DEVNULL)


def end(work: subprocess.Popen[str]) -> None:
    work.send_signal(signal.SIGTERM)
    work.wait()


def throughput(directory: str, jobs: int, processes: int, threads: int) -> tuple[float, float]:
    """Jobs per second: of the whole command, and between the first and the last outcome."""
    site = Site(directory)
    site.python(f"tasks.nothing.enqueue_many(tasks.nothing.s() for _ in range({jobs}))")
    begun = time.perf_counter()
    work = site.work("--drain", "--processes", processes, "--threads", threads, "--verbosity", 0)
    work.communicate()
    took = time.perf_counter() - begun
    code = (
        "from nobroker_django.queues import get_queue; jobs = get_queue().list_jobs(limit=10**6)\n"
        "times = sorted(job.finished_at for job in jobs if job.state == 'done')\n"
        "print(len(times), times[-1] - times[0])"
    )
    done, span = site.python(code).split()
    assert int(done) == jobs, done
    return jobs / took, jobs / float(span)


def latency(directory: str, jobs: int) -> tuple[float, float]:
    """Milliseconds from the return of ``enqueue`` to the start of the job: median, 99th percentile."""
    site = Site(directory)
    work = site.work("--threads", 2)
    until_ready(work)
    trace = site.path / "trace"
    code = f"for _ in range({jobs}):\n    tasks.stamp.enqueue({str(trace)!r}); print(time.time()); time.sleep(0.03)\n"
    enqueued = [float(line) for line in site.python(code).split()]
    while len(trace.read_text().splitlines()) < jobs:
        time.sleep(0.05)
    started = [float(line.split()[0]) for line in trace.read_text().splitlines()]
    end(work)
    waits = sorted(1000 * (after - before) for before, after in zip(enqueued, started, strict=True))
    return statistics.median(waits), waits[int(len(waits) * 0.99)]


def idle(directory: str, workers: int, seconds: float) -> float:
    """Share of a core that so many idle workers, each with its supervisor, use together."""
    site = Site(directory)
    works = [site.work() for _ in range(workers)]
    for work in works:
        until_ready(work)
    time.sleep(3)
    pids = [pid for work in works for pid in family(work.pid)]
    before = sum(map(used, pids))
    time.sleep(seconds)
    spent = sum(map(used, pids)) - before
    for work in works:
        work.send_signal(signal.SIGTERM)
    for work in works:
        work.wait()
    return spent / seconds


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def used(pid: int) -> float:
    """Seconds of processor time of all threads. (The ticks of ``stat`` charge too much to what a timer wakes.)"""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def recovery(directory: str, rounds: int) -> float:
    """Milliseconds from ``kill -9`` to the second start of the job, the longest of some."""
    worst = 0.0
    for _ in range(rounds):
        site = Site(directory)
        work = site.work("--processes", 2, "--threads", 1)
        until_ready(work, 2)
        trace = site.path / "trace"
        site.python(f"tasks.hold.enqueue({str(trace)!r})")
        while not trace.exists() or not trace.read_text():
            time.sleep(0.01)
        killed = time.time()
        os.kill(int(trace.read_text().split()[1]), signal.SIGKILL)
        while len(lines := trace.read_text().splitlines()) < 2:
            time.sleep(0.005)
        worst = max(worst, 1000 * (float(lines[1].split()[0]) - killed))
        work.send_signal(signal.SIGTERM)
        work.send_signal(signal.SIGTERM)
        work.wait()
    return worst


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    options = parser.parse_args()
    for processes, threads in ((1, 1), (1, 4), (2, 2), (2, 4), (2, 8)):
        whole, busy = throughput(options.dir, options.jobs, processes, threads)
        print(f"{options.jobs} no-op jobs, {processes} x {threads}: {whole:,.0f}/s with start and end, {busy:,.0f}/s")
    median, late = latency(options.dir, 500)
    print(f"idle to start: p50 {median:.2f} ms, p99 {late:.2f} ms")
    print(f"kill -9 to the second start, longest of 5: {recovery(options.dir, 5):.0f} ms")
    print(f"20 idle workers: {100 * idle(options.dir, 20, options.idle_seconds):.2f} % of a core")


if __name__ == "__main__":
    main()
