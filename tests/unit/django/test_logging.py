"""The running job in log records, and for the task itself."""

import ast
import asyncio
import contextvars
import logging
import logging.config
import re
import threading
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async

from nobroker_django import CurrentJob, current_job
from nobroker_django.execution import Outcome, Report, execute
from nobroker_django.logging import JobFilter
from nobroker_django.queues import get_queue
from nobroker_django.worker.console import Console

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "logging.md"
logger = logging.getLogger("site")


@pytest.fixture
def records():
    """What is logged, as a handler with the filter sees it."""
    seen: list[tuple[str, object, object, object, object]] = []

    class Keeping(logging.Handler):
        def emit(self, record):
            seen.append((record.getMessage(), record.job_id, record.task, record.queue, record.attempt))

    handler = Keeping()
    handler.addFilter(JobFilter())
    root = logging.getLogger()
    root.addHandler(handler)
    level, root.level = root.level, logging.INFO
    yield seen
    root.removeHandler(handler)
    root.setLevel(level)


def deliver():
    job = get_queue().lease_one(timeout=60)
    execute(get_queue(), job)
    return job


@pytest.mark.contract("DJ-06")
def test_records_of_a_running_job_say_which_it_is_and_others_say_that_there_is_none(make, records):
    make(lambda: logger.info("inside"), max_attempts=3).enqueue()
    logger.info("before")
    job = deliver()
    logger.info("after")
    assert records == [
        ("before", "-", "-", "-", "-"),
        ("inside", job.id, "the task", "default", 1),
        ("after", "-", "-", "-", "-"),
    ]


def test_the_attempt_is_the_one_that_runs(make, records):
    def work():
        logger.info("inside")
        raise ValueError

    make(work, backoff={"base": 0}).enqueue()
    job = deliver()
    deliver()
    assert records == [("inside", job.id, "the task", "default", attempt) for attempt in (1, 2)]


def test_coroutine_tasks_what_they_start_and_threads_with_a_copy_of_the_context_belong_to_the_job(make, records):
    async def work():
        await asyncio.gather(inner("one"), inner("two"))
        await sync_to_async(logger.info)("in a thread of asgiref")
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(logger.info, "in a thread of its own"))
        thread.start()
        thread.join()

    async def inner(text):
        await asyncio.sleep(0)
        logger.info(text)

    make(work).enqueue()
    job = deliver()
    assert {record[0] for record in records} == {"one", "two", "in a thread of asgiref", "in a thread of its own"}
    assert {record[1:] for record in records} == {(job.id, "the task", "default", 1)}


def test_jobs_that_run_at_the_same_time_do_not_see_each_other(make, records):
    together = threading.Barrier(2)

    def work(name):
        together.wait(60)
        logger.info(name)
        together.wait(60)

    waiting = make(work)
    ids = {name: waiting.enqueue(name).id for name in ("one", "two")}
    jobs = get_queue().lease(2)
    threads = [threading.Thread(target=execute, args=(get_queue(), job)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record[0]: record[1] for record in records} == ids


def test_a_record_that_has_the_attributes_keeps_them(records):
    report = Report("id", "site.work", 2, 5, Outcome.SUCCEEDED, 0.1)
    logging.getLogger("nobroker_django.worker").setLevel(logging.INFO)
    Console(None, prefix="test").job("emails", report)
    assert [record[1:] for record in records] == [("id", "site.work", "emails", 2)]


def test_the_task_can_ask_which_job_it_is(make):
    seen: list[CurrentJob | None] = []
    make(lambda: seen.append(current_job())).enqueue()
    job = deliver()
    assert seen == [CurrentJob(job.id, "the task", "default", 1)]
    assert current_job() is None


def test_nothing_is_installed_unasked(make):
    seen: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record):
            seen.append(record)

    handler = Keeping()
    logger.addHandler(handler)
    try:
        make(lambda: logger.warning("inside")).enqueue()
        deliver()
    finally:
        logger.removeHandler(handler)
    assert not hasattr(seen[0], "job_id")


def test_the_configuration_of_the_page_shows_the_job(make, capsys):
    block = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "LOGGING" in block
    )
    configuration = ast.literal_eval(block.removeprefix("LOGGING = "))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logging.config.dictConfig(configuration)
        make(lambda: logger.info("inside")).enqueue()
        job = deliver()
        logger.info("outside")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    lines = capsys.readouterr().err.splitlines()
    assert f"INFO the task[{job.id}, attempt 1] inside" in lines
    assert "INFO -[-, attempt -] outside" in lines
