"""The projection that this process has open, and that all processes agree on: which file, and when a new one.

All of it happens under the log's lock. The control words name the current build; a file that is missing, damaged, or
of another log is replaced by a new one, never mended.
"""

from __future__ import annotations

import logging

from .control import Control, Words
from .files import Files
from .generations import Layout
from .log import Log
from .projection import UNREADABLE, Projection, index_path, unlink_builds
from .schema import Stale

logger = logging.getLogger("nobroker_django")


class Cache:
    """This process's connection to the current projection."""

    def __init__(self, files: Files, layout: Layout, *, dir_mode: int, file_mode: int) -> None:
        self._files = files
        self._layout = layout
        self._dir_mode = dir_mode
        self._file_mode = file_mode
        self._current: Projection | None = None

    def get(self, log: Log, control: Control, build: int) -> Projection:
        """The current projection of ``log``; a new, empty one when there is none that fits.

        Args:
            build: the current build, as the control words say.
        """
        current = self._current
        if current is not None:
            fits = current.log is log and current.build == build and current.path is not None
            if fits and self._files.path_identity(current.path or "") == current.identity:
                return current
            self.drop()
        if build:
            try:
                self._current = Projection.open(self._files, self._layout, log, build)
                return self._current
            except Stale:
                pass
        self._current = created = Projection.create(
            self._files, self._layout, log, after=build, dir_mode=self._dir_mode, file_mode=self._file_mode
        )
        control.set_build(created.build)
        # A compaction may be building that of the next generation.
        unlink_builds(self._files, self._layout, keep=created.path, most=log.generation)
        return created

    def drop(self) -> None:
        """Close this process's connection."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def discard(self, control: Control) -> None:
        """The current projection is damaged or wrong: the next one to need it builds a new one."""
        self.drop()
        control.set_build(0)

    def keep_if_clean(self, log: Log, control: Control, words: Words) -> None:
        """For the first opener: nobody knows what became of a projection that was not left clean, so it goes.

        On disk: the clean mark is gone before anybody touches the file again.
        """
        clean = words.clean if words.clean and words.clean == words.build else 0
        keep = index_path(self._layout, log.generation, clean) if clean else None
        try:
            unlink_builds(self._files, self._layout, keep=keep)
        except (
            PermissionError
        ) as error:  # no reason to refuse a plain enqueue; a verb that needs the cache will say it
            logger.warning("the caches in %s are not accessible: %s", self._layout.run, error)
            clean = 0
        if not clean:
            control.set_build(0)
        if words.clean:
            control.set_clean(0)

    def leave(self, control: Control, build: int, now: float) -> None:
        """For the last closer: leave the projection complete, synced and marked clean, without a WAL."""
        projection, self._current = self._current, None
        if projection is None or projection.path is None:
            return
        try:
            if projection.build != build:
                return
            projection.checkpoint(now)
        except UNREADABLE:
            return
        finally:
            projection.close()
        wal = projection.path.with_name(projection.path.name + "-wal")
        if self._files.path_identity(wal) is None:
            self._files.sync_directory(self._layout.run)
            control.set_clean(build)

    def give_up(self) -> Projection | None:
        """For a forked child: the inherited connection, which must be neither used nor closed."""
        inherited, self._current = self._current, None
        return inherited
