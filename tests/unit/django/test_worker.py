"""The parts of ``nobroker_work`` one by one; ``tests/acceptance`` runs the whole."""

import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from django.core.management import CommandError, call_command

from nobroker_django.execution import Outcome, Report
from nobroker_django.worker.budget import Budget
from nobroker_django.worker.console import Console, describe
from nobroker_django.worker.damaged import Damaged
from nobroker_django.worker.shutdown import SignalPipe, read_available, wait_readable

PATIENCE = 60.0


def in_child(function):
    """Run a function in a forked process; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_myself():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    return 0


@pytest.fixture
def console():
    return Console(io.StringIO(), prefix="test")


def text_of(console):
    return console._stream.getvalue()


def test_a_budget_is_one_for_all_processes():
    budget = Budget(5)
    assert budget.take(2) == 2
    assert in_child(lambda: budget.take(2)) == 2
    assert budget.take(4) == 1
    assert budget.take(1) == 0
    assert in_child(lambda: budget.take(1)) == 0
    budget.close()


def test_without_a_limit_everything_is_granted():
    assert Budget(None).take(1000) == 1000


def test_signals_arrive_as_bytes_in_a_pipe_and_the_former_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    pipe = SignalPipe([signal.SIGTERM])
    try:
        assert pipe.read() == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert wait_readable([pipe.fd], PATIENCE) == {pipe.fd}
        assert pipe.read() == [signal.SIGTERM]
    finally:
        pipe.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_forked_process_dies_of_its_signals_and_passes_none_on():
    pipe = SignalPipe([signal.SIGTERM])
    try:
        assert in_child(kill_myself) == -signal.SIGTERM
        assert pipe.read() == []
    finally:
        pipe.close()


def test_a_closed_pipe_reads_as_empty():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    assert read_available(reading) == b""
    os.write(writing, b"s")
    os.close(writing)
    assert read_available(reading) == b"s"
    assert wait_readable([reading], 0) == {reading}
    os.close(reading)


@pytest.fixture
def damaged():
    noted = Damaged()
    yield noted
    noted.close()


def test_names_of_damaged_queues_are_known_to_all_processes(damaged):
    assert damaged.names() == []
    assert in_child(lambda: damaged.add("emails") or 0) == 0
    damaged.add("default")
    assert in_child(lambda: damaged.add("emails") or 0) == 0
    assert damaged.names() == ["default", "emails"]


def report(outcome, **facts):
    return Report(
        **{
            "job_id": "the-id",
            "task": "a.b",
            "attempt": 2,
            "max_attempts": 5,
            "outcome": outcome,
            "seconds": 0.1234,
            "error": "ValueError: x\ny",
            **facts,
        }
    )


def test_each_outcome_has_its_sentence():
    assert describe(report(Outcome.SUCCEEDED)) == "job the-id a.b succeeded (attempt 2 of 5, 0.123 s)"
    assert "ValueError: x\ny; next attempt in 3.0 s" in describe(report(Outcome.FAILED, retry_in=3.0))
    assert "is now a dead letter" in describe(report(Outcome.DEAD))
    assert "lease was lost" in describe(report(Outcome.LOST))
    assert "could not be recorded" in describe(report(Outcome.UNRECORDED))


def test_the_projects_logging_gets_the_facts_of_each_delivery(console, caplog):
    with caplog.at_level("INFO", logger="nobroker_django.worker"):
        console.job("emails", report(Outcome.FAILED, retry_in=1.0))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert (record.job_id, record.task, record.queue, record.attempt) == ("the-id", "a.b", "emails", 2)
    assert "\n" not in record.getMessage()
    assert text_of(console).count("\n") == 1


def test_a_handler_of_the_project_that_fails_ends_nothing(console, monkeypatch):
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no room on the log server")

    handler = Failing()
    logger = logging.getLogger("nobroker_django.worker")
    logger.addHandler(handler)
    try:
        console.warning("a warning")
        console.job("default", report(Outcome.FAILED))
    finally:
        logger.removeHandler(handler)
    assert "a warning" in text_of(console)
    assert "failed (attempt" in text_of(console)


def test_verbosity_zero_leaves_warnings_only():
    console = Console(io.StringIO(), prefix="test", verbosity=0)
    console.job("default", report(Outcome.SUCCEEDED))
    assert text_of(console) == ""
    console.warning("look here")
    assert "look here" in text_of(console)


def test_the_command_belongs_into_the_main_thread():
    errors = []

    def run():
        try:
            call_command("nobroker_work", drain=True, stdout=io.StringIO())
        except CommandError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == ["nobroker_work handles signals and must run in the main thread"]


BORN = """
import os, signal

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before ours
from nobroker_django.worker.shutdown import SignalPipe

pipe = SignalPipe([signal.SIGTERM])
pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), pipe.read(), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.contract("PROC-02", "WORK-01")
def test_a_signal_to_a_process_that_a_task_has_just_forked_is_its_own():
    """At its very birth: it dies of it, and the worker is not told to stop."""
    ran = subprocess.run([sys.executable, "-c", BORN], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ran.stdout.split(" ", 1) == [str(-signal.SIGTERM), "[] set()\n"]
