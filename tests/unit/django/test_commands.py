"""The management commands: what they print, do and refuse."""

import io
import json
import re
import time
from datetime import date

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from nobroker_django import JobState, Queue
from nobroker_django.cli.looking import Filter
from nobroker_django.execution import execute
from nobroker_django.queues import close_queues, get_queue

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
    assert lines[2] == ["emails", "0", "0", "0", "1", "0", "1", "-", "-"]


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
    """C87."""
    with Queue(tmp_path / "queues", "old") as queue:
        queue.enqueue("left over")
    text = run("nobroker_stats")
    assert "Queue old is not in NOBROKER['QUEUES']: no worker serves its jobs." in text
    assert re.search(r"^old +1 .* [0-9.]+s +-$", text, re.MULTILINE)  # for how long the oldest one has waited
    document = run_json("nobroker_stats")["queues"]
    assert [(report["queue"], report["in_settings"], report["ready"]) for report in document] == [
        ("default", True, 0),
        ("emails", True, 0),
        ("old", False, 1),
    ]


COMMANDS = [
    *("nobroker_stats", "nobroker_list", "nobroker_dlq", "nobroker_inspect", "nobroker_recover", "nobroker_purge"),
    "nobroker_verify",
    *("nobroker_compact", "nobroker_work"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_queue_is_a_usage_error_that_lists_the_known_ones(command):
    """C87."""
    message = refused(command, "--queue", "emial", code=2)
    assert "'emial'" in message
    assert "Known queues: default, emails" in message


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_settings_are_refused_with_a_sentence(command, settings):
    settings.NOBROKER = {"DIR": "/tmp/x", "QUEUE": {}}
    assert "NOBROKER has no key 'QUEUE'" in refused(command, code=1)


@pytest.mark.contract("DJ-09")
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


@pytest.mark.contract("DJ-09")
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


@pytest.mark.parametrize(
    "args",
    [
        ["--requeue"],
        ["--all"],
        ["--requeue", "x", "--all"],
        ["--requeue", "x", "--task", "x.y"],
        ["--requeue", "--all", "--error-class", "ValueError"],
        ["--requeue", "--all", "--task", ""],
    ],
)
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


@pytest.mark.contract("DJ-09")
def test_a_damaged_log_ends_with_its_own_exit_code():
    add.enqueue(1)
    log = get_queue().path
    get_queue().close()
    close_queues()
    data = bytearray(log.read_bytes())
    data[-40] ^= 1
    log.write_bytes(bytes(data))
    message = refused("nobroker_stats", code=3)
    assert "damaged at byte" in message
    assert log.read_bytes() == bytes(data)


# -- dead letters by what they are


def make_dead_task(task, error, *, at=None, alias="default"):
    clock = (lambda: at) if at is not None else time.time
    close_queues()
    with Queue(get_queue(alias).dir, alias, clock=clock) as queue:
        job = queue.enqueue({"task": task, "args": [], "kwargs": {}}, max_attempts=1, priority=100)
        queue.nack(queue.lease_one(), error=error)
    close_queues()
    return job.id


def test_dlq_lists_and_requeues_by_task_and_error_class():
    first = make_dead_task("a.b", ValueError("x"))
    second = make_dead_task("a.b", KeyError("x"))
    third = make_dead_task("a.bc", ValueError("x"))
    fourth = make_dead_task("a.b", ValueError("x"), alias="emails")

    def ids(*args):
        return [job["id"] for job in run_json("nobroker_dlq", *args)["jobs"]]

    assert ids("--task", "a.b") == [first, second, fourth]
    assert ids("--error-class", "ValueError") == [first, third, fourth]
    assert ids("--error-class", "Value") == []
    assert ids("--task", "a.b", "--error-class", "ValueError", "-q", "default") == [first]
    requeued = run_json("nobroker_dlq", "--requeue", "--task", "a.b", "--error-class", "ValueError")
    assert requeued == {"schema": 1, "requeued": 2, "not_found": []}
    assert ids() == [second, third]
    assert run("nobroker_dlq", "--requeue", "--task", "a.b") == "1 requeued\n"
    assert run("nobroker_dlq", "--requeue", "--task", "none") == "0 requeued\n"
    assert ids() == [third]


def test_dlq_prunes_what_is_old_after_asking(monkeypatch):
    now = time.time()
    old = make_dead_task("a.b", "x", at=now - 31 * 86_400)
    other = make_dead_task("c.d", "x", at=now - 31 * 86_400)
    young = make_dead_task("a.b", "x", at=now - 29 * 86_400)
    waiting = add.enqueue(1).id
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    assert "nothing was pruned" in refused("nobroker_dlq", "--prune", "--older-than", "30d", code=1)
    assert get_queue().stats().dead == 3
    assert run("nobroker_dlq", "--prune", "--older-than", "30d", "--task", "a.b", "--yes") == "1 pruned\n"
    assert {job.id for job in get_queue().dlq()} == {other, young}
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert run_json("nobroker_dlq", "--prune", "--older-than", "30d") == {"schema": 1, "pruned": 1}
    assert [job.id for job in get_queue().dlq()] == [young]
    assert get_queue().get(waiting).state is JobState.READY
    assert old not in {job.id for job in get_queue().list_jobs("dead")}
    monkeypatch.undo()
    assert run("nobroker_dlq", "--prune", "--older-than", "30d") == "0 pruned\n"  # nothing to ask about


class TimeLimitExceeded(Exception):
    pass


def test_dlq_takes_the_name_of_an_error_class_with_its_module_or_without():
    mine = make_dead_task("a.b", TimeLimitExceeded("x"))
    other = make_dead_task("a.b", ValueError("x"))
    nameless = make_dead_task("a.b", "x")

    def ids(name):
        return [job["id"] for job in run_json("nobroker_dlq", "--error-class", name)["jobs"]]

    assert ids("TimeLimitExceeded") == ids(f"{__name__}.TimeLimitExceeded") == [mine]
    assert ids("elsewhere.TimeLimitExceeded") == ids("LimitExceeded") == ids("None") == []
    # The others are not read to find it.
    assert [job.id for job in Filter("dead", error_class="TimeLimitExceeded").page(get_queue(), -1)] == [mine]
    assert run("nobroker_dlq", "--requeue", "--error-class", "TimeLimitExceeded") == "1 requeued\n"
    assert [job.id for job in get_queue().dlq()] == [other, nameless]


def test_dlq_discards_the_named_dead_letters_of_any_queue_after_asking(monkeypatch, capsys):
    first, second, third = make_dead(), make_dead(), make_dead(alias="emails")
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    assert "nothing was discarded" in refused("nobroker_dlq", "--discard", first, third, code=1)
    assert "Forget 2 dead letters of default, emails, for ever?" in capsys.readouterr().err
    assert (get_queue().stats().dead, get_queue("emails").stats().dead) == (2, 1)
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert run("nobroker_dlq", "--discard", first, third, first) == "2 discarded\n"
    assert [job.id for job in get_queue().dlq()] == [second]
    assert get_queue("emails").stats().total == 0
    monkeypatch.undo()
    assert run_json("nobroker_dlq", "--discard", second, "--yes") == {"schema": 1, "discarded": 1, "not_found": []}


def test_dlq_names_the_ids_that_are_no_dead_letters_and_discards_the_others():
    dead = make_dead()
    alive = add.enqueue(1).id
    message = refused("nobroker_dlq", "--discard", dead, alive, "nothing", "--yes", code=1)
    assert message == f"no dead letter has the id {alive}, nothing"
    assert get_queue().stats().dead == 0
    assert get_queue().get(alive).state is JobState.READY
    assert refused("nobroker_dlq", "--discard", "nothing", code=1) == "no dead letter has the id nothing"  # not asked


@pytest.mark.parametrize(
    "args", [["--requeue", "x"], ["--prune"], ["--all"], ["--task", "x.y"], ["--error-class", "E"]]
)
def test_dlq_discards_by_ids_alone(args):
    dead = make_dead()
    refused("nobroker_dlq", "--discard", dead, *args, "--yes", code=2)
    assert get_queue().stats().dead == 1


def test_a_key_is_free_when_its_dead_letter_is_discarded(make):
    made = make(lambda: 1 / 0, name="unique work", unique=True)
    dead = made.using(max_attempts=1).enqueue()
    execute(get_queue(), get_queue().lease_one())
    assert made.enqueue().created is False
    assert run("nobroker_dlq", "--discard", dead.id, "--yes") == "1 discarded\n"
    assert made.enqueue().created is True


@pytest.mark.parametrize(
    "args", [["--prune"], ["--older-than", "1d"], ["--prune", "--older-than", "1d", "--requeue", "x"]]
)
def test_pruning_wants_an_age(args):
    make_dead()
    refused("nobroker_dlq", *args, code=2)
    assert get_queue().stats().dead == 1


@pytest.mark.contract("RETRY-03")
def test_an_interrupted_requeue_leaves_each_job_in_one_place(monkeypatch):
    """C18: interrupted after some, run again to the end; nothing is lost or doubled, attempts are fresh."""
    ids = {make_dead(f"error {number}") for number in range(6)}
    monkeypatch.setattr("nobroker_django.cli.changing._PAGE", 2)
    calls: list[object] = []
    real = Queue.requeue_dead

    def interrupted(self, *args):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(args)
        return real(self, *args)

    monkeypatch.setattr(Queue, "requeue_dead", interrupted)
    refused("nobroker_dlq", "--requeue", "--task", "x.y", code=130)
    stats = get_queue().stats()
    assert (stats.ready, stats.dead) == (4, 2)
    monkeypatch.undo()
    assert run("nobroker_dlq", "--requeue", "--task", "x.y") == "2 requeued\n"
    jobs = get_queue().list_jobs("ready")
    assert {job.id for job in jobs} == ids
    assert {job.attempts for job in jobs} == {0}


# -- list


def test_list_shows_each_job_on_a_line():
    one = add.enqueue(1, b=2).id
    two = send.using(delay=1000).enqueue("ann\n@example.org").id
    first, second = run("nobroker_list").splitlines()
    assert first.split(maxsplit=4)[1:4] == ["default", one, "ready"]
    assert 'tests.unit.django.sample.add args=[1] kwargs={"b": 2}' in first
    assert second.split(maxsplit=4)[1:4] == ["emails", two, "delayed"]
    assert r'["ann\n@example.org"]' in second
    assert "not before " in second
    assert run("nobroker_list", "--state", "dead") == "no jobs\n"
    assert [job["id"] for job in run_json("nobroker_list", "--task", send.name)["jobs"]] == [two]
    assert run_json("nobroker_list", "-q", "default")["queue"] == "default"


def test_looking_at_queues_that_nobody_has_used_creates_nothing(settings, tmp_path):
    assert run("nobroker_list") == "no jobs\n"
    assert run("nobroker_dlq") == "no dead letters\n"
    assert run("nobroker_stats").splitlines()[1].split() == ["default", *"000000", "-", "-"]
    assert run("nobroker_inspect") == ""
    assert "has been used yet" in run("nobroker_recover")
    assert "has been used yet" in run("nobroker_verify")
    assert run("nobroker_compact") == "nothing to compact\n"
    assert run("nobroker_purge", "-q", "default", "--yes") == "nothing to purge\n"
    assert run("nobroker_dlq", "--requeue", "--all", "--yes") == "0 requeued\n"
    assert not (tmp_path / "queues").exists()


# -- enqueue


def test_a_task_is_enqueued_by_its_name():
    name = add.name
    job_id = run("nobroker_enqueue", name, "--args", "[1]", "--kwargs", '{"b": 2}').strip()
    job = get_queue().get(job_id)
    assert job.payload == {"task": name, "args": [1], "kwargs": {"b": 2}}
    execute(get_queue(), get_queue().lease_one())
    assert get_queue().get(job_id).result == 3


def test_options_of_enqueue_reach_the_job():
    args = (send.name, "--args", '["x"]', "--delay", "60", "--priority", "-3", "--job-id", "one", "-q", "default")
    before = time.time()
    document = run_json("nobroker_enqueue", *args)
    after = time.time()
    assert document["queue"] == "default"
    [job] = document["jobs"]
    assert (job["id"], job["priority"], job["max_attempts"], job["created"]) == ("one", -3, 2, True)
    assert before + 60 - 1e-5 <= job["available_at"] <= after + 60 + 1e-5
    again = run_json("nobroker_enqueue", *args)["jobs"][0]
    assert again["created"] is False
    assert get_queue().stats().total == 1
    assert run_json("nobroker_enqueue", send.name, "--args", '["x"]')["queue"] == "emails"


def test_enqueue_by_hand_takes_arguments_as_they_are_on_the_disk(make):
    def work(day: date, *days: date) -> None: ...

    made = make(work, name="far.work")
    job_id = run("nobroker_enqueue", "far.work", "--args", '["2030-01-01", "2030-01-02"]').strip()
    assert get_queue().get(job_id).payload == made.s(date(2030, 1, 1), date(2030, 1, 2)).payload
    answer = refused("nobroker_enqueue", "far.work", "--args", '["2030-01-01", "soon"]', code=1)
    assert "far.work(day: datetime.date, *days: datetime.date) -> None: days[0]: is of type str" in answer


@pytest.mark.django_db
def test_a_job_by_hand_waits_for_no_commit():
    with transaction.atomic():
        assert get_queue().get(run("nobroker_enqueue", add.name, "--args", "[1]").strip()).state is JobState.READY


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["tests.unit.django.sample.ad"], 1, "Did you mean tests.unit.django.sample.add"),
        (["tests.unit.django.sample.ad"], 1, "sample.fail? Nothing was stored."),
        (["tests.unit.django.sample.add"], 1, "missing a required argument"),
        (["tests.unit.django.sample.add", "--args", "[1]", "--kwargs", '{"c": 1}'], 1, "unexpected keyword"),
        (["tests.unit.django.sample.add", "--args", "[1]", "--priority", "101"], 1, "priority"),
        (["tests.unit.django.sample.add", "--args", "[1]", "-q", "emial"], 2, "Known queues: default, emails"),
        (["tests.unit.django.sample.add", "--args", "[1]", "--job-id", ""], 1, "job_id"),
    ],
)
def test_a_call_that_a_worker_could_not_run_is_refused(args, code, text):
    assert text in refused("nobroker_enqueue", *args, code=code)
    assert get_queue().stats().total == 0


@pytest.mark.parametrize("with_directory", [True, False])
def test_a_task_by_hand_runs_at_once_where_there_is_no_queue(settings, monkeypatch, tmp_path, with_directory):
    monkeypatch.setattr("nobroker_django.testrun.number", lambda: None)
    settings.NOBROKER = {"IMMEDIATE": True} | ({"DIR": tmp_path / "none"} if with_directory else {})
    [job] = run_json("nobroker_enqueue", add.name, "--args", "[1, 2]", "--job-id", "one")["jobs"]
    assert (job["id"], job["created"], job["state"], job["result"]) == ("one", True, "done", 3)
    assert run_json("nobroker_enqueue", add.name, "--args", "[1, 2]", "--job-id", "one")["jobs"][0]["created"] is False


def test_a_worker_without_a_directory_does_not_start(settings, monkeypatch):
    monkeypatch.setattr("nobroker_django.testrun.number", lambda: None)
    settings.NOBROKER = {"IMMEDIATE": True}
    out = io.StringIO()
    with pytest.raises(CommandError, match="'DIR'") as raised:
        call_command("nobroker_work", drain=True, stdout=out)
    assert (raised.value.returncode, out.getvalue()) == (1, "")


@pytest.mark.parametrize("args", [["--args", "1"], ["--args", "[1"], ["--kwargs", "[]"], ["--delay", "-1"]])
def test_arguments_that_are_no_json_are_wrong_usage(args):
    with pytest.raises(CommandError, match=args[0]):
        run("nobroker_enqueue", add.name, *args)


def test_a_task_of_a_module_that_only_workers_import_is_found(settings, tmp_path, monkeypatch):
    (tmp_path / "far_away.py").write_text("from nobroker_django import task\n\n@task\ndef f(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "workers know no task" in refused("nobroker_enqueue", "far_away.f", code=1)
    settings.NOBROKER = {**settings.NOBROKER, "IMPORTS": ["far_away"]}
    assert len(run("nobroker_enqueue", "far_away.f").strip()) == 32


# -- inspect, recover, purge


def test_inspect_shows_the_records_of_a_job(settings):
    first = add.enqueue(1).id
    add.enqueue(2)
    execute(get_queue(), get_queue().lease_one())
    lines = run("nobroker_inspect", "-q", "default").splitlines()
    assert lines[1].split()[:5] == ["OFFSET", "SIZE", "TYPE", "TIME", "JOB"]
    assert [line.split()[2] for line in lines[2:4]] == ["SNAPSHOT", "OPEN"]
    out = run("nobroker_inspect", "-q", "default", "--job", first, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["type"] for record in records] == ["ENQUEUE", "LEASE", "ACK"]
    assert {record["job"] for record in records} == {first}
    assert records[0]["record"]["payload"]["args"] == [1]
    assert all(isinstance(record["at"], float) and record["at_iso"].endswith("Z") for record in records)


def test_recover_reports_every_queue_also_those_that_were_forgotten(tmp_path):
    add.enqueue(1)
    Queue(tmp_path / "queues", "old").close()
    reports = run_json("nobroker_recover")["queues"]
    assert [(report["queue"], report["state"]) for report in reports] == [("default", "whole"), ("old", "whole")]
    assert [report["queue"] for report in run_json("nobroker_recover", "-q", "default")["queues"]] == ["default"]


@pytest.mark.contract("LOG-07")
def test_recover_ends_with_3_and_leaves_running_leases_alone():
    """C11: run beside workers, twice; it reports, and changes nothing."""
    add.enqueue(1)
    job = get_queue().lease_one()
    before = get_queue().path.read_bytes()
    for _ in range(2):
        assert "default: whole" in run("nobroker_recover")
    assert get_queue().path.read_bytes() == before
    assert get_queue().get(job.id).lease_token == job.lease_token
    log = get_queue().path
    close_queues()
    data = bytearray(log.read_bytes())
    data[-30] ^= 1
    log.write_bytes(data)
    assert "damage found" in refused("nobroker_recover", code=3)
    assert log.read_bytes() == data


@pytest.mark.contract("DJ-09")
def test_purge_asks_about_each_queue_by_name(monkeypatch):
    add.enqueue(1)
    send.enqueue("x")
    assert "name the queues" in refused("nobroker_purge", "--yes", code=2)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert "nothing was purged" in refused("nobroker_purge", "-q", "default", code=1)
    assert get_queue().stats().total == 1
    assert run_json("nobroker_purge", "-q", "default", "--noinput")["queues"] == [{"queue": "default", "purged": 1}]
    assert (get_queue().stats().total, get_queue("emails").stats().total) == (0, 1)


def test_the_only_queue_need_not_be_named(settings):
    settings.NOBROKER = {**settings.NOBROKER, "QUEUES": {"default": {}}}
    add.enqueue(1)
    assert run("nobroker_purge", "--yes") == "default: 1 job purged\n"


def test_recover_salvages_what_is_damaged_after_asking(monkeypatch):
    add.enqueue(1)
    send.enqueue("a@example.org")
    queue = get_queue("emails")
    log = queue.path
    close_queues()
    data = log.read_bytes()
    at = data.index(b"a@example.org")
    log.write_bytes(data[:at] + b"b" + data[at + 1 :])
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert "nothing was changed" in refused("nobroker_recover", "--salvage", code=1)
    assert refused("nobroker_recover", code=3)
    shown = run("nobroker_recover", "--salvage", "--noinput")
    assert "default: not damaged; there is nothing to salvage" in shown
    assert "emails: salvaged: generation 2 is live" in shown
    assert "emails: whole" in run("nobroker_recover")
    assert "emails: whole" in run("nobroker_verify")


def test_verify_checks_the_queues_that_are_named_also_forgotten_ones(tmp_path):
    add.enqueue(1)
    send.enqueue("a@example.org")
    reports = run_json("nobroker_verify")["queues"]
    assert [(report["queue"], report["state"]) for report in reports] == [("default", "whole"), ("emails", "whole")]
    assert [report["queue"] for report in run_json("nobroker_verify", "emails")["queues"]] == ["emails"]
    assert [report["queue"] for report in run_json("nobroker_verify", "-q", "emails")["queues"]] == ["emails"]
    with Queue(get_queue().dir, "old") as queue:
        queue.enqueue(1)
    assert [report["queue"] for report in run_json("nobroker_verify")["queues"]] == ["default", "emails", "old"]
    log = get_queue("emails").path
    data = log.read_bytes()
    log.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    assert "damage found" in refused("nobroker_verify", code=3)
    assert "default: whole" in run("nobroker_verify", "default")


@pytest.mark.contract("LOG-08")
@pytest.mark.parametrize(
    "command",
    [f"nobroker_{name}" for name in ("stats", "list", "dlq", "inspect", "recover", "verify")],
)
def test_looking_leaves_every_byte_alone(command):
    make_dead()
    add.enqueue(1)
    directory = get_queue().dir

    def files():
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*")}

    before = files()
    run(command)
    run(command, "--json")
    assert files() == before
