"""Looking: one job, lists of jobs, counts. Nothing of it changes the queue."""

from __future__ import annotations

from collections.abc import Sequence

from . import options
from .core import Asked, Core
from .errors import CorruptLogError, InvalidOptionError, JobNotFoundError, StorageError, storing_nothing
from .failures import MAX_CLASS_BYTES
from .job import Job, JobState, QueueStats
from .log import Log
from .payload import MAX_TASK_NAME
from .selection import ANY_MODULE, ANY_STATE, Selection
from .snapshots import ROW_STATES, job_of
from .transitions import Row

_PAGE_ROWS = 1000


class Looking(Core):
    """The verbs ``get``, ``stats``, ``list_jobs``, ``dlq`` and ``len``."""

    def get(self, job_id: str) -> Job:
        """One job, with its error history.

        Raises:
            JobNotFoundError: no job of that id is known.
        """
        with storing_nothing():
            options.job_id(job_id)

        def act(look: Asked) -> Job:
            row = look.unit.find(job_id)
            if row is None:
                raise JobNotFoundError(job_id, self.name)
            return job_of(row, look.log, look.unit.failures_of(row))

        return self._look(act)

    def stats(self) -> QueueStats:
        """The jobs by state, now."""

        def act(look: Asked) -> QueueStats:
            unit = look.unit
            waiting, due, leased, done, dead = unit.counts
            overdue, earliest = unit.overdue(look.now)
            premature = unit.premature(look.now)
            oldest = min((rank for rank in (unit.oldest_due(), earliest) if rank is not None), default=None)
            began, most_extensions = unit.longest_run()
            return QueueStats(
                ready=due + overdue - premature,
                delayed=waiting - overdue + premature,
                leased=leased,
                done=done,
                dead=dead,
                total=sum(unit.counts),
                enqueued_total=unit.enqueued_total,
                oldest_ready_age=None if oldest is None else max(0.0, look.now - oldest),
                oldest_running_age=None if began is None else max(0.0, look.now - began),
                most_extensions=most_extensions,
                behind_bytes=look.behind_bytes,
            )

        return self._look(act)

    def list_jobs(
        self,
        state: JobState | str | None = None,
        *,
        limit: int | None = None,
        after: int = -1,
        task: str | None = None,
        error_class: str | None = None,
        since: float | None = None,
        delayed: bool | None = None,
    ) -> list[Job]:
        """Jobs in insertion order, of one state or of all, ``limit`` at the most.

        Args:
            after: only jobs whose ``seq`` is above this: the last one of the page before.
            task: only calls of this task: payloads whose ``task`` is this name (up to 200 characters).
            error_class: only jobs whose last failed attempt was by an exception of this class, with ``"*."`` before
                its name in whatever module.
            since: only jobs enqueued at this moment or later (Unix seconds).
            delayed: only jobs whose time has still to come, or (False) none of those.

        Raises:
            InvalidOptionError: no such state, a negative limit, or another argument that makes no sense.
        """
        with storing_nothing():
            wanted = _selection(state, task, error_class, since, delayed)
            if limit is not None:
                options.integer("limit", limit, least=0)
        jobs: list[Job] = []
        doubted = False
        while limit is None or len(jobs) < limit:
            count = _PAGE_ROWS if limit is None else min(_PAGE_ROWS, limit - len(jobs))

            def act(
                look: Asked, after: int = after, count: int = count
            ) -> tuple[Log, list[tuple[Row, Sequence[int]]]]:
                unit = look.unit
                rows = unit.selected(wanted, after, count, look.now)
                return look.log.retain(), [(row, unit.failures_of(row) if row.failures else ()) for row in rows]

            log, page = self._look(act)
            try:
                found = [job_of(row, log, failures) for row, failures in page]
            except CorruptLogError as error:
                if doubted:
                    raise
                doubted = True
                self._look_into_damage(error)
                continue
            except OSError as error:
                raise StorageError("read", log.path, error) from error
            finally:
                log.release()
            jobs += found
            if len(page) < count:
                break
            after = page[-1][0].seq
        return jobs

    def dlq(self, *, limit: int | None = None, task: str | None = None, error_class: str | None = None) -> list[Job]:
        """The dead letters in insertion order; the arguments are those of ``list_jobs``."""
        return self.list_jobs(JobState.DEAD, limit=limit, task=task, error_class=error_class)

    def __len__(self) -> int:
        return self.stats().total

    def __bool__(self) -> bool:
        return True


def _selection(state: object, task: object, error_class: object, since: object, delayed: object) -> Selection:
    """What the arguments of a list ask for.

    Raises:
        InvalidOptionError: one of them makes no sense.
    """
    try:
        states = ANY_STATE if state is None else ROW_STATES[JobState(state)]
    except ValueError:
        names = ", ".join(known.value for known in JobState)
        raise InvalidOptionError("state", f"{options.shown(state)} is none of {names}") from None
    return Selection(
        states,
        None if task is None else options.text("task", task, most=MAX_TASK_NAME),
        None
        if error_class is None
        else options.text("error_class", error_class, most=len(ANY_MODULE) + MAX_CLASS_BYTES),
        None if since is None else options.seconds("since", since),
        None if delayed is None else options.flag("delayed", delayed),
    )
