"""Looking at a directory that the PyPI package ``nobroker`` 0.1 wrote, and has open."""

import json

import pytest

nobroker = pytest.importorskip("nobroker")


def tree(directory):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.contract("LOG-08")
@pytest.mark.parametrize("compacted", [False, True])
def test_looking_shows_what_is_there_and_converts_nothing(cli, queue_dir, compacted):
    old = nobroker.Queue(queue_dir, max_attempts=1)
    for payload in ({"task": "a.b", "args": [], "kwargs": {}}, float("nan"), "\ud800", 10**400):
        old.enqueue(payload, job_id=f"job-{len(old)}")
    old.nack(old.lease_one(), error="went\nwrong")
    if compacted:
        old.compact()
    before = tree(queue_dir)
    [stats] = cli("stats", "--json").document["queues"]
    assert (stats["queue"], stats["ready"], stats["dead"]) == ("default", 3, 1)
    assert [line.split()[2] for line in cli("list").lines] == ["job-0", "job-1", "job-2", "job-3"]
    jobs = cli("list", "--json").document["jobs"]
    assert [job["payload"] for job in jobs[1:]] == ["nan", "\ud800", 10**400]
    assert "went\\nwrong" in cli("dlq").out
    records = [json.loads(line) for line in cli("inspect", "--json").lines]
    assert [record["type"] for record in records] == ["ENQUEUE"] * 4 + ["LEASE", "DEAD"] * (not compacted)
    assert records[0]["generation"] == int(compacted)
    report = cli("recover")
    assert report.code == 0
    assert "default: whole" in report.lines
    assert "format version 1" in report.out
    checked = cli("verify")
    assert (checked.code, checked.lines[-1]) == (0, "default: whole")
    assert tree(queue_dir) == before
    assert old.enqueue("still mine").id
    old.close()


@pytest.mark.contract("LOG-03")
def test_damage_in_the_middle_of_it_ends_with_3(cli, queue_dir):
    with nobroker.Queue(queue_dir) as old:
        old.enqueue_many(["x" * 50] * 3)
    (log,) = queue_dir.glob("*.log")
    data = bytearray(log.read_bytes())
    data[60] ^= 1
    log.write_bytes(data)
    for command in ("recover", "verify", "inspect", "stats"):
        assert cli(command).code == 3
    assert log.read_bytes() == data
