"""What the supervisor does with a process whose job runs over its time."""

import io
import os
import signal
import time
from pathlib import Path

import pytest

from nobroker_django.engine.errors import LockTimeoutError
from nobroker_django.worker.notices import Notice
from nobroker_django.worker.options import WorkerOptions
from nobroker_django.worker.supervisor import Supervisor

PATIENCE = 60.0


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until_state(pid, *states):
    end = time.monotonic() + PATIENCE
    while (state := state_of(pid)) not in states:
        assert time.monotonic() < end, state
        time.sleep(0.005)
    return state


@pytest.fixture
def supervisor():
    made = Supervisor(WorkerOptions(queues=("default",)), io.StringIO())
    yield made
    made._watch.close()
    made._budget.close()
    made._damaged.close()


@pytest.fixture
def child(supervisor):
    """A process whose job has run over its time."""
    pid = os.fork()
    if pid == 0:
        while True:
            time.sleep(PATIENCE)
    slot = supervisor._slots[0]
    slot.pid = pid
    slot.limits["token"] = 0.0, Notice("token", "default", "job", 1.0)
    yield pid
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def judged(supervisor, child, monkeypatch, verdict):
    """In which state the process was when the verdict was recorded."""
    states = []

    def condemn(notice, pid):
        states.append(until_state(child, "T", "Z"))
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    monkeypatch.setattr(supervisor._watch, "condemn", condemn)
    supervisor._enforce_limits()
    return states


def test_the_verdict_is_recorded_while_the_process_stands_still_and_then_it_is_killed(supervisor, child, monkeypatch):
    assert judged(supervisor, child, monkeypatch, True) == ["T"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert supervisor._slots[0].verdict == "another job of its process, job, ran over its time"
    assert supervisor._slots[0].sentence is None


def test_a_process_whose_job_has_just_ended_by_itself_goes_on(supervisor, child, monkeypatch):
    assert judged(supervisor, child, monkeypatch, False) == ["T"]
    until_state(child, "S")
    assert supervisor._slots[0].verdict is None


def test_what_cannot_be_recorded_now_is_recorded_when_the_process_has_ended(supervisor, child, monkeypatch):
    error = LockTimeoutError("busy", path="/q", seconds=1.0)
    assert judged(supervisor, child, monkeypatch, error) == ["T"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert supervisor._slots[0].sentence is not None
    passed = []
    monkeypatch.setattr(supervisor._watch, "condemn", lambda notice, pid: passed.append(notice.job_id))
    monkeypatch.setattr(supervisor._watch, "bury", lambda holders, why, *, punish: passed.append(punish) or 0)
    supervisor._ended(supervisor._slots[0], -signal.SIGKILL)
    assert passed == ["job", False]
