"""Processes in other PID namespaces, which reach the directory by another path, as containers on one volume do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nobroker_django import JobState
from tests.support.disks import Disk, needs_root
from tests.support.storm import open_queue

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
from nobroker_django import Queue
with Queue(sys.argv[1], visibility_timeout=1e6, retention=1e6) as queue:
    job = queue.lease_one()
    for number in range(50):
        queue.enqueue([sys.argv[2], number])
    print(os.getpid(), job.id, flush=True)
    sys.stdin.readline()
    queue.ack(job)
    queue.compact()
"""


def contained(directory: Path, name: str) -> "subprocess.Popen[str]":
    """The program as the first process of a PID namespace of its own, which has the number 1 there."""
    command = [
        "unshare",
        "--pid",
        "--uts",
        "--fork",
        "--kill-child",
        sys.executable,
        "-c",
        PROGRAM,
        str(directory),
        name,
    ]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@needs_root
@pytest.mark.contract("PROC-01", "PROC-03", "LEASE-02")
def test_containers_on_one_volume(queue_dir: Path, tmp_path: Path):
    """C75, C05: all of them have the process id 1, and one that is killed takes nothing with it."""
    if subprocess.run(["unshare", "--pid", "--uts", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    with open_queue(queue_dir) as queue, Disk(tmp_path / "volume", "--bind", str(queue_dir)) as volume:
        queue.enqueue_many(["a", "b", "c"], priority=1)
        containers = [contained(volume.path, name) for name in ("one", "two", "three")]
        try:
            said = [container.stdout.readline().split() for container in containers]
            assert [pid for pid, _ in said] == ["1", "1", "1"]
            assert len({job_id for _, job_id in said}) == 3
            os.kill(containers[0].pid, signal.SIGKILL)
            containers[0].wait()
            containers[0].communicate()
            assert queue.lease(1, timeout=0)[0].payload[1] == 0  # of the three none is free: leases have deadlines
            for container in containers[1:]:
                _, text = container.communicate("go\n", timeout=60)
                assert container.returncode == 0, text
        finally:
            for container in containers:
                container.kill()
        states = {job.id: job.state for job in queue.list_jobs()}
        assert [states[job_id] for _, job_id in said] == [JobState.LEASED, JobState.DONE, JobState.DONE]
        assert sum(isinstance(job.payload, list) for job in queue.list_jobs()) == 150
        queue.enqueue("after")
