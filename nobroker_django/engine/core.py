"""What all verbs of a queue share: its options, its session, deciding and keeping promises."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from . import options
from .backoff import BackoffPolicy
from .clock import Clock, Deadline, system_clock
from .deciding import Decision, decide
from .durability import Promise
from .errors import CorruptLogError, InvalidOptionError, ReadOnlyError
from .files import Files
from .generations import Layout
from .job import JobState, TakenBack
from .liveness import Census
from .read_view import Look, ReadView
from .recovery import RecoveryReport
from .session import Session

logger = logging.getLogger("nobroker_django")
_MOST_TOLD = 100  # one by one, of what a verb has taken back: whoever called it waits meanwhile
T = TypeVar("T")
Asked = Decision | Look  # what a verb that only looks gets to see


class Core:
    """The queue ``NAME`` of one directory, open. Its verbs are in the modules that build on this one."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str = "default",
        *,
        fsync: bool = True,
        visibility_timeout: float = 30.0,
        max_attempts: int = 5,
        backoff: BackoffPolicy | None = None,
        lock_timeout: float = 10.0,
        retention: float = 0.0,
        file_mode: int = 0o600,
        dir_mode: int = 0o700,
        read_only: bool = False,
        clock: Clock = system_clock,
        files: Files | None = None,
    ) -> None:
        self.name = name
        self.fsync = options.flag("fsync", fsync)
        self.visibility_timeout = options.lease_length("visibility_timeout", visibility_timeout)
        self.max_attempts = options.integer("max_attempts", max_attempts, least=1)
        self.backoff = backoff if backoff is not None else BackoffPolicy()
        if not isinstance(self.backoff, BackoffPolicy):
            raise InvalidOptionError("backoff", f"a BackoffPolicy is needed, not {options.shown(backoff)}")
        self.retention = options.seconds("retention", retention)
        self._clock = clock = options.checked_clock(clock)
        self._layout = Layout.of(path, name)
        self._files = files or Files()
        self._census = Census(self._files, self._layout)
        self._count_workers = Deadline(0.0)  # when, at the latest, the next lease asks who has ended
        self._holders: list[str] = []  # who held leases when that was last asked, and where the log ended then
        self._seen = -1
        self.tell_taken_back: Callable[[TakenBack], None] = _log_taken_back
        self._view: ReadView | None = None
        self._opened: Session | None = None
        timeout = options.seconds("lock_timeout", lock_timeout, zero=False)
        modes = {"file_mode": options.mode("file_mode", file_mode), "dir_mode": options.mode("dir_mode", dir_mode)}
        if read_only:
            self._view = ReadView(self._layout, self._files, clock)
            return
        self._opened = Session(self._layout, self._files, clock, lock_timeout=timeout, **modes)
        try:
            with self._opened.locked():
                pass
        except BaseException:
            self._opened.abandon()
            raise

    # -- properties

    @property
    def dir(self) -> Path:
        """The queue's directory, absolute."""
        return self._layout.directory

    @property
    def path(self) -> Path:
        """The live log file."""
        if self._view is not None:
            return Path(self._view.log_path)
        with self._session.locked() as held:
            return held.log.path

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found at the end of the log; ``repaired`` tells whether a torn tail was cut."""
        return self._opened.recovery if self._opened is not None else RecoveryReport()

    def now(self) -> float:
        """The queue's clock: Unix seconds."""
        return self._clock()

    @property
    def read_only(self) -> bool:
        """Whether this object can only look."""
        return self._view is not None

    def close(self) -> None:
        """Close the files; the object cannot be used afterwards. Closing again does nothing."""
        self._census.close()
        if self._view is not None:
            self._view.close()
        else:
            self._session.close()

    # -- for the verbs

    @property
    def _session(self) -> Session:
        """The open files, for a verb that changes something.

        Raises:
            ReadOnlyError: this object can only look.
        """
        if self._opened is None:
            raise ReadOnlyError(self.name)
        return self._opened

    def _look_into_damage(self, error: CorruptLogError) -> None:
        """A row pointed to what is not its record: was it the log, or the row? New rows are made of the log.

        Raises:
            CorruptLogError: the log is damaged, and all writers know it now.
        """
        if self._view is not None:
            self._view.distrust()
            return
        with self._session.locked() as held:
            if error.path != held.log.name:
                return
            held.discard_projection()
        self._decide(lambda decision: None)

    def _look(self, act: Callable[[Asked], T]) -> T:
        """``act`` on the state of this moment, for a verb that changes nothing."""
        if self._view is not None:
            return self._view.look(act)
        return decide(self._session, act)

    def _decide(self, act: Callable[[Decision], T], *, promote: bool = False) -> T:
        """``act`` under the log's lock with everything folded in; see ``deciding``."""
        decisions: list[Decision] = []

        def noted(decision: Decision) -> T:
            decisions.append(decision)
            return act(decision)

        try:
            return decide(self._session, noted, promote=promote)
        finally:
            if decisions and decisions[-1].taken_back:
                self._tell(decisions[-1].taken_back)

    def _tell(self, taken_back: list[TakenBack]) -> None:
        for one in taken_back[:_MOST_TOLD]:
            with suppress(Exception):  # what was decided stands, whatever a log handler says
                self.tell_taken_back(one)
        if len(taken_back) > _MOST_TOLD:
            logger.error("%s: %d more jobs have failed like that", self.name, len(taken_back) - _MOST_TOLD)

    def _keep(self, promise: Promise) -> None:
        """Wait until the promise is durable (and ring the bell on the way), unless the queue is not durable at all."""
        if self.fsync:
            promise.keep()
        else:
            promise.forgo()


def _log_taken_back(one: TakenBack) -> None:
    """Where nobody asked to be told otherwise."""
    dead = one.state is JobState.DEAD
    logger.log(
        logging.ERROR if dead else logging.WARNING,
        "job %s failed (attempt %d of %d)%s: %s",
        one.job_id, one.attempts, one.max_attempts, " and is now a dead letter" if dead else "", one.error,
    )  # fmt: skip
