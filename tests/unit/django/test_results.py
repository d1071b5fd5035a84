"""What a caller holds of an enqueued job."""

import asyncio
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync

from nobroker_django import JobNotFoundError, JobResult, NobrokerError
from nobroker_django.execution import execute
from nobroker_django.queues import get_queue
from nobroker_django.results import JobStatus, ResultNotAvailableError, WaitTimeoutError

from .sample import add, fail, send


def run_next(alias="default"):
    queue = get_queue(alias)
    return execute(queue, queue.lease_one())


def test_the_status_follows_the_job_when_it_is_refreshed():
    result = add.enqueue(1, b=2)
    assert (result.status, result.is_finished, result.attempts) == ("READY", False, 0)
    job = get_queue().lease_one()
    assert result.status == "READY"
    result.refresh()
    assert (result.status, result.attempts) == ("RUNNING", 1)
    execute(get_queue(), job)
    result.refresh()
    assert (result.status, result.is_finished, result.return_value) == ("SUCCESSFUL", True, 3)


def test_a_failed_attempt_leaves_it_ready_and_the_last_one_failed(settings):
    settings.NOBROKER = {**settings.NOBROKER, "BACKOFF": {"BASE": 0}}
    result = fail.using(max_attempts=2).enqueue()
    run_next()
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 1)
    assert [error.error_class for error in result.errors] == ["TypeError"]
    run_next()
    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == ("FAILED", 2, True)


def test_there_is_no_return_value_before_the_end_or_after_a_failure():
    result = fail.using(max_attempts=1).enqueue()
    with pytest.raises(ResultNotAvailableError, match="has not finished"):
        _ = result.return_value
    run_next()
    result.refresh()
    with pytest.raises(ValueError, match=r"failed \(FAILED\)"):
        _ = result.return_value


def test_the_values_are_those_of_djangos_own_tasks():
    assert {status.value for status in JobStatus} == {"READY", "RUNNING", "SUCCESSFUL", "FAILED"}
    try:
        from django.tasks import TaskResultStatus
    except ImportError:
        return
    assert sorted(str(status) for status in TaskResultStatus) == sorted(str(status) for status in JobStatus)


def test_wait_returns_when_the_job_is_finished():
    result = add.enqueue(1)
    thread = threading.Thread(target=run_next)
    thread.start()
    assert result.wait(timeout=60) is result
    thread.join()
    assert result.return_value == 2


def test_wait_gives_up_after_its_timeout_and_the_job_stays():
    result = add.enqueue(1)
    with pytest.raises(WaitTimeoutError, match="is READY after 0 s; it stays in queue 'default'") as raised:
        result.wait(timeout=0)
    assert isinstance(raised.value, TimeoutError)
    assert isinstance(raised.value, NobrokerError)
    assert raised.value.stored is True
    assert get_queue().stats().ready == 1


def test_await_returns_when_the_job_is_finished(monkeypatch):
    result = add.enqueue(1)
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            await asyncio.to_thread(run_next)

    monkeypatch.setattr("nobroker_django.results.asyncio.sleep", sleep)
    assert asyncio.run(result.await_()) is result
    assert result.return_value == 2
    assert slept == [0.01, 0.02, 0.04]


def test_await_gives_up_after_its_timeout():
    result = add.enqueue(1)
    with pytest.raises(WaitTimeoutError, match="is READY after 0 s"):
        asyncio.run(result.await_(timeout=0))


@pytest.mark.parametrize("wait", [JobResult.wait, async_to_sync(JobResult.await_)])
def test_the_time_to_wait_counts_from_the_call_however_slow_the_first_look(monkeypatch, wait):
    now, looks = [0.0], []

    def look(result):
        looks.append(now[0])
        now[0] += 0.5

    def sleep(seconds):
        now[0] += seconds

    async def sleep_later(seconds):
        sleep(seconds)

    monkeypatch.setattr("nobroker_django.results.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr("nobroker_django.results.asyncio", SimpleNamespace(sleep=sleep_later))
    monkeypatch.setattr(JobResult, "refresh", look)
    with pytest.raises(WaitTimeoutError, match=r"after 0\.6 s"):
        wait(add.enqueue(1), timeout=0.6)
    assert looks == [0.0, 0.51]


def test_every_attribute_of_a_result_is_documented():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "tasks.md").read_text()
    section = page.split("## Results")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(?:await )?(?:result\.)?(\w+)(?:\([^`]*\))?`", section))
    result = add.enqueue(1)
    public = {name for name in [*vars(JobResult), *vars(result)] if not name.startswith("_")}
    assert public <= documented


def test_arefresh_looks_again():
    result = add.enqueue(1)
    run_next()
    asyncio.run(result.arefresh())
    assert result.status == "SUCCESSFUL"


def test_a_job_that_was_forgotten_is_not_found():
    result = send.enqueue("a@example.org")
    get_queue("emails").purge()
    with pytest.raises(JobNotFoundError):
        result.refresh()


def test_its_text_form_names_job_task_queue_and_status():
    result = send.enqueue("a@example.org")
    assert repr(result) == f"<JobResult {result.id} of tests.unit.django.sample.send in emails: READY>"
