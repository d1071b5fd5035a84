"""One directory, held open: names in it are looked up in it, whatever its path names by now.

For what looks at several names and then removes or replaces one of them. If the directory is renamed away in between
and another one put in its place, a path would lead into that one, to files of another queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .files import Files, Inside
from .locks import Descriptor

_BY_DESCRIPTOR = (
    *("close", "pread", "size", "identity", "write", "pwrite", "allocate", "truncate", "start_writing", "datasync"),
    *("sync", "flock", "funlock", "lock_byte", "unlock_byte", "byte_is_free"),
    *("read", "put_byte", "is_fifo", "wait_readable"),
)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Name = str | os.PathLike[str]


class Place(Files):
    """The calls of ``files``, for names under ``directory``; others are passed on as they are.

    The directory is open from the beginning to ``release``, or to the end of a ``with`` block.
    """

    def __init__(self, files: Files, directory: _Name) -> None:
        """Open the directory.

        Raises:
            OSError: the system refused.
        """
        self._files = files
        self._directory = os.fspath(directory)
        self._descriptor = Descriptor(files, files.open(directory, os.O_RDONLY | os.O_DIRECTORY))
        self.release = self._descriptor.release
        self.abandon = self._descriptor.abandon  # in a forked child
        for name in _BY_DESCRIPTOR:
            setattr(self, name, getattr(files, name))

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def has(self, path: _Name, identity: tuple[int, int]) -> bool:
        """Whether that name in this directory is this very file."""
        return self.path_identity(path) == identity

    def _inside(self, path: _Name) -> _Name:
        name = os.fspath(path)
        if name == self._directory:
            return Inside(name, ".", self._descriptor.fd)
        if name.startswith(self._directory + os.sep):
            return Inside(name, name[len(self._directory) + 1 :], self._descriptor.fd)
        return path

    def _ask(self, call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Make the call; an error names whole paths."""
        try:
            return call(*args, **kwargs)
        except OSError as error:
            if isinstance(error.filename, str):
                error.filename = os.path.join(self._directory, error.filename)
            if isinstance(error.filename2, str):
                error.filename2 = os.path.join(self._directory, error.filename2)
            raise

    def open(self, path: _Name, flags: int, mode: int = 0o600) -> int:
        return self._ask(self._files.open, self._inside(path), flags, mode)

    def path_identity(self, path: _Name) -> tuple[int, int] | None:
        return self._ask(self._files.path_identity, self._inside(path))

    def path_size(self, path: _Name) -> int:
        return self._ask(self._files.path_size, self._inside(path))

    def mode(self, path: _Name) -> int:
        return self._ask(self._files.mode, self._inside(path))

    def listdir(self, path: _Name) -> list[str]:
        return self._ask(self._files.listdir, self._inside(path))

    def sync_directory(self, path: _Name) -> None:
        self._ask(self._files.sync_directory, self._inside(path))

    def rename(self, source: _Name, target: _Name) -> None:
        self._ask(self._files.rename, self._inside(source), self._inside(target))

    def link(self, source: _Name, target: _Name) -> None:
        self._ask(self._files.link, self._inside(source), self._inside(target))

    def unlink(self, path: _Name) -> None:
        self._ask(self._files.unlink, self._inside(path))

    def set_mode(self, fd: int, mode: int, directory: _Name) -> None:
        self._ask(self._files.set_mode, fd, mode, self._inside(directory))
