"""What the tests of the engine share: a clock that stands still, system calls on record, and logs read by other code.

The reader of logs in here is written from ``docs/reference/log-format.md`` and uses nothing of the package.
"""

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nobroker_django.engine.files import Files
from tests.support.bytes import log_bytes

ROOT = Path(__file__).parents[2]
NOON = 1_800_000_000.0
ENQUEUE, LEASE, ACK, NACK, RECLAIM, DEAD, REQUEUE, PURGE, EXTEND = range(1, 10)
OPEN, STARTED, RELEASE, NOTE, SNAPSHOT = 16, 17, 18, 25, 28


class FakeClock:
    """Wall-clock seconds that pass only when a test says so."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


# --- system calls


@dataclass
class Call:
    """One system call: its name in ``Files``, the file's path (also for calls on a descriptor), bytes moved.

    ``offset`` is where it writes, allocates or cuts (bytes); -1 for other calls.
    """

    name: str
    path: str = ""
    count: int = 0
    data: bytes = b""
    offset: int = -1

    def __str__(self) -> str:
        return f"{self.name} {Path(self.path).name}"


@dataclass
class Recorded:
    """What a ``RecordingFiles`` saw."""

    calls: list[Call] = field(default_factory=list)

    def named(self, *names: str) -> list[Call]:
        return [call for call in self.calls if call.name in names]

    def on(self, suffix: str, *names: str) -> list[Call]:
        """The calls of some names on files whose path ends so."""
        return [call for call in self.named(*names) if call.path.endswith(suffix)]

    @property
    def bytes_read(self) -> int:
        return sum(call.count for call in self.named("pread"))

    def clear(self) -> None:
        self.calls.clear()


class RecordingFiles(Files):
    """Real system calls, each noted; ``before`` may raise instead."""

    def __init__(self, before: Callable[[Call], None] | None = None) -> None:
        self.record = Recorded()
        self.before = before
        self.paths: dict[int, str] = {}

    def _note(self, name: str, path: str, data: bytes = b"", offset: int = -1) -> Call:
        call = Call(name, path, len(data), data, offset)
        self.record.calls.append(call)
        if self.before is not None:
            self.before(call)
        return call

    def open(self, path: Any, flags: int, mode: int = 0o600) -> int:
        self._note("open", str(path))
        fd = super().open(path, flags, mode)
        self.paths[fd] = str(path)
        return fd

    def close(self, fd: int) -> None:
        path = self.paths.pop(fd, "")
        try:
            self._note("close", path)
        finally:
            super().close(fd)  # as the kernel does it, also when it reports an error

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        call = self._note("pread", self.paths.get(fd, ""))
        data = super().pread(fd, count, offset)
        call.count = len(data)
        return data

    def rename(self, source: Any, target: Any) -> None:
        self.paths = {fd: str(target) if path == str(source) else path for fd, path in self.paths.items()}
        self._note("rename", str(target))
        super().rename(source, target)

    def write(self, fd: int, data: bytes) -> int:
        self._note("write", self.paths.get(fd, ""), data)
        return super().write(fd, data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._note("pwrite", self.paths.get(fd, ""), data, offset)
        return super().pwrite(fd, data, offset)

    def start_writing(self, fd: int, offset: int, count: int) -> None:
        """It never fails: of the system's errors nobody hears."""
        with suppress(OSError):
            self._note("start_writing", self.paths.get(fd, ""), bytes(count), offset)
        super().start_writing(fd, offset, count)

    def allocate(self, fd: int, offset: int, count: int) -> None:
        self._note("allocate", self.paths.get(fd, ""), offset=offset).count = count
        super().allocate(fd, offset, count)

    def truncate(self, fd: int, size: int) -> None:
        self._note("truncate", self.paths.get(fd, ""), offset=size)
        super().truncate(fd, size)

    def wait_readable(self, fds: Sequence[int], seconds: float) -> list[int]:
        self._note("wait_readable", self.paths.get(fds[0], ""))
        return super().wait_readable(fds, seconds)


def _on_descriptor(name: str) -> Any:
    def method(self: RecordingFiles, fd: int, *args: Any, **kwargs: Any) -> Any:
        self._note(name, self.paths.get(fd, ""))
        return getattr(Files, name)(self, fd, *args, **kwargs)

    return method


def _on_path(name: str) -> Any:
    def method(self: RecordingFiles, path: Any, *args: Any, **kwargs: Any) -> Any:
        self._note(name, str(path))
        return getattr(Files, name)(self, path, *args, **kwargs)

    return method


for _name in ("size", "identity", "datasync", "sync", "set_mode", "flock", "funlock", "is_fifo", "put_byte", "read"):
    setattr(RecordingFiles, _name, _on_descriptor(_name))
for _name in ("lock_byte", "unlock_byte"):
    setattr(RecordingFiles, _name, _on_descriptor(_name))
for _name in ("path_identity", "mode", "listdir", "unlink", "make_directory", "make_fifo"):
    setattr(RecordingFiles, _name, _on_path(_name))


class FailingFiles(RecordingFiles):
    """The next call that ``matches`` fails once with ``error``, after ``skip`` others of the kind."""

    def __init__(
        self, matches: Callable[[Call], bool], error: BaseException, *, skip: int = 0, times: int = 1
    ) -> None:
        super().__init__(self._fail)
        self.matches = matches
        self.error = error
        self.skip = skip
        self.times = times
        self.armed = True

    def _fail(self, call: Call) -> None:
        if not self.armed or not self.times or not self.matches(call):
            return
        if self.skip:
            self.skip -= 1
            return
        self.times -= 1
        raise type(self.error)(*self.error.args)


# --- logs


@dataclass
class Record:
    """One record of a log, as another program would read it."""

    offset: int
    type: int
    body: dict[str, Any]
    end: int
    length: int = 0


def read_log(path: str | os.PathLike[str]) -> list[Record]:
    """All records of a log, checksums compared."""
    return list(_read(log_bytes(path)))


def _read(data: bytes) -> Iterator[Record]:
    magic, version, _generation, reserved = struct.unpack_from("<8sHIH", data)
    assert (magic, version, reserved) == (b"NOBROKER", 2, 0)
    offset = 16
    while offset < len(data):
        length, kind, crc = struct.unpack_from("<IBI", data, offset)
        body = data[offset + 9 : offset + 9 + length]
        assert len(body) == length, f"the record at byte {offset} is cut off"
        assert zlib.crc32(body, zlib.crc32(data[offset : offset + 5])) == crc, f"checksum at byte {offset}"
        yield Record(offset, kind, json.loads(body), offset + 9 + length, length)
        offset += 9 + length


def frame(kind: int, body: bytes | dict[str, Any]) -> bytes:
    """A record as it stands in a log."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = struct.pack("<IB", len(raw), kind)
    return head + struct.pack("<I", zlib.crc32(raw, zlib.crc32(head))) + raw


def live_log(directory: Path, name: str = "default") -> Path:
    """The log that the pointer names."""
    return directory / f"{name}.{int((directory / f'{name}.current').read_text()):06d}.log"


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Flip bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


# --- processes


def run_python(code: str, *arguments: object) -> str:
    """Run code in a fresh interpreter and return what it printed; a failure there is a failure here."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def start_python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start code in a fresh interpreter, with pipes to it."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def in_child(work: Callable[[], Any], leave: Callable[[], Any] = lambda: os._exit(0)) -> int:
    """Fork, run ``work`` and ``leave`` in the child, and return the child's exit status.

    A child that fails in ``work`` leaves with status 99 and its traceback on standard error.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(99)
        try:
            leave()
        finally:
            os._exit(98)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
