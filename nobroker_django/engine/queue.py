"""The queue as its users see it: all verbs, for threads of any number of processes on one machine.

A plain ``enqueue`` appends one record and knows nothing of the others. Every other verb folds the log's tail into the
projection first (``deciding``). What a verb promises is durable when it returns (``durability``), unless the queue was
opened with ``fsync=False``, which is not durable.
"""

from __future__ import annotations

import os
from types import TracebackType

from . import options
from .adding import Adding
from .compaction import CompactionResult, compact, remove_retired
from .control import COMPACTION_BYTE
from .deciding import Decision
from .durability import Promise
from .errors import CompactionError, JobNotFoundError, NotLeasedError
from .leasing import Leasing
from .looking import Looking
from .records import Purge, Requeue
from .transitions import DEAD

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

    def requeue_dead(self, job_id: str | None = None) -> int:
        """Dead letters become ready again, with a fresh budget of attempts; how many.

        Args:
            job_id: one of them; by default all.

        Raises:
            JobNotFoundError: there is no such job. NotLeasedError: it is no dead letter.
        """
        total = 0
        while True:

            def act(decision: Decision) -> tuple[int, Promise]:
                if job_id is None:
                    rows = decision.unit.dead(_REQUEUE_ROWS)
                else:
                    row = decision.unit.find(options.job_id(job_id))
                    if row is None:
                        raise JobNotFoundError(job_id, self.name)
                    if row.state != DEAD:
                        raise NotLeasedError(job_id, "it is not in the dead-letter queue")
                    rows = [row]
                if rows:
                    decision.write([Requeue(id=row.id, at=decision.now) for row in rows])
                return len(rows), decision.promise()

            count, promise = self._decide(act)
            self._keep(promise)
            total += count
            if job_id is not None or count < _REQUEUE_ROWS:
                return total

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
        session = self._session
        with session.locked() as held:
            lock_file = held.lock_file.retain()
        try:
            with session.long_work.try_lock(lock_file, COMPACTION_BYTE) as had:
                if not had:
                    raise CompactionError(f"another compaction of {self.name!r} is running; the queue is unchanged")
                result, retired = self._decide(lambda decision: (compact(decision), decision.held.log.generation))
                remove_retired(session.files, session.layout, retired)
        except OSError as error:
            raise CompactionError(f"could not compact {self.name!r}: {error}; the queue is unchanged") from error
        finally:
            lock_file.release()
        return result
