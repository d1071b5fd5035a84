"""What idle workers cost: ``python -m tests.bench.idle`` (four minutes; ``--workers``, ``--seconds``).

Processor time of twenty idle ``nobroker_work`` commands, each a supervisor and a child; of one command with twenty
processes; and of twenty Python programs that do nothing but sleep a second, which is how often a command looks: what a
wake-up costs is the machine's affair, and on a virtual machine it is dear. Then the system calls of one idle command,
if ``strace`` is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from .worker import Site, end, family, until_ready, used

SLEEPER = "import time\nwhile True: time.sleep(1.0)"


def workers(directory: str, commands: int, processes: int, seconds: float) -> float:
    """Seconds of processor time of so many idle commands of so many processes each."""
    site = Site(directory)
    works = [site.work("--processes", processes) for _ in range(commands)]
    for work in works:
        until_ready(work, processes)
    time.sleep(5)
    spent = measured([pid for work in works for pid in family(work.pid)], seconds)
    for work in works:
        work.send_signal(signal.SIGTERM)
    for work in works:
        work.wait()
    return spent


def sleepers(number: int, seconds: float) -> float:
    """Seconds of processor time of so many programs that sleep a second again and again."""
    programs = [subprocess.Popen([sys.executable, "-c", SLEEPER]) for _ in range(number)]
    time.sleep(3)
    spent = measured([program.pid for program in programs], seconds)
    for program in programs:
        program.kill()
        program.wait()
    return spent


def measured(pids: list[int], seconds: float) -> float:
    """Their processor time during so many seconds."""
    before = sum(map(used, pids))
    time.sleep(seconds)
    return sum(map(used, pids)) - before


def calls(directory: str, seconds: float) -> dict[str, float]:
    """System calls per second of an idle worker: supervisor, child."""
    site = Site(directory)
    work = site.work()
    until_ready(work)
    time.sleep(3)
    found = {}
    for name, pid in zip(("supervisor", "process"), family(work.pid), strict=False):
        with tempfile.NamedTemporaryFile("r") as table:
            traced = subprocess.Popen(["strace", "-f", "-c", "-o", table.name, "-p", str(pid)], stderr=subprocess.PIPE)
            time.sleep(seconds)
            traced.send_signal(signal.SIGINT)
            traced.communicate()
            total = re.search(r"^100\.00 +\S+ +(?:\d+ +)?(\d+).* total$", table.read(), re.MULTILINE)
        found[name] = int(total[1]) / seconds if total else 0.0
    end(work)
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dir", default="/var/tmp")
    options = parser.parse_args()
    number, seconds = options.workers, options.seconds
    for what, spent in (
        (f"{number} idle commands of one process", workers(options.dir, number, 1, seconds)),
        (f"one idle command of {number} processes", workers(options.dir, 1, number, seconds)),
        (f"{number} programs that sleep a second each time", sleepers(number, seconds)),
    ):
        print(f"{what}, {seconds:g} s: {spent:.2f} s, {100 * spent / seconds:.2f} % of a core")
    if shutil.which("strace"):
        for name, rate in calls(options.dir, 20.0).items():
            print(f"{name}: {rate:.1f} system calls a second")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
