"""The sentences of errors: whole, with one full stop, and in the number that is meant."""

import pytest

from nobroker_django import CompactionResult, InvalidOptionError, RecoveryReport, StorageError
from nobroker_django.engine.errors import storing_nothing


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        ("is wrong", "is wrong", "x: is wrong. Nothing was stored."),
        ("is wrong.", "is wrong", "x: is wrong. Nothing was stored."),
        ("is wrong. Nothing was stored.", "is wrong", "x: is wrong. Nothing was stored."),
        ("is wrong; nothing was stored", "is wrong", "x: is wrong. Nothing was stored."),
        ("is it wrong?", "is it wrong?", "x: is it wrong? Nothing was stored."),
        ("is wrong; nothing was changed", "is wrong; nothing was changed", "x: is wrong; nothing was changed"),
    ],
)
def test_a_wrong_option_says_once_what_became_of_the_data(message, reason, text):
    error = InvalidOptionError("x", message)
    assert (error.option, error.reason, str(error)) == ("x", reason, text)


def test_where_nothing_was_to_be_stored_that_is_not_said():
    with pytest.raises(InvalidOptionError) as raised, storing_nothing():
        raise InvalidOptionError("x", "is wrong")
    assert str(raised.value) == "x: is wrong"


@pytest.mark.parametrize(("count", "text"), [(1, "1 job of this call is"), (2, "2 jobs of this call are")])
def test_what_was_done_before_is_counted_in_words(count, text):
    error = StorageError("write", "/x", OSError(28, "No space left on device"))
    error.comes_after(count)
    assert str(error).startswith(f"{text} dealt with, the rest is not: ")
    assert error.stored is None


def test_reports_count_in_words():
    assert ", kept 1 job, dropped 0 finished" in compaction(1).describe()
    assert ", kept 2 jobs, dropped 0 finished" in compaction(2).describe()
    assert RecoveryReport(records_applied=1, bytes_scanned=1).describe() == "whole, 1 record (1 byte) checked"


def compaction(kept):
    return CompactionResult(bytes_before=10, bytes_after=5, jobs_kept=kept, jobs_dropped=0)
