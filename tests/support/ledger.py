"""What a queue has promised, kept beside it, and the check that a recovered queue keeps it.

Jobs are known by the ``k`` in their payload. A promise is a state ``(name, attempts)``, ``None`` for "not there".
A verb that has begun may have happened; one that has returned must have, unless it promises nothing (a lease).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nobroker_django import CompactionError, Job, JobState, NobrokerError, Queue
from nobroker_django.engine.endings import Ended
from nobroker_django.engine.worker_queue import WorkerQueue

State = tuple[str, int] | None


@dataclass
class Ledger:
    """Promises by job: the state that is certain, and those that may hold instead."""

    certain: dict[str, State] = field(default_factory=dict)
    maybe: dict[str, list[State]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)  # jobs of one call: all of them are there, or none
    unsure: set[str] = field(default_factory=set)  # jobs of a verb that said "outcome unknown"

    def begin(self, changes: dict[str, State]) -> None:
        """A verb starts that will change jobs so."""
        for key, state in changes.items():
            self.certain.setdefault(key, None)
            self.maybe.setdefault(key, []).append(state)

    def end(self, changes: dict[str, State], *, durable: bool = True, touched: bool = True) -> None:
        """It returned, having changed jobs so. The log is a prefix: what was before it is as certain.

        Args:
            touched: False: these jobs were not named; of one of which the state is unsure, it still is.
        """
        for key, state in changes.items():
            self.certain.setdefault(key, None)
            self.maybe.setdefault(key, []).append(state)
            if key not in self.order:
                self.order.append(key)
        if durable:
            if touched:
                self.unsure -= set(changes)
            for key, states in self.maybe.items():
                if states and key not in self.unsure:
                    self.certain[key] = states[-1]
                    states.clear()

    def observe(self, jobs: Iterable[Job]) -> None:
        """What the first opener after a crash shows is durable: nothing is open any more."""
        shown = {job.payload["k"]: (job.state.value, job.attempts) for job in jobs}
        for key in self.certain:
            self.certain[key] = shown.get(key)
            self.maybe[key] = []
        self.order = list(shown)
        self.groups.clear()
        self.unsure.clear()

    def unknown(self, keys: Iterable[str]) -> None:
        """It raised, and said that nobody knows: either may be found from now on, until the job is touched again."""
        for key in keys:
            self.unsure.add(key)
            if key not in self.order:
                self.order.append(key)

    def not_begun(self, changes: dict[str, State]) -> None:
        """It raised, and said that nothing was stored."""
        for key, state in changes.items():
            self.maybe[key].remove(state)

    def allowed(self, key: str) -> list[State]:
        """The states that a recovered queue may show."""
        return [self.certain.get(key), *self.maybe.get(key, [])]

    def copy(self) -> Ledger:
        """As it is now."""
        return copy.deepcopy(self)

    def problems(self, jobs: Iterable[Job]) -> list[str]:
        """What a recovered queue that holds these jobs, in this order, does wrong; empty when it keeps everything."""
        found: list[str] = []
        shown: dict[str, Job] = {}
        for job in jobs:
            key = job.payload["k"]
            if key in shown:
                found.append(f"{key} is there twice")
            shown[key] = job
        for key in self.certain:
            job = shown.get(key)
            state = None if job is None else (job.state.value, job.attempts)
            if state not in self.allowed(key):
                found.append(f"{key} is {state}, allowed were {self.allowed(key)}")
        found += [f"{key} was never enqueued" for key in shown if key not in self.certain]
        for group in self.groups:
            if all(self.certain[key] is None for key in group) and 0 < sum(key in shown for key in group) < len(group):
                found.append(f"of {group} only {[key for key in group if key in shown]} are there")
        places = [self.order.index(key) for key in shown if key in self.order]
        if places != sorted(places):
            found.append(f"order {list(shown)}, enqueued as {self.order}")
        return found


class Script:
    """Verbs on a queue, each told to the ledger before and after; ``note`` hears of every change of the ledger."""

    def __init__(self, queue: Queue, ledger: Ledger, note: Callable[[str, Ledger], None] = lambda *_: None) -> None:
        self.queue = queue
        self.ledger = ledger
        self._note = note
        self.failures: list[NobrokerError] = []
        self._held: dict[str, Job] = {}  # by a worker
        self._doubtful: set[str] = set()  # of those, what may have ended, or begun, and may not

    @contextmanager
    def _verb(
        self,
        changes: dict[str, State],
        *,
        durable: bool = True,
        touched: bool = True,
        after: Callable[[], dict[str, State]] | None = None,
    ) -> Iterator[None]:
        """Failures of the queue are kept and end the verb; what ``stored`` says is what the ledger believes."""
        self.ledger.begin(changes)
        self._note("begun", self.ledger)
        try:
            yield
        except NobrokerError as error:
            self.failures.append(error)
            if isinstance(error, CompactionError):
                self.ledger.unknown(changes)  # it may have failed after the new generation had become live
            elif error.stored is False:
                self.ledger.not_begun(changes)
            elif error.stored is True:
                self.ledger.end(changes)
            else:
                self.ledger.unknown(changes)
        else:
            final = changes if after is None else after()
            self.ledger.not_begun(changes)
            self.ledger.end(final, durable=durable, touched=touched)
        self._note("returned", self.ledger)

    def enqueue(self, *keys: str, **options: Any) -> None:
        """One job, or several at once."""
        if len(keys) > 1:
            self.ledger.certain.update(dict.fromkeys(keys))
            self.ledger.groups.append(keys)
        with self._verb(dict.fromkeys(keys, ("ready", 0))):
            if len(keys) == 1:
                self.queue.enqueue(payload_of(keys[0]), **options)
            else:
                self.queue.enqueue_many([payload_of(key) for key in keys], **options)

    def known(self, key: str) -> None:
        """Enqueue under the key as id: made, or found."""
        changes: dict[str, State] = {key: ("ready", 0)} if None in self.ledger.allowed(key) else {}
        shown: dict[str, State] = {}
        with self._verb(changes, after=lambda: shown):
            job = self.queue.enqueue(payload_of(key), job_id=key)
            if changes:
                shown[key] = (job.state.value, job.attempts)
            if job.created and key in self.ledger.order:
                self.ledger.order.remove(key)  # it was gone, and begins again behind all others

    def lease(self, count: int = 1) -> list[Job]:
        """Take jobs; nothing is promised but the token."""
        ready = {key: s for key in self.ledger.certain for s in self.ledger.allowed(key)[-1:] if s and s[0] == "ready"}
        jobs: list[Job] = []
        with self._verb(
            {key: ("leased", state[1] + 1) for key, state in ready.items()},
            durable=False,
            after=lambda: {job.payload["k"]: ("leased", job.attempts) for job in jobs},
        ):
            jobs.extend(self.queue.lease(count))
            self.ledger.tokens.extend(job.lease_token or "" for job in jobs)
        return jobs

    def ack(self, *jobs: Job, result: Any = None) -> None:
        """One or several."""
        with self._verb({key_of(job): ("done", job.attempts) for job in jobs}):
            if len(jobs) == 1:
                self.queue.ack(jobs[0], result=result)
            else:
                assert self.queue.ack_many(jobs) == []

    def nack(self, job: Job, **options: Any) -> None:
        """A failed attempt."""
        state = "dead" if job.attempts >= job.max_attempts else "ready"
        with self._verb({key_of(job): (state, job.attempts)}):
            self.queue.nack(job, error=ValueError(f"attempt {job.attempts} of {key_of(job)}"), **options)

    def bury(self, job: Job) -> None:
        with self._verb({key_of(job): ("dead", job.attempts)}):
            self.queue.bury(job, error="not a task")

    def release(self, *jobs: Job) -> None:
        with self._verb({key_of(job): ("ready", job.attempts - 1) for job in jobs}):
            self.queue.release(jobs)

    def extend(self, job: Job) -> None:
        with self._verb({key_of(job): ("leased", job.attempts)}, durable=False):
            self.queue.extend(job, 30.0)

    def exchange(
        self,
        *,
        succeeded: Sequence[Job] = (),
        failed: Sequence[Job] = (),
        given_back: Sequence[Job] = (),
        started: Sequence[Job] = (),
        count: int = 0,
        begin: int = 0,
        holder: str | None = None,
        confirm: bool = True,
    ) -> list[Job]:
        """What a worker says at once; unconfirmed, it promises nothing yet."""
        ended: dict[str, State] = {key_of(job): ("done", job.attempts) for job in succeeded}
        ended |= {key_of(job): _after_failure(job) for job in failed}
        ended |= {key_of(job): ("ready", job.attempts - 1) for job in given_back}
        leases: dict[str, State] = {}
        for key, state in (self._now() | ended).items() if count else ():
            if state and state[0] == "ready":
                leases[key] = ("leased", state[1] + 1)
        jobs: list[Job] = []
        failures = len(self.failures)
        with self._verb(
            ended | leases,
            durable=confirm,
            after=lambda: ended | {key_of(job): ("leased", job.attempts) for job in jobs},
        ):
            ends = [Ended.succeeded(job, {"k": 1}) for job in succeeded]
            ends += [Ended.failed(job, ValueError("no")) for job in failed]
            ends += [Ended.given_back(job) for job in given_back]
            assert isinstance(self.queue, WorkerQueue)
            answer = self.queue.exchange(ends, started, count=count, begin=begin, holder=holder)
            jobs.extend(answer.leased)
            self.ledger.tokens.extend(job.lease_token or "" for job in jobs)
            if confirm:
                answer.confirm()
            else:
                answer.drop()
        told = {*ended, *map(key_of, started)}
        if any(failure.stored is None for failure in self.failures[failures:]):
            self._doubtful |= told
        elif len(self.failures) == failures:
            self._held = {key: job for key, job in self._held.items() if key not in ended}
        self._held |= {key_of(job): job for job in jobs}
        return jobs

    def worker_ended(self, holder: str) -> None:
        """What it held is taken back: of what had begun, the attempt counts."""
        changes: dict[str, State] = {}
        for key, job in self._held.items():
            begun, fetched = _after_failure(job), ("ready", job.attempts - 1)
            if key in self._doubtful:
                self.ledger.begin({key: begun})
                self.ledger.begin({key: fetched})
                self.ledger.unknown([key])
            else:
                changes[key] = begun if job.started_at else fetched
        with self._verb(changes):
            assert isinstance(self.queue, WorkerQueue)
            self.queue.reclaim_dead({holder: "it was killed"})

    def requeue_dead(self) -> None:
        with self._verb(self._all_now("dead", ("ready", 0)), touched=False):
            self.queue.requeue_dead()

    def purge(self) -> None:
        with self._verb({key: None for key, s in self._now().items() if s}):
            self.queue.purge()

    def compact(self) -> None:
        """Done jobs go (retention 0). What was leased or extended before it is durable after it."""
        with self._verb(self._all_now("done", None), touched=False):
            self.queue.compact()

    def _now(self) -> dict[str, State]:
        return {key: self.ledger.allowed(key)[-1] for key in self.ledger.certain}

    def _all_now(self, name: str, then: State) -> dict[str, State]:
        return {key: then for key, state in self._now().items() if state and state[0] == name}


def _after_failure(job: Job) -> State:
    return "dead" if job.attempts >= job.max_attempts else "ready", job.attempts


def payload_of(key: str) -> dict[str, str]:
    return {"k": key, "filler": "x" * (sum(map(ord, key)) % 190)}


def key_of(job: Job) -> str:
    key: str = job.payload["k"]
    return key


def check_recovered(directory: Path, ledger: Ledger, *, clock: Callable[[], float], **options: Any) -> Queue:
    """Open what a crash left, and check it against the ledger; the queue, still open.

    Raises:
        AssertionError: a promise is broken.
        NobrokerError: the queue needs a person.
    """
    queue = Queue(directory, clock=clock, lock_timeout=5.0, visibility_timeout=1e6, **options)
    try:
        problems = ledger.problems(queue.list_jobs())
        assert not problems, problems
        report = queue.recovery
        if report.repaired:
            kept = Path(report.kept_path or "")
            assert kept.stat().st_size == report.bytes_discarded, "the cut bytes were not kept"
        # It goes on: something new gets in, its token is above all earlier ones, and it survives the next opening.
        queue.enqueue({"k": "probe"}, priority=1000)
        job = queue.lease_one()
        assert job is not None
        assert job.payload == {"k": "probe"}
        assert all((job.lease_token or "") > token for token in ledger.tokens), (job.lease_token, ledger.tokens)
        queue.ack(job)
        if len(list(directory.glob("*.log"))) > 1:  # which the next compaction has to remove, and does without a word
            queue.compact()
            assert list(directory.glob("*.log")) == [queue.path], "a log was left that nobody needs"
    except BaseException:
        queue.close()
        raise
    return queue


def reopened_shows_the_same(queue: Queue, directory: Path, clock: Callable[[], float]) -> None:
    """Close, open, list: the same jobs."""
    before = [(job.id, job.state, job.attempts) for job in queue.list_jobs() if job.state is not JobState.DONE]
    queue.close()
    with Queue(directory, clock=clock) as again:
        after = [(job.id, job.state, job.attempts) for job in again.list_jobs() if job.state is not JobState.DONE]
    assert before == after
