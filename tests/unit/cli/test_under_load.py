"""Looking while others write, finish and compact: never a false alarm, never an error."""

import itertools

import pytest

from nobroker_django import CompactionError, Queue
from tests.support.procs import Child, Diary, run_all, wait_until

LOOKING = ("inspect", "recover", "verify", "stats", "list", "dlq")


def write_and_compact(queue_dir, rounds, end):
    """Until told to end; a line into the diary ``rounds`` for each round."""
    with Queue(queue_dir, retention=0) as queue:
        for number in itertools.count():
            if end.exists():
                return
            queue.enqueue_many([{"number": number, "text": "x" * 300}] * 30)
            leased = queue.lease(25)
            queue.bury(leased.pop(), error="one of them fails")
            queue.ack_many(leased)
            if number % 4 == 0:
                try:
                    queue.compact()
                except CompactionError:
                    pass  # the other one is at it
            rounds.write(number)


@pytest.mark.contract("LOG-08")
def test_looking_sees_no_damage_where_there_is_none(cli, queue_dir, tmp_path):
    Queue(queue_dir).close()
    errors, rounds, end = Diary(tmp_path / "errors"), Diary(tmp_path / "rounds"), tmp_path / "end"
    children = [Child(write_and_compact, queue_dir, rounds, end, errors=errors) for _ in range(2)]
    seen: set[tuple[int, str]] = set()

    def wait_for_rounds(count):
        wait_until(lambda: len(rounds.lines()) > count or errors.size() > 0, "rounds of the writers")

    try:
        for turn in range(12):
            for command in LOOKING:
                ended = cli(command)
                seen.add((ended.code, ended.err))
                assert "DAMAGED" not in ended.out
                assert "torn tail" not in ended.out
            wait_for_rounds(5 * turn)
        end.touch()
        run_all(children)
    finally:
        for child in children:
            child.kill()
        rounds.close()
        errors.close()
    assert errors.lines() == []
    # A writer that is held up between writing and publishing may be seen in the middle of it.
    assert {(code, err) for code, err in seen if "a write under way" not in err} == {(0, "")}
