"""The command ``verify``: what it says of whole and of broken queues, its exit codes, and its progress bar."""

import io
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from nobroker_django import Queue
from nobroker_django.cli.progress import ProgressBar

ROOT = Path(__file__).parents[3]


def fill(directory, name="default", count=3):
    """A queue that nobody has open."""
    with Queue(directory, name) as queue:
        queue.enqueue_many([{"n": number} for number in range(count)])
        queue.ack(queue.lease_one())
        queue.stats()
        return queue.path


@pytest.mark.contract("DJ-09")
def test_a_whole_queue_is_called_whole(cli, queue_dir):
    log = fill(queue_dir)
    ended = cli("verify")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines == [
        f"default: generation 1, {log}, checked up to byte {log.stat().st_size}: 7 records in 5 writes",
        "default: by the log: 1 done, 2 ready; the projection says the same",
        "default: whole",
    ]
    [report] = cli("verify", "--json").document["queues"]
    assert report == {
        "queue": "default", "state": "whole", "directory": str(queue_dir), "generation": 1, "version": 2,
        "log": str(log), "end": log.stat().st_size, "records": 7, "writes": 5,
        "jobs": {"ready": 2, "leased": 0, "done": 1, "dead": 0}, "projection": "equal", "behind_bytes": 0,
        "findings": [], "unlisted_findings": 0, "notes": [],
    }  # fmt: skip


def test_queues_are_named_with_and_without_the_option(cli, queue_dir):
    for name in ("a", "b", "c"):
        fill(queue_dir, name)

    def checked(*arguments):
        return [report["queue"] for report in cli("verify", "--json", *arguments).document["queues"]]

    assert checked() == ["a", "b", "c"]
    assert checked("b") == ["b"]
    assert checked("c", "a", "-q", "b") == ["c", "a", "b"]
    assert cli("verify", "nothing").code == 1


@pytest.mark.contract("DJ-09", "LOG-07")
def test_damage_ends_with_3_and_a_torn_tail_with_4(cli, queue_dir):
    log = fill(queue_dir)
    fill(queue_dir, "other")
    data = log.read_bytes()
    log.write_bytes(data + data[16:40])
    torn = cli("verify")
    assert torn.code == 4
    assert f"default: TORN TAIL at byte {len(data)}" in torn.out
    assert torn.lines[-1] == "other: whole"
    assert "default: UNHEALTHY" in torn.lines
    assert "nothing was changed" in torn.err
    log.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    damaged = cli("verify")
    assert damaged.code == 3
    assert "default: DAMAGE at byte" in damaged.out
    assert "default: DAMAGED" in damaged.lines
    [report, other] = cli("verify", "--json").document["queues"]
    assert (report["state"], other["state"]) == ("damaged", "whole")
    assert report["findings"][0].keys() == {"kind", "reason", "path", "offset", "job"}
    log.write_bytes(data[:8] + b"\x09" + data[9:])
    assert cli("verify").code == 1


def test_a_projection_that_differs_ends_with_4_and_names_the_jobs_and_the_next_step(cli, queue_dir):
    fill(queue_dir, count=200)
    [index] = (queue_dir / "default.run").glob("*.index")
    connection = sqlite3.connect(index)
    connection.execute("UPDATE jobs SET priority = 7")
    connection.commit()
    connection.close()
    ended = cli("verify")
    assert ended.code == 4
    assert "the projection says something else" in ended.out
    assert sum("PROJECTION, job" in line for line in ended.lines) == 100
    assert "default: and 100 findings more" in ended.lines
    assert "stop everything that uses the queue and remove" in ended.out
    assert len(cli("verify", "--json").document["queues"][0]["findings"]) == 200


def test_what_a_job_is_called_cannot_write_on_the_terminal(cli, queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue(1, job_id="\x1b]0;owned\x07\r\n")
        queue.stats()
    [index] = (queue_dir / "default.run").glob("*.index")
    connection = sqlite3.connect(index)
    connection.execute("UPDATE jobs SET task = '\x1b[2J'")
    connection.commit()
    connection.close()
    ended = cli("verify")
    assert ended.code == 4
    assert "\x1b" not in ended.out
    assert "\\x1b]0;owned" in ended.out


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_is_drawn_on_a_terminal_at_most_ten_times_a_second_and_wiped():
    time, terminal = [100.0], Terminal()
    with ProgressBar(terminal, "emails: verifying\x1b", clock=lambda: time[0], width=80) as bar:
        for step in range(200):
            time[0] += 0.01
            bar(step * 1_000_000, 200_000_000)
    drawn = terminal.getvalue().split("\r")[1:]
    assert len(drawn) == 21
    assert drawn[0].startswith("emails: verifying\\x1b [....")
    assert "[###############...............]  50%" in drawn[10]
    assert "MB/s" in drawn[10]
    assert all(len(line.removesuffix("\x1b[K")) < 80 for line in drawn)
    assert drawn[-1] == "\x1b[K"


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_without_a_terminal_no_bar_is_drawn(stream):
    with ProgressBar(stream, "x") as bar:
        bar(1, 2)
    assert stream is None or stream.getvalue() == ""


def test_a_terminal_that_is_gone_ends_the_bar_and_not_the_work():
    class Gone(Terminal):
        def write(self, text):
            raise OSError(5, "gone")

    with ProgressBar(Gone(), "x", width=80) as bar:
        bar(1, 2)
        bar(2, 2)


def test_the_bar_goes_to_the_terminal_and_the_result_into_the_pipe(queue_dir):
    fill(queue_dir)
    master, slave = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nobroker_django", "-d", str(queue_dir), "verify", "--json"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=slave, timeout=60, check=True,
        )  # fmt: skip
        shown = os.read(master, 100_000).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert json.loads(done.stdout)["queues"][0]["state"] == "whole"
    assert shown.startswith("\rdefault: verifying [")
    assert shown.endswith("\r\x1b[K")
