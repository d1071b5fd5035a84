"""System calls that are watched, refused, or the last thing a process does.

``Watched`` names every call of the engine's ``Files`` (kind, path, numbers) to ``before`` and ``after``. What a
subclass does there makes it a recorder, a failing disk or a crash. One call of ``Files`` is one call here, also where
it makes several of the system (``sync_directory``).
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nobroker_django.engine.files import Files

READING = frozenset(
    {
        *("pread", "size", "block_bytes", "identity", "path_identity", "path_size", "free_space", "mode", "listdir"),
        "is_fifo",
    }
)
BELL = frozenset({"put_byte", "read", "wait_readable"})
LOCKING = frozenset({"flock", "funlock", "lock_byte", "unlock_byte", "byte_is_free"})
WRITING = frozenset(
    {
        *("write", "pwrite", "allocate", "truncate", "datasync", "sync", "sync_directory"),
        *("rename", "link", "unlink", "make_directory", "make_fifo"),
    }
)
OPENING = frozenset({"open", "set_mode"})
SYNCING = frozenset({"datasync", "sync", "sync_directory"})
FILLING = frozenset(
    {"write", "pwrite", "allocate", "rename", "link", "make_directory", "make_fifo"}
)  # and creating files
ALL = READING | LOCKING | WRITING | OPENING | BELL  # that may fail; ``start_writing`` never does


class Call(NamedTuple):
    """One call: what, on which file, and its numbers or bytes."""

    kind: str
    path: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        shown = [f"{len(a)} bytes" if isinstance(a, bytes) else str(a) for a in self.arguments]
        return f"{self.kind}({', '.join([os.path.basename(self.path), *shown])})"

    @property
    def fills(self) -> bool:
        """Whether a full disk may refuse it."""
        return self.kind in FILLING or (self.kind == "open" and bool(self.arguments[0] & os.O_CREAT))


class Watched(Files):
    """``before`` may raise, or return a shorter piece of what is to be written; ``after`` sees the result."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}

    def before(self, call: Call) -> Call:
        return call

    def after(self, call: Call, result: Any) -> None:
        pass

    def _do(self, call: Call, act: Callable[[Call], Any]) -> Any:
        call = self.before(call)
        result = act(call)
        self.after(call, result)
        return result

    def _path(self, fd: int) -> str:
        return self.paths.get(fd, "?")

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
        call = Call("open", os.fspath(path), (flags,))

        def act(call: Call) -> int:
            fd = Files.open(self, path, flags, mode)
            self.paths[fd] = call.path
            return fd

        fd: int = self._do(call, act)
        return fd

    def close(self, fd: int) -> None:
        self.before(Call("close", self._path(fd)))
        self.paths.pop(fd, None)
        super().close(fd)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        call = Call("pread", self._path(fd), (count, offset))
        data: bytes = self._do(call, lambda _: Files.pread(self, fd, count, offset))
        return data

    def size(self, fd: int) -> int:
        number: int = self._do(Call("size", self._path(fd)), lambda _: Files.size(self, fd))
        return number

    def block_bytes(self, fd: int) -> int:
        number: int = self._do(Call("block_bytes", self._path(fd)), lambda _: Files.block_bytes(self, fd))
        return number

    def identity(self, fd: int) -> tuple[int, int]:
        pair: tuple[int, int] = self._do(Call("identity", self._path(fd)), lambda _: Files.identity(self, fd))
        return pair

    def path_identity(self, path: str | os.PathLike[str]) -> tuple[int, int] | None:
        call = Call("path_identity", os.fspath(path))
        pair: tuple[int, int] | None = self._do(call, lambda _: Files.path_identity(self, path))
        return pair

    def path_size(self, path: str | os.PathLike[str]) -> int:
        number: int = self._do(Call("path_size", os.fspath(path)), lambda _: Files.path_size(self, path))
        return number

    def free_space(self, path: str | os.PathLike[str]) -> tuple[int | None, int]:
        call = Call("free_space", os.fspath(path))
        pair: tuple[int | None, int] = self._do(call, lambda _: Files.free_space(self, path))
        return pair

    def mode(self, path: str | os.PathLike[str]) -> int:
        number: int = self._do(Call("mode", os.fspath(path)), lambda _: Files.mode(self, path))
        return number

    def listdir(self, path: str | os.PathLike[str]) -> list[str]:
        names: list[str] = self._do(Call("listdir", os.fspath(path)), lambda _: Files.listdir(self, path))
        return names

    def write(self, fd: int, data: bytes) -> int:
        start = os.fstat(fd).st_size  # every descriptor that the engine writes to so is at the end of its file
        call = Call("write", self._path(fd), (bytes(data), start))
        number: int = self._do(call, lambda call: Files.write(self, fd, call.arguments[0]))
        return number

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        call = Call("pwrite", self._path(fd), (bytes(data), offset))
        number: int = self._do(call, lambda call: Files.pwrite(self, fd, call.arguments[0], offset))
        return number

    def allocate(self, fd: int, offset: int, count: int) -> None:
        def act(call: Call) -> None:
            start, wanted = call.arguments
            Files.allocate(self, fd, start, wanted)
            if wanted < count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.path)

        self._do(Call("allocate", self._path(fd), (offset, count)), act)

    def truncate(self, fd: int, size: int) -> None:
        self._do(Call("truncate", self._path(fd), (size,)), lambda _: Files.truncate(self, fd, size))

    def start_writing(self, fd: int, offset: int, count: int) -> None:
        call = Call("start_writing", self._path(fd), (offset, count))
        self._do(call, lambda _: Files.start_writing(self, fd, offset, count))

    def datasync(self, fd: int) -> None:
        self._do(Call("datasync", self._path(fd)), lambda _: Files.datasync(self, fd))

    def sync(self, fd: int) -> None:
        self._do(Call("sync", self._path(fd)), lambda _: Files.sync(self, fd))

    def sync_directory(self, path: str | os.PathLike[str]) -> None:
        def act(_: Call) -> None:
            fd = Files.open(self, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

        self._do(Call("sync_directory", os.fspath(path)), act)

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        call = Call("rename", os.fspath(source), (os.fspath(target),))
        self._do(call, lambda _: Files.rename(self, source, target))
        self.paths = {fd: os.fspath(target) if path == call.path else path for fd, path in self.paths.items()}

    def link(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        call = Call("link", os.fspath(source), (os.fspath(target),))
        self._do(call, lambda _: Files.link(self, source, target))

    def unlink(self, path: str | os.PathLike[str]) -> None:
        self._do(Call("unlink", os.fspath(path)), lambda _: Files.unlink(self, path))

    def make_directory(self, path: Path, mode: int) -> None:
        self._do(Call("make_directory", str(path)), lambda _: Files.make_directory(self, path, mode))

    def set_mode(self, fd: int, mode: int, directory: str | os.PathLike[str]) -> None:
        self._do(Call("set_mode", self._path(fd)), lambda _: Files.set_mode(self, fd, mode, directory))

    def make_fifo(self, path: str | os.PathLike[str], mode: int) -> None:
        self._do(Call("make_fifo", os.fspath(path)), lambda _: Files.make_fifo(self, path, mode))

    def is_fifo(self, fd: int) -> bool:
        answer: bool = self._do(Call("is_fifo", self._path(fd)), lambda _: Files.is_fifo(self, fd))
        return answer

    def put_byte(self, fd: int) -> None:
        self._do(Call("put_byte", self._path(fd)), lambda _: Files.put_byte(self, fd))

    def read(self, fd: int, count: int) -> bytes:
        data: bytes = self._do(Call("read", self._path(fd), (count,)), lambda _: Files.read(self, fd, count))
        return data

    def wait_readable(self, fds: Sequence[int], seconds: float) -> list[int]:
        call = Call("wait_readable", self._path(fds[0]), (seconds,))
        ready: list[int] = self._do(call, lambda _: Files.wait_readable(self, fds, seconds))
        return ready

    def flock(self, fd: int, *, exclusive: bool) -> bool:
        call = Call("flock", self._path(fd), (exclusive,))
        had: bool = self._do(call, lambda _: Files.flock(self, fd, exclusive=exclusive))
        return had

    def funlock(self, fd: int) -> None:
        self._do(Call("funlock", self._path(fd)), lambda _: Files.funlock(self, fd))

    def lock_byte(self, fd: int, offset: int, *, exclusive: bool) -> bool:
        call = Call("lock_byte", self._path(fd), (offset, exclusive))
        had: bool = self._do(call, lambda _: Files.lock_byte(self, fd, offset, exclusive=exclusive))
        return had

    def unlock_byte(self, fd: int, offset: int) -> None:
        call = Call("unlock_byte", self._path(fd), (offset,))
        self._do(call, lambda _: Files.unlock_byte(self, fd, offset))

    def byte_is_free(self, fd: int, offset: int) -> bool:
        call = Call("byte_is_free", self._path(fd), (offset,))
        free: bool = self._do(call, lambda _: Files.byte_is_free(self, fd, offset))
        return free


class Recorder(Watched):
    """Remembers every call, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def after(self, call: Call, result: Any) -> None:
        self.calls.append(call)

    def kinds(self) -> list[str]:
        return [call.kind for call in self.calls]


class Hooked(Watched):
    """Calls ``hook(call)`` before every call while there is one; the hook may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[Call], None] | None = None

    def before(self, call: Call) -> Call:
        if self.hook is not None:
            self.hook(call)
        return call


class Failing(Watched):
    """Refuses the ``at``-th call of some kinds, counted from ``arm`` on (``at`` 0 is the next one).

    ``hit`` is the call that was refused, ``None`` when the script ran out of calls before it came.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._armed = False
        self.hit: Call | None = None

    def arm(
        self,
        at: int,
        error: int = errno.EIO,
        *,
        kinds: frozenset[str] = ALL,
        times: int = 1,
        short: bool = False,
        path: str = "",
    ) -> None:
        """
        Args:
            times: how many calls in a row are refused.
            short: a write is not refused but cut in half; the one after it is refused. So is an allocation, which
                fails then, as a full disk does it.
            path: only calls on files whose path ends so.
        """
        self._left, self._error, self._kinds, self._times, self._short = at, error, kinds, times, short
        self._suffix = path
        self.hit = None
        self._armed = True

    def disarm(self) -> None:
        self._armed = False

    def before(self, call: Call) -> Call:
        with self._lock:
            if not self._armed or call.kind not in self._kinds or not call.path.endswith(self._suffix):
                return call
            if self._error == errno.ENOSPC and not call.fills:
                return call
            self._left -= 1
            if self._left >= 0:
                return call
            self.hit = self.hit or call
            if self._short and call.kind in ("write", "pwrite") and len(call.arguments[0]) > 1:
                self._short = False
                data, offset = call.arguments
                return Call(call.kind, call.path, (data[: len(data) // 2], offset))
            if self._short and call.kind == "allocate":
                self._short = False
                offset, count = call.arguments
                return Call(call.kind, call.path, (offset, count // 2))  # which ends in ENOSPC
            self._times -= 1
            if self._times <= 0:
                self._armed = False
            raise OSError(self._error, os.strerror(self._error), call.path)


class Dying(Watched):
    """Ends the process, without any clean-up, right before the ``at``-th call (a SIGKILL there)."""

    EXIT_CODE = 77

    def __init__(self, at: int, *, half: bool = False, kinds: frozenset[str] = ALL) -> None:
        """
        Args:
            half: when that call is a write or an allocation, half of it is done first.
            kinds: which calls count.
        """
        super().__init__()
        self.kinds = kinds
        self.left = at
        self.half = half

    def before(self, call: Call) -> Call:
        self.left -= call.kind in self.kinds or call.kind == "close"
        if self.left < 0:
            if self.half and call.kind in ("write", "pwrite"):
                data, offset = call.arguments
                with open(call.path, "r+b") as file:
                    file.seek(offset)
                    file.write(data[: len(data) // 2])
            elif self.half and call.kind == "allocate":
                os.truncate(call.path, max(os.stat(call.path).st_size, call.arguments[0] + call.arguments[1] // 2))
            os._exit(self.EXIT_CODE)
        return call


class FullDisk(Watched):
    """A disk with ``room`` bytes left for files of the queue; may be given more.

    A file takes its size; what is refused is taken in part, as far as it goes.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def before(self, call: Call) -> Call:
        if call.kind in ("write", "pwrite"):
            data, offset = call.arguments
            fits = self._take(call, offset, len(data))
            if fits <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.path)
            return Call(call.kind, call.path, (data[:fits], offset))
        if call.kind == "allocate":
            offset, count = call.arguments
            fits = self._take(call, offset, count)
            if fits <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.path)
            return Call(call.kind, call.path, (offset, fits))
        if call.kind == "truncate":
            self.room += os.stat(call.path).st_size - call.arguments[0]
        elif call.kind == "unlink" and os.path.exists(call.path) and stat.S_ISREG(os.stat(call.path).st_mode):
            self.room += os.stat(call.path).st_size
        return call

    def _take(self, call: Call, offset: int, count: int) -> int:
        """Take the room for ``count`` bytes at ``offset``; how many of them fit."""
        growth = max(0, offset + count - os.stat(call.path).st_size)
        taken = min(growth, self.room)
        self.room -= taken
        return count - growth + taken
