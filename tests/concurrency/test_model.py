"""Any sequence of verbs, through two handles, with time passing, reopening and compactions: as the dictionary says."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nobroker_django import (
    AlreadyDoneError,
    BackoffPolicy,
    Job,
    JobConflictError,
    JobNotFoundError,
    NotLeasedError,
    Queue,
)
from tests.support.model import RETENTION, VISIBILITY, Model, ModelJob

handles = st.integers(0, 1)
ids = st.sampled_from([f"id{number}" for number in range(6)])
priorities = st.sampled_from([0, 0, 0, 1, -1])
delays = st.sampled_from([0.0, 0.0, 5.0, 40.0])


class TwoHandles(RuleBasedStateMachine):
    """The real queue and the model, side by side."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="nobroker-model-", dir=memory))
        self.model = Model()
        self.count = 0
        self.held: list[tuple[Job, ModelJob]] = []  # every lease ever taken, with the job it was of
        self.tokens: list[str] = []
        self.queues: list[Queue] = []

    @initialize()
    def start(self) -> None:
        self.queues = [self.open(), self.open()]

    def open(self) -> Queue:
        return Queue(
            self.directory, clock=lambda: self.model.now, visibility_timeout=VISIBILITY, retention=RETENTION,
            backoff=BackoffPolicy(base=2.0, factor=2.0, max_delay=20.0, jitter=0.0), max_attempts=3,
        )  # fmt: skip

    def teardown(self) -> None:
        for queue in self.queues:
            queue.close()
        shutil.rmtree(self.directory)

    @rule(handle=handles, priority=priorities, delay=delays, limit=st.integers(1, 3))
    def enqueue(self, handle: int, priority: int, delay: float, limit: int) -> None:
        self.count += 1
        payload = {"n": self.count}
        job = self.queues[handle].enqueue(payload, priority=priority, delay=delay, max_attempts=limit)
        assert job.created
        self.model.enqueue(job.id, payload, priority, delay, limit)

    @rule(handle=handles, count=st.integers(1, 4))
    def enqueue_many(self, handle: int, count: int) -> None:
        payloads = [{"n": self.count + number} for number in range(count)]
        self.count += count
        for job in self.queues[handle].enqueue_many(payloads):
            self.model.enqueue(job.id, job.payload, 0, 0.0, 3)

    @rule(handle=handles, job_id=ids, payload=st.integers(0, 1), delay=delays)
    def enqueue_under_an_id(self, handle: int, job_id: str, payload: int, delay: float) -> None:
        known = self.model.known(job_id)
        if known is not None and known.payload != payload:
            with pytest.raises(JobConflictError):
                self.queues[handle].enqueue(payload, job_id=job_id, delay=delay)
            return
        job = self.queues[handle].enqueue(payload, job_id=job_id, delay=delay)
        assert job.created == (known is None)
        assert (job.id, job.payload) == (job_id, payload)
        if known is None:
            self.model.enqueue(job_id, payload, 0, delay, 3)

    @rule(handle=handles, count=st.integers(1, 3))
    def lease(self, handle: int, count: int) -> None:
        jobs = self.queues[handle].lease(count)
        wanted = self.model.lease(count)
        assert [(job.id, job.attempts) for job in jobs] == [(job.id, job.attempts) for job in wanted]
        for job, same in zip(jobs, wanted, strict=True):
            assert job.lease_token is not None
            assert all(job.lease_token > token for token in self.tokens)
            self.tokens.append(job.lease_token)
            same.token = job.lease_token
            self.held.append((job, same))

    def finish(self, handle: int, choice: int, act: Any, then: Any) -> None:
        """Let ``act`` end one of the leases ever taken; the model says whether it may."""
        job, same = self.held[choice % len(self.held)]
        current = self.model.jobs.get(job.id)
        if current is None:
            with pytest.raises(JobNotFoundError):
                act(self.queues[handle], job)
        elif current is not same or current.token != job.lease_token or current.state != "leased":
            with pytest.raises(AlreadyDoneError if current.state == "done" else NotLeasedError):
                act(self.queues[handle], job)
        else:
            act(self.queues[handle], job)
            then(current)

    @precondition(lambda self: self.held)
    @rule(handle=handles, choice=st.integers(0, 50))
    def ack(self, handle: int, choice: int) -> None:
        job, same = self.held[choice % len(self.held)]
        current = self.model.jobs.get(job.id)
        if current is same and current.state == "done" and current.token == job.lease_token:
            self.queues[handle].ack(job)  # a retried ack is harmless
        else:
            self.finish(handle, choice, lambda queue, job: queue.ack(job, result=choice), self.model.ack)

    @precondition(lambda self: self.held)
    @rule(handle=handles, choice=st.integers(0, 50), count=st.integers(1, 4))
    def ack_many(self, handle: int, choice: int, count: int) -> None:
        some = {job.id: (job, same) for job, same in (self.held + self.held)[choice % len(self.held) :][:count]}
        lost = {job.id for job in self.queues[handle].ack_many([job for job, _ in some.values()])}
        for job, same in some.values():
            current = self.model.jobs.get(job.id)
            mine = current is same and current.token == job.lease_token and current.state in ("leased", "done")
            assert (job.id in lost) == (not mine)
            if mine and same.state == "leased":
                self.model.ack(same)

    @precondition(lambda self: self.held)
    @rule(handle=handles, choice=st.integers(0, 50), delay=st.sampled_from([None, 0.0, 7.0]))
    def nack(self, handle: int, choice: int, delay: float | None) -> None:
        self.finish(
            handle, choice, lambda queue, job: queue.nack(job, error="x", delay=delay),
            lambda job: self.model.fail(job, delay),
        )  # fmt: skip

    @precondition(lambda self: self.held)
    @rule(handle=handles, choice=st.integers(0, 50))
    def bury(self, handle: int, choice: int) -> None:
        self.finish(handle, choice, lambda queue, job: queue.bury(job, error="no"), self.model.bury)

    @precondition(lambda self: self.held)
    @rule(handle=handles, choice=st.integers(0, 50))
    def release(self, handle: int, choice: int) -> None:
        def act(queue: Queue, job: Job) -> None:
            if queue.release([job]):
                raise NotLeasedError(job.id, "lost") if self.state(job) != "done" else AlreadyDoneError(job.id, "lost")

        if self.state(self.held[choice % len(self.held)][0]) is not None:
            self.finish(handle, choice, act, self.model.release)

    def state(self, job: Job) -> str | None:
        current = self.model.jobs.get(job.id)
        return current.state if current else None

    @precondition(lambda self: self.held)
    @rule(handle=handles, choice=st.integers(0, 50), seconds=st.sampled_from([0.0, 10.0]))
    def extend(self, handle: int, choice: int, seconds: float) -> None:
        def then(job: ModelJob) -> None:
            job.deadline = max(job.deadline, self.model.now) + seconds

        self.finish(handle, choice, lambda queue, job: queue.extend(job, seconds), then)

    @rule(handle=handles)
    def requeue_dead(self, handle: int) -> None:
        assert self.queues[handle].requeue_dead() == self.model.requeue_dead()

    @rule(handle=handles, count=st.integers(1, 2))
    def discard_dead(self, handle: int, count: int) -> None:
        dead = [job.id for job in self.model.listed() if job.state == "dead"][:count]
        others = [job.id for job in self.model.listed() if job.state != "dead"][:1]
        assert self.queues[handle].discard_dead([*dead, *others]) == others
        for job_id in dead:
            del self.model.jobs[job_id]

    @rule(seconds=st.sampled_from([1.0, 10.0, 31.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.now += seconds

    @precondition(lambda self: self.model.now > 500.0)
    @rule(seconds=st.sampled_from([1.0, 50.0]))
    def the_clock_is_set_back(self, seconds: float) -> None:
        self.model.now -= seconds

    @rule(handle=handles)
    def compact(self, handle: int) -> None:
        self.model.compact()
        assert self.queues[handle].compact().jobs_kept == len(self.model.jobs)

    @rule(handle=handles)
    def reopen(self, handle: int) -> None:
        self.queues[handle].close()
        self.queues[handle] = self.open()

    @rule(words=st.booleans())
    def everybody_reopens(self, words: bool) -> None:
        for queue in self.queues:
            queue.close()
        if not words:
            (self.directory / "default.lock").unlink()
            shutil.rmtree(self.directory / "default.run", ignore_errors=True)
        self.start()

    @precondition(lambda self: self.count % 7 == 6)
    @rule(handle=handles)
    def purge(self, handle: int) -> None:
        assert self.queues[handle].purge() == len(self.model.jobs)
        self.model.jobs.clear()

    @invariant()
    def the_same_jobs(self) -> None:
        if self.queues:
            shown = [
                (job.id, job.payload, job.priority, job.state.value, job.attempts, job.max_attempts, len(job.errors))
                for job in self.queues[self.count % 2].list_jobs()
            ]
            assert shown == [job.seen() for job in self.model.listed()]
            stats = self.queues[self.count % 2].stats()
            waiting = [job for job in self.model.jobs.values() if job.state == "ready"]
            assert stats.ready == sum(job.available_at <= self.model.now for job in waiting)
            assert stats.delayed == sum(job.available_at > self.model.now for job in waiting)
            assert stats.total == len(self.model.jobs)
            assert stats.enqueued_total == self.model.total


pytestmark = [
    pytest.mark.contract("ORD-01", "LEASE-03", "LEASE-04", "LEASE-05", "LEASE-08", "ENQ-04", "COMP-01", "COMP-03")
]
TestTwoHandles = TwoHandles.TestCase
TestTwoHandles.settings = settings(max_examples=60, stateful_step_count=50, suppress_health_check=list(HealthCheck))


@pytest.mark.long
class TestMany(TwoHandles.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(
        max_examples=600,
        stateful_step_count=80,
        derandomize=False,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
