"""Looking while others write, finish and compact: never a false alarm, never an error."""

import collections

import pytest

from nobroker_django import CompactionError, Queue
from tests.support.procs import Child, Diary

ROUNDS = 40


def write_and_compact(queue_dir):
    with Queue(queue_dir, retention=0) as queue:
        for number in range(ROUNDS):
            queue.enqueue_many([{"number": number, "text": "x" * 300}] * 30)
            leased = queue.lease(25)
            queue.bury(leased.pop(), error="one of them fails")
            queue.ack_many(leased)
            if number % 4 == 0:
                try:
                    queue.compact()
                except CompactionError:
                    pass  # the other one is at it


@pytest.mark.contract("LOG-08")
def test_looking_sees_no_damage_where_there_is_none(cli, queue_dir, tmp_path):
    Queue(queue_dir).close()
    errors = Diary(tmp_path / "errors")
    children = [Child(write_and_compact, queue_dir, errors=errors) for _ in range(2)]
    codes: collections.Counter[tuple[str, int, str]] = collections.Counter()
    try:
        while any(child.running() for child in children):
            for command in ("inspect", "recover", "stats", "list", "dlq"):
                ended = cli(command)
                codes[command, ended.code, ended.err] += 1
                assert "DAMAGED" not in ended.out
                assert "torn tail" not in ended.out
    finally:
        for child in children:
            child.kill()
        errors.close()
    assert [child.code for child in children] == [0, 0], errors.lines()
    # A writer that is held up between writing and publishing may be seen in the middle of it.
    assert {(code, err) for _, code, err in codes if "a write under way" not in err} == {(0, "")}
    assert min(codes.values()) >= 2
