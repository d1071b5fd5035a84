"""What Python does not have: as good without it. A path names the file that ``stat`` says."""

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from nobroker_django.engine import libc
from nobroker_django.engine.files import Files
from nobroker_django.engine.libc import identity_of
from tests.contract.helpers import RecordingFiles


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
        if libc._statx is None:
            pytest.skip("the C library has no statx")
    elif request.param == "no statx":
        monkeypatch.setattr(libc, "_statx", None)
    else:
        monkeypatch.setattr(libc, "_statx", refused_with(getattr(errno, request.param)))


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


@pytest.mark.skipif(libc._statx is None, reason="the C library has no statx")
def test_the_times_are_not_asked_for(tmp_path, monkeypatch):
    """Looking at them would give the file a finer time at its next write, which a sync has to bring as well."""
    asked_for = []
    statx = libc._statx

    def noting(directory, name, flags, mask, buffer):
        asked_for.append((flags, mask))
        return statx(directory, name, flags, mask, buffer)

    def never(*arguments, **options):
        raise AssertionError("stat looks at the times")

    expected = as_stat_says(tmp_path)
    with monkeypatch.context() as patch:  # pytest needs ``stat`` itself, to say what is wrong
        patch.setattr(libc, "_statx", noting)
        patch.setattr(os, "stat", never)
        found = Files().path_identity(tmp_path)
    assert found == expected
    assert asked_for == [(0, 0x100)]


# --- an early beginning of what will be synced


@pytest.mark.skipif(libc._sync_file_range is None, reason="the C library has no sync_file_range")
def test_a_small_write_that_nobody_else_waits_for_is_begun_before_its_sync(open_queue, queue_dir, tmp_path):
    """By what the system was asked: the record's own bytes, once, before the sync."""
    files = RecordingFiles()
    queue = open_queue(files=files)
    queue.enqueue("first")
    files.record.clear()
    queue.enqueue("x" * 1000)
    calls = files.record.on(".log", "pwrite", "start_writing", "datasync")
    assert [call.name for call in calls] == ["pwrite", "start_writing", "datasync"]
    assert (calls[1].offset, calls[1].count) == (calls[0].offset, calls[0].count)
    files.record.clear()
    queue.enqueue("x" * 5000)  # more than a block: may take the disk's queue long
    queue.lease_one()
    queue.lease_one()  # behind a lease that nobody has waited for
    started = files.record.on(".log", "start_writing")
    assert len(started) == 1  # the first lease


@pytest.mark.parametrize("how", ["missing", "refused"])
def test_without_that_call_all_is_as_before(open_queue, monkeypatch, how):
    monkeypatch.setattr(libc, "_sync_file_range", None if how == "missing" else refused_with(errno.ENOSYS))
    queue = open_queue()
    queue.enqueue("x")
    assert queue.lease_one().payload == "x"


@pytest.mark.skipif(libc._sync_file_range is None, reason="the C library has no sync_file_range")
def test_offsets_beyond_32_bits_reach_the_system(tmp_path):
    """The call fails where the numbers are cut: a negative count is refused (EINVAL), a wrong descriptor EBADF."""
    with (tmp_path / "large").open("w+b") as file:
        os.ftruncate(file.fileno(), 5 << 30)
        os.pwrite(file.fileno(), b"x", 5 << 30)
        assert libc._sync_file_range(file.fileno(), 5 << 30, 3 << 30, 2) == 0
        assert libc._sync_file_range(file.fileno(), -1, 1, 2) == -1
