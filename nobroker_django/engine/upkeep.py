"""When a compaction pays, and doing it then: what workers do beside their work.

Invariant: looking whether it pays takes no lock and holds nobody up, and where no large log is, it costs two looks at
files. A compaction that cannot be done now is tried again later; it never ends a worker.

What is dead in a log is estimated by a sample of the jobs: to know it exactly would cost more, in every transition or
at every look, than a compaction now and then that could have waited.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .compaction import CompactionResult, compact, rows_were_wrong
from .control import offset_of
from .errors import (
    CompactionRunningError,
    CorruptLogError,
    NobrokerError,
    PointerError,
    QueueClosedError,
)
from .files import Files
from .framing import FRAME_BYTES
from .generations import Layout, parse_pointer
from .inspection import ReadingFiles, live_log, read_words
from .old_log import OldLog
from .projection import Projection
from .queue import Queue
from .schema import Stale
from .thresholds import CompactionPolicy
from .transitions import DONE
from .unit import Unit

logger = logging.getLogger("nobroker_django")
LOOK_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 3600.0
_SAMPLED_JOBS = 2000
_STATE_BYTES = 64  # what a copy says of its job's state, at the least


def may_pay(layout: Layout, policy: CompactionPolicy, files: Files | None = None) -> bool:
    """Whether the live log is large enough; cheap, and False where there is none that can be looked at."""
    files = files or ReadingFiles()
    try:
        fd = files.open(layout.pointer, 0)
        try:
            generation = parse_pointer(files, layout, files.pread(fd, 64, 0))
        finally:
            files.close(fd)
        return files.path_size(layout.log(generation)) >= policy.min_bytes
    except (OSError, PointerError):
        return False


def dead_share(layout: Layout, now: float) -> float:
    """Which share of the live log a compaction would leave out, about; 0.0 where nobody can say.

    Raises:
        CorruptLogError: pointer or log cannot be right. OSError: a file cannot be read.
    """
    files = ReadingFiles()
    log = live_log(files, layout)
    try:
        words = read_words(files, layout)
        if isinstance(log, OldLog) or not words.belong_to(log.log_id, log.generation) or not words.build:
            return 0.0
        projection = Projection.read(files, layout, log, words.build)
        try:
            with projection.reading() as unit:
                end = max(unit.applied, offset_of(words.end))
                needed = _needed_bytes(projection, unit, now) + end - unit.applied  # what is not folded yet is new
                share: float = max(0.0, 1.0 - needed / end)
                return share
        finally:
            projection.close()
    except Stale:
        return 0.0
    finally:
        log.release()


def _needed_bytes(projection: Projection, unit: Unit, now: float) -> float:
    """The size of the records that a compaction would copy, by a sample of the jobs."""
    jobs, execute = sum(unit.counts), projection.connection.execute
    rows = execute(
        f"SELECT seq, payload_offset, result_offset, failures, state != {DONE} OR keep_until > ? FROM jobs "
        "WHERE seq IN (SELECT seq FROM jobs WHERE random() & 1048575 < ?)",
        (now, (_SAMPLED_JOBS << 20) // max(jobs, _SAMPLED_JOBS)),
    ).fetchall()
    offsets: list[int] = []
    for seq, payload_offset, result_offset, failures, needed in rows:
        if needed:
            offsets += [payload_offset, result_offset] if result_offset else [payload_offset]
        if needed and failures:
            offsets += [at for (at,) in execute("SELECT at_offset FROM failures WHERE job = ?", (seq,))]
    peek = projection.log.peek
    size = sum(FRAME_BYTES + int.from_bytes(peek(offset, 4), "little") for offset in offsets)
    size += _STATE_BYTES * sum(row[-1] for row in rows)
    return jobs * size / len(rows) if rows else 0.0


def compact_if_it_pays(
    queue: Queue, policy: CompactionPolicy, *, give_up: Callable[[], bool] = lambda: False
) -> CompactionResult | None:
    """Compact, if that pays now and nobody else is at it.

    Args:
        give_up: as for ``compact``.

    Raises:
        As ``Queue.compact``.
    """
    session = queue._session
    if not may_pay(session.layout, policy, session.files):
        return None
    try:
        if dead_share(session.layout, queue.now()) < policy.dead_ratio:
            return None
        return compact(session, give_up=give_up)
    except CompactionRunningError:
        return None
    except CorruptLogError as error:
        queue._look_into_damage(error)
        raise rows_were_wrong(queue.name) from error


class Upkeep:
    """A thread that compacts one queue when it pays."""

    def __init__(self, queue: Queue, policy: CompactionPolicy, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._queue = queue
        self._policy = policy
        self._look_seconds = look_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nobroker-upkeep", daemon=True)

    def start(self) -> None:
        """Look now, and again and again."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a compaction that is on its way is given up, and leaves nothing behind."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            try:
                result = compact_if_it_pays(self._queue, self._policy, give_up=self._stopped.is_set)
            except QueueClosedError:
                return
            except (NobrokerError, OSError) as error:
                pause = min(max(2 * pause, self._look_seconds), _LONGEST_PAUSE_SECONDS)
                if not self._stopped.is_set():
                    logger.warning(
                        "%s: could not be compacted, trying again in %g s: %s", self._queue.name, pause, error
                    )
            else:
                pause = self._look_seconds
                if result is not None:
                    logger.info("%s: %s", self._queue.name, result.describe())
