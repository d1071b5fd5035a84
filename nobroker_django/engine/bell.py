"""The bell of one queue: how somebody who waits for work is woken by somebody who has just appended some.

It is the FIFO ``NAME.run/bell``, made by whoever listens first, and the control word ``listening``, the time until
which somebody listens. Whoever waits opens the FIFO, writes the word, looks at the published end *again*, and only
then waits for a byte. Whoever appended work reads the words *after* publishing, and puts a byte in if somebody
listens. So either the listener sees the work, or the other one sees the listener.

A byte wakes one of many. Who takes it out looks for work; a lease that leaves work behind rings again.

Invariant: the bell only saves time. Who waits looks once a second whether something was missed (somebody died with
the byte, the FIFO was removed), or somebody does it for him, and polls where no FIFO can be had. Ringing never waits,
never fails, and never writes to anything but a FIFO.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import TracebackType

from .clock import Clock, Deadline, sleep
from .control import Control, Words
from .files import Files
from .generations import Layout
from .locks import Descriptor

SAFETY_SECONDS = 1.0  # between two looks of somebody who waits for the bell
LISTENING_SECONDS = 5.0  # how far ahead the word is written
POLL_SECONDS = 0.01  # between two looks where there is no FIFO
_RENEWAL = 1.5  # the word is written anew when it lasts for less than so many looks
_MANY_BYTES = 65536  # as much as a FIFO holds

# Open for both: then a byte stays there while nobody listens, and neither end ever meets ENXIO, EPIPE or SIGPIPE.
# Linux does that (fifo(7)), and so do the BSDs; POSIX leaves it undefined.
_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW


class Bell:
    """The FIFO of one queue in this process. What it has open is changed under the session's mutex alone."""

    def __init__(self, files: Files, layout: Layout, clock: Clock, *, dir_mode: int, file_mode: int) -> None:
        self.path = str(layout.run / "bell")
        self._files = files
        self._run = layout.run
        self._clock = clock
        self._dir_mode = dir_mode
        self._file_mode = file_mode
        self._open: Descriptor | None = None

    def ring_for(self, words: Words) -> None:
        """Wake one of those who listen, if these words, read after the work was published, say so. Never raises."""
        if words.listening:
            try:
                now = self._clock()
            except Exception:  # of somebody's own clock; the work was appended, and that is what counts
                now = 0.0
            if words.listening >= now * 1000:
                self.ring()

    def announce(self, control: Control) -> int:
        """Say that somebody listens from now on; the published end *after* that was said.

        Raises:
            OSError: it could not be said.
        """
        words = control.read()
        if not self._lasts(words):
            control.set_listening(int((self._clock() + LISTENING_SECONDS) * 1000))
            words = control.read()
        return words.end

    def listened(self, words: Words) -> Descriptor | None:
        """The FIFO that is open here, if by these words nothing need be said before the next look."""
        return self._open if self._lasts(words) else None

    def _lasts(self, words: Words) -> bool:
        left = words.listening / 1000 - self._clock()
        return _RENEWAL * SAFETY_SECONDS <= left <= LISTENING_SECONDS  # more: the clock was set back

    def ring(self) -> None:
        """Wake one of those who listen. Never waits and never raises: what is missed here is found by looking."""
        try:
            fd = self._files.open(self.path, _FLAGS)
        except OSError:  # nobody has ever listened, or not with our permissions
            return
        try:
            if self._files.is_fifo(fd):
                self._files.put_byte(fd)
        except OSError:  # full: they have been rung for often enough
            pass
        finally:
            self._close_fd(fd)

    def open(self) -> Descriptor:
        """The FIFO that the name means now; made if there is none. Belongs to this object: retain it to keep it.

        Raises:
            OSError: it cannot be made here, or the name is taken by something else, which is left alone.
        """
        if self._open is not None:
            if self._files.path_identity(self.path) == self._open.identity:
                return self._open
            self.close()
        self._open = opened = self._open_or_make()
        return opened

    def close(self) -> None:
        """Let go of the FIFO; rung first, for other threads of this process that wait at it."""
        if self._open is not None:
            self.ring()
            self._open.release()
            self._open = None

    def give_up(self) -> Descriptor | None:
        """For a forked child: the inherited descriptor."""
        inherited, self._open = self._open, None
        return inherited

    def _open_or_make(self) -> Descriptor:
        files, made = self._files, False
        try:
            fd = files.open(self.path, _FLAGS)
        except FileNotFoundError:
            files.make_directory(self._run, self._dir_mode)
            try:
                files.make_fifo(self.path, self._file_mode)
                made = True
            except FileExistsError:
                pass  # somebody else was faster
            fd = files.open(self.path, _FLAGS)
        try:
            if not files.is_fifo(fd):
                raise OSError(errno.EEXIST, "exists and is not a FIFO", self.path)
            if made:
                files.set_mode(fd, self._file_mode, self._run)
            return Descriptor(files, fd)
        except BaseException:
            self._close_fd(fd)
            raise

    def _close_fd(self, fd: int) -> None:
        try:
            self._files.close(fd)
        except OSError:
            pass  # it is closed all the same (close(2)), and nothing in it was worth keeping


class Listening:
    """Somebody listens, until the end of the ``with`` block. Made by ``Session.listen``, which has written the word.

    ``fd`` becomes readable when the bell is rung, for a caller that waits for several; ``None``: there is no FIFO,
    look every ``POLL_SECONDS``. ``end`` is the published end as it was after the word (``None``: it could not be read,
    or the files were replaced); if that is not what it was before the caller looked for work, it has to look again.

    Args:
        look: the published end as it is now.
    """

    def __init__(
        self, files: Files, opened: Descriptor | None, end: int | None, look: Callable[[], int | None]
    ) -> None:
        self._files = files
        self._opened = opened.retain() if opened is not None else None
        self._look = look
        self.end = end

    def __enter__(self) -> Listening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.release()

    @property
    def fd(self) -> int | None:
        """What to wait for."""
        return self._opened.fd if self._opened is not None else None

    @property
    def identity(self) -> tuple[int, int] | None:
        """Which FIFO that is."""
        return self._opened.identity if self._opened is not None else None

    def release(self) -> None:
        """Do not wait any more."""
        if self._opened is not None:
            self._opened.release()
            self._opened = None

    def drain(self) -> bool:
        """Take out what was rung; False: somebody else had it. After True the caller looks for work, or rings again.

        Raises:
            OSError: the FIFO cannot be read.
        """
        if self._opened is not None and not self._opened.is_open:
            raise OSError(errno.EBADF, "given up by a fork in the middle of the wait")
        try:
            return self._opened is not None and bool(self._files.read(self._opened.fd, _MANY_BYTES))
        except BlockingIOError:
            return False

    def wait(self, seconds: float) -> bool:
        """Wait for work, ``seconds`` or ``SAFETY_SECONDS`` at the most; whether there may be some."""
        deadline = Deadline(min(seconds, SAFETY_SECONDS))
        if self._opened is not None:
            try:
                while self._files.wait_readable([self._opened.fd], deadline.left()):
                    if self.drain():
                        return True
                return False
            except OSError:
                pass
        while not deadline.passed():
            sleep(min(POLL_SECONDS, max(deadline.left(), 0.001)))
            if self._look() != self.end:
                return True
        return False
