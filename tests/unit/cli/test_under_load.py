"""Looking while others write, finish and compact: never a false alarm, never an error."""

import itertools
import re

import pytest

from nobroker_django import CompactionError, Queue
from tests.support.procs import Child, Diary, wait_until

LOOKING = ("inspect", "recover", "verify", "stats", "list", "dlq")
# What may be said beside writers that are held up: one between writing and publishing, one that folds a backlog.
REMARKS = re.compile(
    r"default: [0-9]+ bytes follow: a write under way, or a torn tail \(see recover\)\n"
    r"|default: this is the state before the last [0-9]+ bytes of the log\n"
)


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
        wait_until(lambda: not any(child.running() for child in children), "the end of the writers")
    finally:
        for child in children:
            child.kill()
        rounds.close()
        errors.close()
    assert (errors.lines(), [child.code for child in children]) == ([], [0, 0])
    assert {(code, err) for code, err in seen if not REMARKS.fullmatch(err)} == {(0, "")}
    assert {code for code, _ in seen} == {0}
