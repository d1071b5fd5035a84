"""Which file a path names: as ``stat`` says it, also where the system does not answer the quicker question."""

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from nobroker_django.engine import names
from nobroker_django.engine.files import Files
from nobroker_django.engine.names import identity_of


class Named:
    """A ``PathLike`` that is no ``Path``, and cannot be a key."""

    __hash__ = None

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def as_stat_says(path):
    """What the identity has to be: device and inode, ``None``, or the error."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return type(error), getattr(error, "errno", None)
    return found.st_dev, found.st_ino


def as_asked(path):
    try:
        return identity_of(path)
    except (OSError, ValueError) as error:
        return type(error), getattr(error, "errno", None)


def refused_with(number):
    """A ``statx`` that the system refuses."""

    def statx(*arguments):
        ctypes.set_errno(number)
        return -1

    return statx


@pytest.fixture(params=["statx", "no statx", "EPERM", "ENOSYS"])
def asked(request, monkeypatch):
    """With the C library's function, and where there is none, or a sandbox or an old kernel refuses it."""
    if request.param == "statx":
        if names._statx is None:
            pytest.skip("the C library has no statx")
    elif request.param == "no statx":
        monkeypatch.setattr(names, "_statx", None)
    else:
        monkeypatch.setattr(names, "_statx", refused_with(getattr(errno, request.param)))


@pytest.mark.usefixtures("asked")
def test_files_directories_and_links_have_the_identity_that_stat_gives_them(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x")
    (tmp_path / "to the file").symlink_to(file)
    (tmp_path / "to the directory").symlink_to(tmp_path)
    (tmp_path / "to nothing").symlink_to(tmp_path / "gone")
    os.link(file, tmp_path / "another name")
    for path in (*tmp_path.iterdir(), tmp_path, tmp_path.parent, Path("/"), Path("/dev/null"), Path("/proc/self")):
        ways: list[Any] = [path, str(path), os.fsencode(path), Named(str(path)), Named(os.fsencode(path))]
        for way in ways:
            assert identity_of(way) == as_stat_says(path)
    assert identity_of(tmp_path / "to the file") == identity_of(file) is not None
    assert identity_of(tmp_path / "to nothing") is None


@pytest.mark.usefixtures("asked")
def test_odd_names_are_what_they_are_for_stat(tmp_path, monkeypatch):
    for name in (" ", "a b", "a\nb", "ü", "\udcff", "%s", "*", "-", "x" * 255, "'\""):
        (tmp_path / name).write_bytes(b"")
        assert identity_of(tmp_path / name) == as_stat_says(tmp_path / name) is not None
    monkeypatch.chdir(tmp_path)
    assert identity_of("a b") == identity_of(Path("a b")) == identity_of("./a b") == identity_of(tmp_path / "a b")
    assert identity_of(".") == as_stat_says(tmp_path)


@pytest.mark.usefixtures("asked")
def test_what_is_not_there_is_none_and_what_cannot_be_asked_is_the_same_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "missing/deeper", "file/below", "loop", "loop/below", "x" * 256, "a\0b", "file\0"):
        path = f"{tmp_path}/{name}"
        assert as_asked(path) == as_stat_says(path)
    for odd in ("", b"", "/" * 10_000, "\ud800"):
        assert as_asked(odd) == as_stat_says(odd)
    assert identity_of(tmp_path / "missing") is None
    assert identity_of("") is None


@pytest.mark.usefixtures("asked")
def test_another_file_under_the_same_name_has_another_identity(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    before = identity_of(path)
    (tmp_path / "new").write_bytes(b"")
    (tmp_path / "new").rename(path)
    assert identity_of(path) == as_stat_says(path) != before
    path.unlink()
    assert identity_of(path) is None


@pytest.mark.skipif(names._statx is None, reason="the C library has no statx")
def test_the_times_are_not_asked_for(tmp_path, monkeypatch):
    """Looking at them would give the file a finer time at its next write, which a sync has to bring as well."""
    asked_for = []
    statx = names._statx

    def noting(directory, name, flags, mask, buffer):
        asked_for.append((flags, mask))
        return statx(directory, name, flags, mask, buffer)

    def never(*arguments, **options):
        raise AssertionError("stat looks at the times")

    expected = as_stat_says(tmp_path)
    with monkeypatch.context() as patch:  # pytest needs ``stat`` itself, to say what is wrong
        patch.setattr(names, "_statx", noting)
        patch.setattr(os, "stat", never)
        found = Files().path_identity(tmp_path)
    assert found == expected
    assert asked_for == [(0, 0x100)]
