"""Where jobs run in a worker process: threads, and one event loop for coroutine tasks.

Invariant: a job that is put on a place is run, whatever others do, and its end is announced once. The clerk never puts
more on them than there are free places.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from nobroker_django import registry
from nobroker_django.engine.job import Job
from nobroker_django.execution import AsyncGuard, Guard, Performed, failed, is_coroutine, perform, perform_async

logger = logging.getLogger("nobroker_django.worker")

Work = tuple[str, Job, Guard, Callable[[Performed], None]]


class Threads:
    """As many jobs at a time as threads; they are daemons, because a job may never end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._work: SimpleQueue[Work] = SimpleQueue()

    def start(self) -> None:
        """Start the threads (after the fork)."""
        for number in range(self.number):
            threading.Thread(target=self._run, name=f"nobroker-job-{number + 1}", daemon=True).start()

    def put(self, queue: str, job: Job, guard: Guard, announce: Callable[[Performed], None]) -> None:
        """Run a job."""
        self._work.put((queue, job, guard, announce))

    def _run(self) -> None:
        while True:
            queue, job, guard, announce = self._work.get()
            announce(perform(queue, job, guard))
            del job, guard, announce  # nothing of it stays while this thread waits


class Loop:
    """Coroutine tasks, side by side on one event loop in a thread of its own, which the first of them starts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Performed]] = set()

    def put(self, queue: str, job: Job, guard: AsyncGuard, announce: Callable[[Performed], None]) -> None:
        """Run a job."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_for_ever, args=(self._loop,), name="nobroker-loop", daemon=True).start()
        self._loop.call_soon_threadsafe(self._begin, queue, job, guard, announce)

    def _begin(self, queue: str, job: Job, guard: AsyncGuard, announce: Callable[[Performed], None]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(perform_async(queue, job, guard), context=contextvars.Context())
        self._tasks.add(task)  # the loop alone holds tasks weakly
        task.add_done_callback(partial(self._ended, queue, job, announce))

    def _ended(
        self, queue: str, job: Job, announce: Callable[[Performed], None], task: asyncio.Task[Performed]
    ) -> None:
        self._tasks.discard(task)
        try:
            performed = task.result()
        except BaseException as error:  # another task has cancelled it before it began
            performed = failed(queue, job, error)
        announce(performed)


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    """Whatever a task does to the loop: stop it, or let SystemExit or KeyboardInterrupt out of a task of its own."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except BaseException:
            logger.exception("an exception came out of the event loop of the coroutine tasks, which goes on")


class Places:
    """Both kinds, and how many of each are free. Used by the clerk's thread alone."""

    def __init__(self, threads: int, coroutines: int) -> None:
        self.threads = Threads(threads)
        self.loop = Loop(coroutines)
        self.busy = {False: 0, True: 0}
        self._kinds: dict[int, bool] = {}  # of what runs, by the identity of the job

    def start(self) -> None:
        """Start the threads (after the fork)."""
        self.threads.start()

    def free(self, *, coroutine: bool) -> int:
        """How many jobs of that kind can be begun at once; none of a kind that no task has."""
        if coroutine and not registry.has_coroutines():
            return 0
        return (self.loop.number if coroutine else self.threads.number) - self.busy[coroutine]

    @property
    def running(self) -> int:
        """How many jobs run."""
        return sum(self.busy.values())

    def run(
        self, queue: str, job: Job, guard: Guard, async_guard: AsyncGuard, announce: Callable[[Performed], None]
    ) -> None:
        """Put a job on a free place of its kind."""
        kind = self._kinds[id(job)] = is_coroutine(job)
        self.busy[kind] += 1
        if kind:
            self.loop.put(queue, job, async_guard, announce)
        else:
            self.threads.put(queue, job, guard, announce)

    def left(self, job: Job) -> None:
        """The job has ended: its place is free."""
        # Not asked again: running the first job of a task may be what made the task known.
        self.busy[self._kinds.pop(id(job))] -= 1
