"""A worker among the writers: it fetches, begins and ends jobs in exchanges, and it dies with jobs in its hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nobroker_django import Job
from nobroker_django.engine.endings import Ended
from nobroker_django.engine.liveness import Liveness
from nobroker_django.engine.worker_queue import Exchange, WorkerQueue

from .history import last_position
from .ledger import State, key_of
from .powercut import TraceFiles
from .writers import LEASED, TAKEN_BACK, Writer, done, failed


class Worker(Writer):
    """The verbs of a worker, beside all others.

    Its byte is a lock of a descriptor of its own: when it is killed the others find it dead, as they find a process.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._liveness: Liveness | None = None
        self._fetched: list[Job] = []
        self._begun: list[Job] = []
        self._unconfirmed: list[tuple[Exchange, int]] = []  # and where in the log it was said

    def open(self, directory: Path, files: TraceFiles) -> None:
        super().open(directory, files)
        self._liveness = self._worker_queue._register_worker()

    @property
    def _worker_queue(self) -> WorkerQueue:
        queue = self.live
        assert isinstance(queue, WorkerQueue)
        return queue

    def step(self) -> None:
        if self.rng.random() < 0.35:
            super().step()
        else:
            self.rng.choice([self.exchange] * 6 + [self.confirm, self.confirm, self.reclaim, self.sync, self.end])()

    def exchange(self) -> None:
        """Say what has ended and what begins, and fetch."""
        rng = self.rng
        succeeded, unlucky = self._some(self._begun), self._some(self._begun)
        given_back, started = self._some(self._fetched), self._some(self._fetched)
        ended: dict[str, State] = {key_of(job): done(job) for job in succeeded}
        ended |= {key_of(job): failed(job) for job in unlucky}
        ended |= {key_of(job): ("ready", job.attempts - 1) for job in given_back}
        before = {key_of(job): ("leased", job.attempts) for job in (*succeeded, *unlucky, *given_back)}
        count, confirms = rng.choice((0, 1, 2, 3)), rng.random() < 0.3
        begin = rng.randint(0, count)

        def act() -> dict[str, Any]:
            ends = [Ended.succeeded(job, 1) for job in succeeded] + [Ended.failed(job, "no") for job in unlucky]
            ends += [Ended.given_back(job) for job in given_back]
            holder = self._liveness.holder if self._liveness else None
            answers: list[Exchange] = []

            def lease() -> list[Job]:
                answers.append(self._worker_queue.exchange(ends, started, count=count, begin=begin, holder=holder))
                return answers[0].leased

            jobs, (answer,), at = self.taken(lease), answers, last_position()
            lost = {one.job if isinstance(one.job, str) else key_of(one.job) for one in answer.settled if one.lost}
            lost |= {key_of(job) for job in answer.lost}
            assert not lost or self.history.purges or self.faults, f"{lost}: leases of a worker that lives"
            self._begun += [job for job in jobs if job.started_at]
            self._begun += [job for job in started if job not in answer.lost]
            self._fetched += [job for job in jobs if not job.started_at]
            changes = {key: state for key, state in ended.items() if key not in lost}
            changes |= {key_of(job): ("leased", job.attempts) for job in jobs}
            if confirms:
                answer.confirm()
            elif answer.promise is not None:
                self._unconfirmed.append((answer, at))
            return {"changes": changes, "durable": confirms, "at": at}

        def end(key: str, state: State) -> State:
            return ended[key] if key in ended and state == before[key] else state

        self.verb((end, *LEASED) if count else (end,), act)

    def _some(self, jobs: list[Job]) -> list[Job]:
        """None, one or two of them, taken out of the list."""
        return [jobs.pop(self.rng.randrange(len(jobs))) for _ in range(min(len(jobs), self.rng.choice((0, 0, 1, 2))))]

    def confirm(self) -> None:
        """Wait until an earlier exchange is durable, as another thread of a worker does."""
        if not self._unconfirmed:
            return self.exchange()
        answer, at = self._unconfirmed.pop(self.rng.randrange(len(self._unconfirmed)))

        def act() -> dict[str, Any]:
            answer.confirm()
            return {"at": at}

        return self.verb((), act)

    def reclaim(self) -> None:
        """Take back what dead workers held."""

        def act() -> dict[str, Any]:
            self._worker_queue.reclaim_dead()
            return {}

        self.verb(TAKEN_BACK, act)

    def sync(self) -> None:
        """As a supervisor does it, of what was written a while ago."""

        def act() -> dict[str, Any]:
            self._worker_queue.sync_older(0.0)
            return {}

        self.verb((), act)

    def end(self) -> None:
        """The worker has ended, with what it held; its queue object goes on without one."""
        liveness, self._liveness = self._liveness, None
        if liveness is not None:
            liveness.close()
        self._fetched, self._begun = [], []

    def reopen(self) -> None:
        while self._unconfirmed:
            self._unconfirmed.pop()[0].drop()
        self.end()
        super().reopen()
