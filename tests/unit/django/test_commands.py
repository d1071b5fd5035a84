"""The commands that show and repair: stats, dlq, compact."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from nobroker_django import JobState, Queue
from nobroker_django.execution import execute
from nobroker_django.queues import get_queue

from .sample import add, send


def run(name, *args):
    out = io.StringIO()
    call_command(name, *args, stdout=out)
    return out.getvalue()


def run_json(name, *args):
    text = run(name, *args, "--json")
    assert text.count("\n") == 1
    document = json.loads(text)
    assert document["schema"] == 1
    return document


def refused(name, *args, code):
    with pytest.raises(CommandError) as raised:
        run(name, *args)
    assert raised.value.returncode == code
    return str(raised.value)


def make_dead(error="went wrong", alias="default"):
    queue = get_queue(alias)
    job = queue.enqueue({"task": "x.y", "args": [1], "kwargs": {"a": "b"}}, max_attempts=1)
    while (leased := queue.lease_one()).id != job.id:
        queue.ack(leased)
    queue.nack(leased, error=error)
    return job.id


def test_stats_shows_each_queue_on_a_line():
    add.enqueue(1)
    add.using(delay=100).enqueue(2)
    send.enqueue("a@example.org")
    execute(get_queue("emails"), get_queue("emails").lease_one())
    lines = [line.split() for line in run("nobroker_stats").splitlines()]
    assert lines[0][:7] == ["QUEUE", "READY", "DELAYED", "LEASED", "DONE", "DEAD", "ENQUEUED"]
    assert lines[1][:7] == ["default", "1", "1", "0", "0", "0", "2"]
    assert lines[2] == ["emails", "0", "0", "0", "1", "0", "1", "-"]


def test_stats_of_one_queue_as_json():
    send.enqueue("a@example.org")
    [report] = run_json("nobroker_stats", "-q", "emails")["queues"]
    assert (report["queue"], report["in_settings"], report["ready"], report["enqueued_total"]) == (
        "emails",
        True,
        1,
        1,
    )


def test_stats_shows_the_jobs_of_a_queue_that_was_removed_from_the_settings(tmp_path):
    with Queue(tmp_path / "queues", "old") as queue:
        queue.enqueue("left over")
    text = run("nobroker_stats")
    assert "Queue old is not in NOBROKER['QUEUES']: no worker serves its jobs." in text
    document = run_json("nobroker_stats")["queues"]
    assert [(report["queue"], report["in_settings"], report["ready"]) for report in document] == [
        ("default", True, 0),
        ("emails", True, 0),
        ("old", False, 1),
    ]


@pytest.mark.parametrize("command", ["nobroker_stats", "nobroker_dlq", "nobroker_compact", "nobroker_work"])
def test_an_unknown_queue_is_a_usage_error_that_lists_the_known_ones(command):
    message = refused(command, "--queue", "emial", code=2)
    assert "'emial'" in message
    assert "Known queues: default, emails" in message


@pytest.mark.parametrize("command", ["nobroker_stats", "nobroker_dlq", "nobroker_compact", "nobroker_work"])
def test_wrong_settings_are_refused_with_a_sentence(command, settings):
    settings.NOBROKER = {"DIR": "/tmp/x", "QUEUE": {}}
    assert "NOBROKER has no key 'QUEUE'" in refused(command, code=1)


def test_dlq_lists_one_dead_letter_a_line_whatever_it_holds():
    first = make_dead("first\r\n2026-01-01 INFO all is well\x1b[2J\u202e")
    second = make_dead("second", "emails")
    lines = run("nobroker_dlq").splitlines()
    assert len(lines) == 2
    assert first in lines[0]
    assert r"first\r\n2026-01-01 INFO all is well\x1b[2J\u202e" in lines[0]
    assert 'x.y args=[1] kwargs={"a": "b"}' in lines[0]
    assert "1/1" in lines[0]
    assert second in lines[1]
    assert "emails" in lines[1]


def test_dlq_as_json_is_lossless():
    error = "a\r\n\x1b[2J\u202e\x00"
    job_id = make_dead(error)
    document = run_json("nobroker_dlq")
    assert document["queue"] is None
    [job] = document["jobs"]
    assert (job["id"], job["queue"], job["state"], job["last_error"]) == (job_id, "default", "dead", error)
    assert job["errors"][0]["message"] == error
    assert run_json("nobroker_dlq", "-q", "emails") == {"schema": 1, "queue": "emails", "jobs": []}


def test_dlq_says_when_it_has_nothing_or_not_everything_to_show():
    assert run("nobroker_dlq") == "no dead letters\n"
    for _ in range(3):
        make_dead()
    lines = run("nobroker_dlq", "--limit", "2").splitlines()
    assert len(lines) == 3
    assert lines[2] == "default: the first 2 are shown; --limit shows more"
    assert len(run("nobroker_dlq", "--limit", "3").splitlines()) == 3


def test_dlq_requeues_the_named_jobs_of_any_queue():
    first, second, third = make_dead(), make_dead(), make_dead(alias="emails")
    assert run("nobroker_dlq", "--requeue", first, third, first) == "2 requeued\n"
    assert get_queue().get(first).state is JobState.READY
    assert get_queue().get(first).attempts == 0
    assert get_queue().get(second).state is JobState.DEAD
    assert get_queue("emails").get(third).state is JobState.READY


def test_dlq_names_the_ids_that_are_no_dead_letters_and_requeues_the_others():
    dead = make_dead()
    alive = add.enqueue(1).id
    message = refused("nobroker_dlq", "--requeue", dead, alive, "nothing\n", code=1)
    assert message == rf"no dead letter has the id {alive}, nothing\n"
    assert get_queue().get(dead).state is JobState.READY


def test_dlq_requeues_all_after_asking(monkeypatch):
    for _ in range(3):
        make_dead()
    make_dead(alias="emails")
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert "nothing was requeued" in refused("nobroker_dlq", "--requeue", "--all", code=1)
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert run("nobroker_dlq", "--requeue", "--all", "-q", "default") == "3 requeued\n"
    monkeypatch.undo()
    assert run_json("nobroker_dlq", "--requeue", "--all", "--yes") == {"schema": 1, "requeued": 1, "not_found": []}
    assert get_queue().stats().dead == 0


@pytest.mark.parametrize("args", [["--requeue"], ["--all"], ["--requeue", "x", "--all"]])
def test_dlq_wants_to_know_which_jobs(args):
    make_dead()
    assert "name the jobs" in refused("nobroker_dlq", *args, code=2)
    assert get_queue().stats().dead == 1


@pytest.mark.parametrize("limit", ["0", "-1", "x"])
def test_a_limit_that_is_no_number_above_zero_is_a_usage_error(limit):
    with pytest.raises(CommandError, match="--limit"):
        run("nobroker_dlq", "--limit", limit)


def test_compact_drops_finished_jobs_past_their_retention(settings):
    settings.NOBROKER = {**settings.NOBROKER, "RETENTION": 0}
    for n in range(5):
        add.enqueue(n)
        execute(get_queue(), get_queue().lease_one())
    kept = add.enqueue(1)
    assert "default: " in run("nobroker_compact", "-q", "default")
    [report] = run_json("nobroker_compact", "-q", "default")["queues"]
    assert (report["queue"], report["jobs_kept"]) == ("default", 1)
    assert report["bytes_reclaimed"] == report["bytes_before"] - report["bytes_after"]
    assert get_queue().stats().total == 1
    kept.refresh()


def test_a_damaged_log_ends_with_its_own_exit_code():
    add.enqueue(1)
    log = get_queue().path
    get_queue().close()
    from nobroker_django.queues import close_queues

    close_queues()
    data = bytearray(log.read_bytes())
    data[-40] ^= 1
    log.write_bytes(bytes(data))
    message = refused("nobroker_stats", code=3)
    assert "damaged at byte" in message
    assert log.read_bytes() == bytes(data)
