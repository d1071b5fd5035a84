"""What ``nobroker_work`` was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

EXIT_STOPPED = 0
EXIT_REFUSED = 1
EXIT_DAMAGE = 3
EXIT_GIVEN_BACK = 5
EXIT_FINISHED = 10
"""Between a child and its supervisor alone: there was nothing more to do (drained, idle, job limit)."""
EXIT_RECYCLED = 11
"""Between a child and its supervisor alone: it makes room for a new one (memory, number of jobs)."""
EXIT_BROKEN = 70
"""Between a child and its supervisor alone: a fault in the child; another one is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Times are seconds.

    ``queues`` in the order in which they are asked; ``grace`` how long running jobs may take to finish after the
    first signal; ``drain`` stop when nothing is ready; ``max_jobs`` jobs of all processes together;
    ``idle_timeout`` how long a process without any job stays; ``in_order`` whether the first queue that has a job is
    always served first (else they take turns); ``coroutines`` how many coroutine tasks a process runs side by side;
    ``max_memory`` bytes, and ``max_jobs_per_process`` jobs, after which a process makes room for a new one.
    """

    queues: tuple[str, ...]
    processes: int = 1
    in_order: bool = False
    threads: int = 4
    coroutines: int = 50
    grace: float = 30.0
    drain: bool = False
    max_jobs: int | None = None
    idle_timeout: float | None = None
    max_memory: int | None = None
    max_jobs_per_process: int | None = None
    verbosity: int = 1
