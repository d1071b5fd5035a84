"""``python -m nobroker_django``: every command on a directory alone."""

import io
import json

import pytest

from nobroker_django import CompactionError, JobState, Queue
from nobroker_django.cli import documents, files
from nobroker_django.cli.main import main

NASTY = "\x1b]0;owned\x07\r\n2026-01-01 all is well\u202e\u2028"


def handle(job):
    """What ``work`` is given."""
    if job.payload == "bad":
        raise ValueError("cannot " + NASTY)


def make_dead(queue_dir, payload="x", error="went wrong", name="default"):
    with Queue(queue_dir, name, max_attempts=1) as queue:
        job = queue.enqueue(payload, priority=9)
        leased = queue.lease_one()
        assert leased.id == job.id
        queue.nack(leased, error=error)
        return job.id


# -- adding and taking


def test_a_job_goes_its_way_by_hand(cli, queue_dir):
    job_id = cli("enqueue", '{"to": "ann"}', "--priority", "3").out.strip()
    assert cli("list").lines[0].split()[1:5] == ["default", job_id, "ready", "0/5"]
    lease = cli("lease")
    shown_id, token, attempt = lease.lines[0].split()[:3]
    assert (shown_id, attempt) == (job_id, "1/5")
    assert cli("ack", job_id, "--token", "0" * 28).code == 1
    assert cli("ack", job_id, "--token", token, "--result", "[1]").out == f"{job_id}  done\n"
    with Queue(queue_dir) as queue:
        job = queue.get(job_id)
    assert (job.state, job.result, job.payload, job.priority) == (JobState.DONE, [1], {"to": "ann"}, 3)


def test_a_token_of_an_earlier_delivery_finishes_nothing(cli, queue_dir):
    cli("enqueue", "1", "--job-id", "one")
    first = cli("lease", "--json").document["jobs"][0]["lease_token"]
    cli("nack", "one", "--token", first, "--delay", "0", "--error", "again")
    second = cli("lease", "--json").document["jobs"][0]["lease_token"]
    assert second > first
    refused = cli("ack", "one", "--token", first)
    assert refused.code == 1
    assert "delivered again" in refused.err
    assert cli("ack", "one", "--token", second).code == 0


def test_without_a_token_the_operator_decides(cli):
    cli("enqueue", "1", "--job-id", "one")
    cli("lease")
    assert cli("nack", "one", "--error", NASTY).code == 0
    [job] = cli("list", "--json").document["jobs"]
    assert (job["state"], job["attempts"], job["last_error"]) == ("ready", 1, NASTY)
    refused = cli("ack", "one")
    assert refused.code == 1
    assert "nobody holds a lease" in refused.err


@pytest.mark.parametrize(("text", "payload"), [("[1, 2]", [1, 2]), ("hello there", "hello there"), ("007", "007")])
def test_the_payload_is_json_or_text(cli, text, payload):
    document = cli("enqueue", text, "--json").document
    assert document["queue"] == "default"
    assert document["jobs"][0]["payload"] == payload


def test_a_known_job_id_adds_nothing_and_says_so(cli):
    assert cli("enqueue", "1", "--job-id", "one").err == ""
    again = cli("enqueue", "1", "--job-id", "one")
    assert (again.code, again.out) == (0, "one\n")
    assert "was there already" in again.err
    other = cli("enqueue", "2", "--job-id", "one")
    assert other.code == 1
    assert "different payload" in other.err
    assert cli("stats", "--json").document["queues"][0]["total"] == 1


def test_leasing_from_an_empty_queue_is_no_failure(cli, queue_dir):
    Queue(queue_dir).close()
    assert (cli("lease").code, cli("lease").out) == (0, "no job is ready\n")
    assert cli("lease", "--json").document == {"schema": 1, "queue": "default", "jobs": []}


def test_several_jobs_are_leased_at_once(cli, queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue_many(range(5))
    assert len(cli("lease", "-n", "3", "--visibility-timeout", "100").lines) == 3


# -- work


def test_work_runs_the_function_and_counts(cli, queue_dir):
    with Queue(queue_dir, max_attempts=1) as queue:
        queue.enqueue_many(["good", "bad", "good"])
    done = cli("work", "tests.unit.cli.test_main:handle", "--max-jobs", "3", "--json")
    assert done.document == {
        "schema": 1, "queue": "default", "leased": 3, "succeeded": 2, "failed": 0, "dead": 1, "lost_leases": 0,
    }  # fmt: skip
    assert "default: 0 deliveries" in cli("work", "tests.unit.cli.test_main:handle", "--idle-timeout", "0").out


@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        ("handle", 2, "is not module:function"),
        (":handle", 2, "is not module:function"),
        ("no.such.module:handle", 1, "No module named 'no'"),
        ("tests.unit.cli.test_main:nothing", 1, "has no attribute"),
        ("tests.unit.cli.test_main:NASTY", 1, "is not callable"),
    ],
)
def test_work_wants_a_function(cli, queue_dir, function, code, text):
    ended = cli("work", function)
    assert ended.code == code
    assert text in ended.err
    assert not queue_dir.exists()


# -- looking


def test_every_line_stays_one_line_whatever_the_job_holds(cli, queue_dir):
    make_dead(queue_dir, {"text": NASTY}, NASTY)
    make_dead(queue_dir, {"task": NASTY, "args": [NASTY], "kwargs": {NASTY: NASTY}}, NASTY)
    for command, count in [("list", 2), ("dlq", 2), ("inspect", 2 + 1 + 2 * 4)]:
        out = cli(command).out
        assert len(out.splitlines()) == count, command
        assert out.isascii() or all(character.isprintable() for character in out.replace("\n", ""))
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_json_loses_nothing(cli, queue_dir):
    make_dead(queue_dir, {"text": NASTY}, NASTY)
    [job] = cli("dlq", "--json").document["jobs"]
    assert (job["payload"], job["last_error"]) == ({"text": NASTY}, NASTY)
    records = [json.loads(line) for line in cli("inspect", "--json").lines]
    assert [record["type"] for record in records] == ["SNAPSHOT", "OPEN", "ENQUEUE", "LEASE", "DEAD"]
    assert records[2]["record"]["payload"] == {"text": NASTY}
    assert set(records[2]) == {
        *("schema", "queue", "generation", "offset", "size_bytes", "type", "type_number", "job", "at", "at_iso"),
        "record",
    }


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "done", "dead"])
def test_list_by_state(cli, queue_dir, state):
    make_dead(queue_dir)
    with Queue(queue_dir, retention=100) as queue:
        for name in ("done", "leased", "ready"):
            queue.enqueue(name, job_id=name)
        queue.enqueue("delayed", job_id="delayed", delay=1000)
        queue.ack(queue.lease_one())
        queue.lease_one()
    jobs = cli("list", "--state", state, "--json").document["jobs"]
    assert [job["payload"] for job in jobs] == ["x" if state == "dead" else state]
    assert f"  {state:7}  " in cli("list", "--state", state).lines[0]


def test_list_by_task_and_time_and_no_more_than_the_limit(cli, queue_dir):
    call = {"task": "a.b", "args": [], "kwargs": {}}
    with Queue(queue_dir, clock=lambda: 1000.0) as queue:
        queue.enqueue_many([call, {**call, "task": "a.bc"}, "a.b", {"task": "a.b"}, {**call, "args": [1]}])
    with Queue(queue_dir) as queue:
        queue.enqueue(call)
    assert len(cli("list", "--task", "a.b", "--json").document["jobs"]) == 4
    assert len(cli("list", "--since", "1h").lines) == 1
    assert len(cli("list", "--since", "1970-01-01").lines) == 6
    lines = cli("list", "--limit", "2").lines
    assert lines[2:] == ["default: the first 2 are shown; --limit shows more"]
    assert len(cli("list", "--limit", "6").lines) == 6
    assert cli("list", "--task", "none").out == "no jobs\n"


def test_list_pages_through_more_than_a_page(cli, queue_dir):
    with Queue(queue_dir, fsync=False) as queue:
        queue.enqueue_many(range(1200))
        queue.enqueue({"task": "last", "args": [], "kwargs": {}})
    assert len(cli("list", "--task", "last").lines) == 1
    assert len(cli("list", "--limit", "5000").lines) == 1201


def test_a_reader_that_goes_away_ends_the_work(queue_dir, monkeypatch):
    """``| head`` on a long log: what nobody reads is not looked up."""
    with Queue(queue_dir, fsync=False) as queue:
        queue.enqueue_many(range(50))
    made = []
    for module, name in ((documents, "job_line"), (documents, "dead_letter_line"), (files, "record_line")):
        monkeypatch.setattr(module, name, lambda *args: made.append(args) or "a line")
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stdout", stream)
    for command in ("list", "inspect"):
        assert main(["-d", str(queue_dir), command]) == 0
    assert len(made) == 2


def test_queues_are_all_that_are_there_unless_one_is_named(cli, queue_dir):
    for name in ("b", "a-b", "b-1"):
        with Queue(queue_dir, name) as queue:
            queue.enqueue(name)
    assert [line.split()[0] for line in cli("stats").lines] == ["QUEUE", "a-b", "b", "b-1"]
    assert [job["queue"] for job in cli("list", "--json").document["jobs"]] == ["a-b", "b", "b-1"]
    document = cli("list", "--json", "-q", "b").document
    assert (document["queue"], [job["payload"] for job in document["jobs"]]) == ("b", ["b"])
    assert cli("purge", "--yes", "-q", "b").out == "b: 1 job purged\n"
    assert [line.split()[1] for line in cli("stats").lines] == ["READY", "1", "0", "1"]


def test_the_queue_may_be_named_before_or_behind_the_command(cli, queue_dir):
    assert cli("-q", "x", "enqueue", "1").code == 0
    assert cli("enqueue", "1", "-q", "x").code == 0
    assert cli("-q", "x", "stats", "--json").document["queues"][0]["ready"] == 2


def test_inspect_of_one_job_and_of_the_first_records(cli, queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue(1, job_id="one")
        queue.enqueue(2, job_id="two")
        queue.extend(queue.lease_one(), 1000)
    types = [json.loads(line)["type"] for line in cli("inspect", "--job", "one", "--json").lines]
    assert types == ["ENQUEUE", "LEASE", "EXTEND"]
    assert len(cli("inspect", "--limit", "2", "--json").lines) == 2
    lease, extend = cli("inspect", "--job", "one").lines[-2:]
    assert "attempt 1, until 20" in lease
    assert "until 20" in extend


def test_a_generation_is_that_of_one_queue(cli, queue_dir):
    for name in ("a", "b"):
        Queue(queue_dir, name).close()
    assert cli("inspect", "--generation", "1").code == 2
    assert cli("inspect", "--generation", "1", "-q", "a").code == 0
    refused = cli("inspect", "--generation", "2", "-q", "a")
    assert refused.code == 1
    assert "there: 1" in refused.err


@pytest.mark.parametrize("command", ["stats", "list", "dlq", "inspect", "recover", "verify"])
@pytest.mark.contract("LOG-08")
def test_looking_creates_nothing(cli, queue_dir, command):
    ended = cli(command)
    assert (ended.code, ended.out) == (1, "")
    assert "there is no queue in" in ended.err
    assert not queue_dir.exists()
    with Queue(queue_dir, "emails"):
        ended = cli(command, "-q", "emial")
        assert ended.code == 1
        assert "there is no queue 'emial'" in ended.err
        assert "queues there: emails" in ended.err
    assert not list(queue_dir.glob("emial*"))


@pytest.mark.parametrize("command", [["lease"], ["ack", "x"], ["nack", "x"], ["purge", "--yes"], ["compact"], ["dlq"]])
def test_nothing_but_enqueue_and_work_makes_a_queue(cli, queue_dir, command):
    assert cli(*command).code == 1
    assert not queue_dir.exists()


@pytest.mark.parametrize("name", ["../x", "a.b", "b ", "é", ""])
def test_a_name_that_is_none_is_refused(cli, queue_dir, name):
    for command in (["list"], ["enqueue", "1"], ["recover"], ["purge", "--yes"]):
        assert cli(*command, "-q", name).code == 1
    assert not list(queue_dir.glob("*"))


# -- recover


def test_recover_says_that_all_is_well(cli, queue_dir):
    Queue(queue_dir).close()
    ended = cli("recover")
    assert ended.code == 0
    assert "default: whole" in ended.lines
    assert "default: no repair has cut anything off" in ended.lines


def test_recover_shows_a_torn_tail_and_then_where_it_was_put(cli, queue_dir):
    with Queue(queue_dir) as queue:
        queue.enqueue(1)
        log = queue.path
    size = log.stat().st_size
    with log.open("ab") as stream:
        stream.write(b"\x40\x00\x00\x00\x01abc")
    ended = cli("recover")
    assert ended.code == 0
    assert f"torn tail of 8 bytes at byte {size}" in ended.out
    assert log.stat().st_size == size + 8
    Queue(queue_dir).close()
    assert (
        f"cut 8 bytes at byte {size} of generation 1 and kept them in {queue_dir}/default.torn-1-"
        in cli("recover").out
    )
    [report] = cli("recover", "--json").document["queues"]
    assert (report["state"], report["kept"][0]["size_bytes"]) == ("whole", 8)


@pytest.mark.contract("LOG-07")
def test_recover_ends_with_3_when_something_is_damaged_and_changes_nothing(cli, queue_dir):
    for name in ("bad", "good"):
        with Queue(queue_dir, name) as queue:
            queue.enqueue_many(range(3))
    log = queue_dir / "bad.000001.log"
    data = bytearray(log.read_bytes())
    second = 16 + 9 + int.from_bytes(data[16:20], "little")
    data[second + 12] ^= 1
    log.write_bytes(data)
    ended = cli("recover")
    assert ended.code == 3
    assert "bad: DAMAGED: " in ended.out
    assert f"is damaged at byte {second}:" in ended.out
    assert "good: whole" in ended.out
    assert log.read_bytes() == data
    reports = cli("recover", "--json").document["queues"]
    assert [(report["queue"], report["state"]) for report in reports] == [("bad", "damaged"), ("good", "whole")]
    assert reports[0]["damage"]["offset"] == second


@pytest.mark.parametrize("command", ["stats", "list", "dlq", "inspect", "recover", "verify", "compact"])
def test_damage_in_the_last_write_ends_every_command_with_3(cli, queue_dir, command):
    with Queue(queue_dir) as queue:
        queue.enqueue_many(["x" * 50, "y"])
        queue.stats()  # so that there is a projection, which knows nothing of the damage
        log = queue.path
    data = bytearray(log.read_bytes())
    data[data.index(b"xxx")] ^= 1
    log.write_bytes(data)
    ended = cli(command)
    assert ended.code == 3
    assert "damage" in ended.err
    assert log.read_bytes() == data


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("command", ["compact", "stats"])
def test_a_damaged_queue_does_not_keep_the_others_from_their_turn(cli, queue_dir, command, as_json):
    for name in ("a", "bad", "c"):
        with Queue(queue_dir, name) as queue:
            queue.enqueue("y")
            queue.ack(queue.lease_one())
            queue.enqueue("x" * 50)
    log = queue_dir / "bad.000001.log"
    data = bytearray(log.read_bytes())
    data[data.index(b"xxx")] ^= 1
    log.write_bytes(data)
    ended = cli(command, *(["--json"] if as_json else []))
    assert ended.code == 3
    assert "1 of 3 queues failed, the rest is done." in ended.err
    assert f"bad: {log} is damaged at byte" in ended.err
    assert "restore the file" in ended.err
    if as_json:
        assert [report["queue"] for report in ended.document["queues"]] == ["a", "c"]
        [failed] = ended.document["failed"]
        assert (failed["queue"], failed["damaged"]) == ("bad", True)
        assert "is damaged at byte" in failed["error"]
    else:
        shown = [line.split()[0].rstrip(":") for line in ended.lines]
        assert shown == (["a", "c"] if command == "compact" else ["QUEUE", "a", "c"])
    compacted = [(queue_dir / f"{name}.current").read_text().strip() for name in ("a", "bad", "c")]
    assert compacted == (["2", "1", "2"] if command == "compact" else ["1", "1", "1"])
    assert log.read_bytes() == data


def test_what_fails_for_another_reason_than_damage_has_another_exit_code(cli, queue_dir, monkeypatch):
    for name in ("a", "b"):
        with Queue(queue_dir, name) as queue:
            queue.enqueue(1)
    compact = Queue.compact

    def full(queue):
        if queue.name == "a":
            raise CompactionError("no space left")
        return compact(queue)

    monkeypatch.setattr(Queue, "compact", full)
    ended = cli("compact")
    assert ended.code == 1
    assert "a: no space left" in ended.err
    assert ended.lines[0].startswith("b: compacted")
    assert cli("compact", "-q", "a").err.count("no space left") == 1


@pytest.mark.parametrize("text", [None, b"", b"garbage", b"7\n"])
@pytest.mark.contract("LOG-10")
def test_a_pointer_that_is_missing_or_wrong_ends_with_3(cli, queue_dir, text):
    with Queue(queue_dir) as queue:
        queue.enqueue(1)
    pointer = queue_dir / "default.current"
    if text is None:
        pointer.unlink()
    else:
        pointer.write_bytes(text)
    for command in (["recover"], ["verify"], ["list"], ["stats"], ["inspect"], ["enqueue", "1"], ["purge", "--yes"]):
        assert cli(*command, "-q", "default").code == 3, command
    assert sorted(path.name for path in queue_dir.glob("*.log")) == ["default.000001.log"]


# -- dead letters, purge, compaction


def test_dead_letters_are_requeued_by_error_class(cli, queue_dir):
    first = make_dead(queue_dir, error=ValueError("a"))
    second = make_dead(queue_dir, error=KeyError("b"))
    assert cli("dlq", "--error-class", "KeyError").lines[0].split()[2] == second
    assert cli("dlq", "--requeue", "--error-class", "KeyError").out == "1 requeued\n"
    assert [job["id"] for job in cli("dlq", "--json").document["jobs"]] == [first]


def test_compact_keeps_the_mode_that_the_files_have(cli, queue_dir):
    with Queue(queue_dir, file_mode=0o660, dir_mode=0o770) as queue:
        queue.enqueue(1)
    assert cli("compact").out.startswith("default: compacted ")
    assert cli("compact", "--json").document["queues"][0]["jobs_kept"] == 1
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in queue_dir.iterdir() if path.is_file()}
    assert modes == {"default.000003.log": "0o660", "default.current": "0o660", "default.lock": "0o660"}


def test_purge_asks_and_says_what_it_would_forget(cli, queue_dir, monkeypatch):
    cli("enqueue", "1")
    cli("enqueue", "1", "--delay", "100")
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    ended = cli("purge")
    assert ended.code == 1
    assert "Forget all 2 jobs of default (1 ready, 1 delayed), for ever? [y/N]" in ended.err
    assert "nothing was purged" in ended.err
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert cli("purge", "--json").document == {"schema": 1, "queues": [{"queue": "default", "purged": 2}]}


# -- usage


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["enqueue"],
        ["list", "--state", "gone"],
        ["list", "--limit", "0"],
        ["list", "--since", "later"],
        ["lease", "-q", "a", "-q", "b"],
        ["dlq", "--requeue"],
        ["dlq", "--requeue", "x", "--task", "y"],
        ["dlq", "--requeue", "--all", "--task", "y"],
        ["dlq", "--all"],
        ["dlq", "--prune"],
        ["dlq", "--older-than", "1d"],
        ["dlq", "--prune", "--older-than", "soon"],
        ["dlq", "--prune", "--older-than", "1d", "--all"],
        ["dlq", "--prune", "--requeue", "x", "--older-than", "1d"],
        ["ack"],
    ],
)
def test_wrong_usage_ends_with_2(cli, queue_dir, arguments):
    make_dead(queue_dir)
    ended = cli(*arguments)
    assert ended.code == 2
    assert ended.err
    with Queue(queue_dir) as queue:
        assert queue.stats().dead == 1


def test_help_and_version_end_with_0(cli):
    assert "dlq" in cli("--help").out
    assert cli("--version").out.startswith("nobroker_django ")


def test_an_interruption_ends_with_130(cli, queue_dir, monkeypatch):
    Queue(queue_dir).close()

    def interrupt(prompt):
        raise KeyboardInterrupt

    cli("enqueue", "1")
    monkeypatch.setattr("builtins.input", interrupt)
    assert cli("purge").code == 130


def test_what_the_file_system_refuses_is_a_sentence(cli, queue_dir):
    queue_dir.write_text("a file")
    for command in (["enqueue", "1"], ["list", "-q", "x"], ["stats"]):
        ended = cli(*command)
        assert ended.code == 1
        assert "Traceback" not in ended.err
        assert ended.err.count("\n") == 1
