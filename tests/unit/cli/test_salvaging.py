"""``recover --salvage``: it says what would be kept and lost, asks, and leaves what is not damaged alone."""

import json

import pytest

from nobroker_django import Queue
from tests.support import bytes as raw


@pytest.fixture
def damaged(queue_dir):
    """The log of a queue whose second job and whose first lease are damaged."""
    with Queue(queue_dir) as queue:
        queue.enqueue_many([{"n": number} for number in range(5)], job_ids=[f"job-{number}" for number in range(5)])
        for job in queue.lease(2):
            queue.ack(job)
        queue.stats()
        log = queue.path
    data = bytearray(log.read_bytes())
    frames = raw.parse(bytes(data))
    second = next(one for one in frames if one.body.get("id") == "job-1")
    lease = next(one for one in frames if one.type == 2)
    for one in (second, lease):
        data[one.end - 3] ^= 1
    log.write_bytes(data)
    return log


@pytest.fixture
def asked(monkeypatch):
    """Answers the questions, and keeps count of them."""
    answers = []

    def answer(text):
        monkeypatch.setattr("builtins.input", lambda prompt: answers.append(text) or text)
        return answers

    return answer


@pytest.mark.contract("LOG-07", "DJ-09")
def test_it_says_what_it_is_about_to_do_and_asks(cli, queue_dir, damaged, asked):
    log = damaged
    before = log.read_bytes()
    answers = asked("n")
    ended = cli("recover", "--salvage")
    assert ended.code == 1
    assert answers == ["n"]
    assert "nothing was changed" in ended.err
    assert "Make a new generation of default out of this" in ended.err
    assert f"default: {log}: 9 intact records, which make 3 ready, 1 done" in ended.lines
    assert "DAMAGE from byte" in ended.out
    assert "jobs named there: job-1" in ended.out
    assert "LOST: job job-1: its own record is gone; the last that speaks of it is ACK" in ended.out
    assert "CHANGED: job job-0, before byte" in ended.out
    assert "UNDECIDED: 3 unfinished jobs" in ended.out
    assert log.read_bytes() == before
    assert sorted(path.name for path in queue_dir.glob("*.*")) == [
        "default.000001.log", "default.current", "default.lock", "default.run"
    ]  # fmt: skip


@pytest.mark.contract("LOG-07", "DJ-09")
def test_a_yes_makes_the_new_generation(cli, queue_dir, damaged, asked):
    answers = asked("y")
    ended = cli("recover", "--salvage")
    assert (ended.code, answers) == (0, ["y"])
    assert ended.lines[-1] == (
        f"default: salvaged: generation 2 is live. The damaged log is kept in {queue_dir / 'default.damaged-1-1'}; "
        f"{queue_dir / 'default.salvage-2.jsonl'} lists all that may be lost or changed"
    )
    with Queue(queue_dir) as queue:
        states = {job.id: job.state.value for job in queue.list_jobs()}
    assert states == {"job-0": "done", "job-2": "ready", "job-3": "ready", "job-4": "ready"}
    assert cli("verify").code == 0
    report = cli("recover")
    assert f"default: kept by a salvage: {queue_dir / 'default.damaged-1-1'}" in report.lines
    assert cli("recover", "--json").document["queues"][0]["salvaged"] == [
        str(queue_dir / "default.damaged-1-1"), str(queue_dir / "default.salvage-2.jsonl")
    ]  # fmt: skip
    again = cli("recover", "--salvage")
    assert (again.code, again.lines) == (0, ["default: not damaged; there is nothing to salvage"])


@pytest.mark.parametrize("option", ["--yes", "--noinput", "--no-input"])
def test_it_can_be_told_not_to_ask(cli, queue_dir, damaged, asked, option):
    Queue(queue_dir, "other").close()
    answers = asked("n")
    document = cli("recover", "--salvage", option, "--json").document
    assert answers == []
    done, other = document["queues"]
    assert other == {"queue": "other", "salvaged": False}
    assert (done["queue"], done["salvaged"], done["damaged_generation"], done["generation"]) == ("default", True, 1, 2)
    assert done["jobs"] == {"ready": 3, "leased": 0, "done": 1, "dead": 0}
    assert [one["job"] for one in done["lost"]] == ["job-1"]
    assert {one["job"] for one in done["changed"]} == {"job-0"}
    assert done["undecided"] == 3
    lines = [json.loads(line) for line in (queue_dir / "default.salvage-2.jsonl").read_text().splitlines()]
    assert [line["job"] for line in lines if line["kind"] == "undecided"] == ["job-2", "job-3", "job-4"]


def test_yes_alone_is_wrong_usage(cli, queue_dir, damaged):
    assert cli("recover", "--yes").code == 2


def test_a_queue_in_use_is_refused(cli, queue_dir, damaged, monkeypatch):
    monkeypatch.setattr("nobroker_django.engine.salvage.LOCK_SECONDS", 0.05)
    with Queue(queue_dir):
        ended = cli("recover", "--salvage", "--yes")
    assert ended.code == 1
    assert "Stop the workers" in ended.err
    assert not list(queue_dir.glob("default.damaged-*"))


def test_a_pointer_that_is_missing_is_not_for_salvage(cli, queue_dir, damaged):
    (queue_dir / "default.current").unlink()
    ended = cli("recover", "--salvage", "--yes")
    assert ended.code == 3
    assert "write its number into the file" in ended.err
    assert not (queue_dir / "default.current").exists()


def test_long_lists_are_cut_and_the_report_has_all(cli, queue_dir, asked):
    with Queue(queue_dir) as queue:
        queue.enqueue_many([{"n": n} for n in range(60)], job_ids=[f"job-{n:02}" for n in range(60)])
        queue.ack_many(queue.lease(60))
        log = queue.path
    data = bytearray(log.read_bytes())
    frames = raw.parse(bytes(data))
    enqueued = [one for one in frames if one.type == 1]
    data[enqueued[1].start : enqueued[50].end] = bytes(enqueued[50].end - enqueued[1].start)
    log.write_bytes(data)
    asked("y")
    ended = cli("recover", "--salvage")
    assert sum("LOST" in line for line in ended.lines) == 20
    assert "default: and 30 more of this kind" in ended.lines
    lines = [json.loads(line) for line in (queue_dir / "default.salvage-2.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "lost" for line in lines) == 50


def test_what_the_damaged_bytes_say_cannot_write_on_the_terminal(cli, queue_dir, asked):
    with Queue(queue_dir) as queue:
        queue.enqueue(1, job_id="\x1b]0;owned\x07")
        queue.enqueue(2, job_id="\x1b[2J")
        queue.ack(queue.lease_one())
        log = queue.path
    data = bytearray(log.read_bytes())
    one = next(one for one in raw.parse(bytes(data)) if one.type == 1)
    data[one.end - 3] ^= 1
    log.write_bytes(data)
    asked("y")
    ended = cli("recover", "--salvage")
    assert ended.code == 0
    assert "\x1b" not in ended.out + ended.err
    assert "\\x1b]0;owned" in ended.out
