"""The queue as its users see it: all verbs, for threads of any number of processes on one machine.

A plain ``enqueue`` appends one record and knows nothing of the others. Every other verb folds the log's tail into the
projection first (``deciding``). What a verb promises is durable when it returns (``durability``), unless the queue was
opened with ``fsync=False``, which is not durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType

from . import options
from .adding import Adding
from .compaction import CompactionResult, compact, rows_were_wrong
from .deciding import Decision
from .durability import Promise
from .errors import CorruptLogError, InvalidOptionError, JobNotFoundError, NobrokerError, NotLeasedError
from .leasing import Leasing
from .looking import Looking
from .records import Purge, Record, Requeue
from .transitions import DEAD, Row

_REQUEUE_ROWS = 5000


class Queue(Adding, Leasing, Looking):
    """A durable job queue in the files ``NAME.*`` of one directory.

    Args:
        path: the directory; created when it is not there.
        name: 1 to 64 ASCII letters, digits, ``_`` and ``-``. Each queue has a log of its own.
        fsync: False is **not durable**: what was acknowledged can be lost when the machine goes down.
        visibility_timeout: seconds that a lease lasts.
        max_attempts: deliveries before a job becomes a dead letter.
        backoff: delay between failed attempts.
        lock_timeout: seconds that a call waits for other processes.
        retention: seconds that finished jobs, and their ids, stay known.
        file_mode, dir_mode: permission bits of what is created.
        read_only: only look (``stats``, ``get``, ``list_jobs``, ``dlq``): no lock, nothing created, no byte changed.
        clock: Unix seconds as a float; for tests.
        files: the system calls; for tests.

    Raises:
        InvalidOptionError: an option is not valid.
        CorruptLogError: acknowledged data are damaged, or the pointer file is missing or unreadable.
        StorageError: the file system refused something.
        LockTimeoutError: another process held the lock for too long.
    """

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Queue({os.fspath(self.dir)!r}, {self.name!r})"

    # -- dead letters

    def requeue_dead(self, job_id: str | Iterable[str] | None = None) -> int:
        """Dead letters become ready again, with a fresh budget of attempts; how many.

        Args:
            job_id: one of them, or several ids (those that are no dead letters are left alone); by default all.

        Raises:
            JobNotFoundError: there is no such job. NotLeasedError: it is no dead letter.
            LockTimeoutError, CorruptLogError, StorageError: see ``stored``; many are requeued in pieces.
        """
        if job_id is None:
            return self._requeue_all()
        if isinstance(job_id, str):
            if self._change_dead([options.job_id(job_id)], lambda row, now: Requeue(id=row.id, at=now)):
                raise self._no_dead_letter(job_id)
            return 1
        wanted = _ids("job_id", job_id)
        return len(wanted) - len(self._change_dead(wanted, lambda row, now: Requeue(id=row.id, at=now)))

    def discard_dead(self, job_ids: Iterable[str]) -> list[str]:
        """Forget these dead letters; returns the ids that are no dead letters, which are left alone.

        Raises:
            InvalidOptionError: an id is not valid; nothing was changed.
            LockTimeoutError, CorruptLogError, StorageError: see ``stored``; many are discarded in pieces.
        """
        return self._change_dead(_ids("job_ids", job_ids), lambda row, now: Purge(at=now, ids=[row.id]))

    def _requeue_all(self) -> int:
        """Requeue all dead letters, in pieces; how many."""
        count, some = 0, _REQUEUE_ROWS
        while some == _REQUEUE_ROWS:
            try:
                some = self._requeue_some()
            except NobrokerError as error:
                error.comes_after(count)
                raise
            count += some
        return count

    def _requeue_some(self) -> int:
        """Requeue the first dead letters; how many. Fewer than it may be: there are no more."""

        def act(decision: Decision) -> tuple[int, Promise]:
            rows = decision.unit.dead(_REQUEUE_ROWS)
            if rows:
                decision.write([Requeue(id=row.id, at=decision.now) for row in rows])
            return len(rows), decision.promise()

        count, promise = self._decide(act)
        self._keep(promise)
        return count

    def _change_dead(self, job_ids: list[str], make: Callable[[Row, float], Record]) -> list[str]:
        """Write a record for each dead letter among ``job_ids``, in batches; the ids that are none."""
        left: list[str] = []
        changed = 0
        for begin in range(0, len(job_ids), _REQUEUE_ROWS):
            some = job_ids[begin : begin + _REQUEUE_ROWS]

            def act(decision: Decision, some: list[str] = some) -> tuple[list[str], Promise]:
                rows = {job_id: decision.unit.find(job_id) for job_id in some}
                dead = [row for row in rows.values() if row is not None and row.state == DEAD]
                if dead:
                    decision.write([make(row, decision.now) for row in dead])
                gone = {row.id for row in dead}
                return [job_id for job_id in some if job_id not in gone], decision.promise()

            try:
                others, promise = self._decide(act)
                self._keep(promise)
            except NobrokerError as error:
                error.comes_after(changed)
                raise
            left += others
            changed += len(some) - len(others)
        return left

    def _no_dead_letter(self, job_id: str) -> NobrokerError:
        """Why a job could not be taken out of the dead-letter queue."""
        try:
            self.get(job_id)
        except JobNotFoundError as error:
            return error
        return NotLeasedError(job_id, "it is not in the dead-letter queue")

    def purge(self) -> int:
        """Forget every job of the queue, in any state; how many there were."""

        def act(decision: Decision) -> tuple[int, Promise]:
            count = sum(decision.unit.counts)
            decision.write([Purge(at=decision.now)])
            return count, decision.promise()

        count, promise = self._decide(act)
        self._keep(promise)
        return count

    # -- maintenance

    def compact(self) -> CompactionResult:
        """Write the log anew without finished history; all or nothing.

        Raises:
            CompactionError: it was given up (no space, or another compaction is running); the queue is unchanged.
            CorruptLogError: a record is damaged; the queue is unchanged.
        """
        try:
            return compact(self._session)
        except CorruptLogError as error:
            self._look_into_damage(error)
            raise rows_were_wrong(self.name) from error


def _ids(option: str, given: Iterable[str]) -> list[str]:
    """Several ids, checked, each once."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidOptionError(option, f"several ids are needed, not {options.shown(given)}")
    return list(dict.fromkeys(options.job_id(job_id) for job_id in given))
