"""A directory that is held open stays the one that names are looked up in."""

import os
from pathlib import Path

import pytest

from nobroker_django.engine.files import Files
from nobroker_django.engine.place import Place
from tests.support.faulty import Recorder

HERE = {"make_directory", "free_space", "block_bytes", "make_fifo"}  # of the directory of caches, by its path


@pytest.fixture
def moved(tmp_path: Path):
    """A place that was renamed away, with another directory under its old path."""
    old, new = tmp_path / "queue", tmp_path / "elsewhere"
    (old / "below").mkdir(parents=True)
    (old / "one").write_bytes(b"ours")
    with Place(Files(), old) as place:
        old.rename(new)
        (old / "below").mkdir(parents=True)
        (old / "one").write_bytes(b"theirs")
        yield place, old, new


def test_every_call_is_one_of_a_place(tmp_path: Path):
    calls = {name for name, value in vars(Files).items() if callable(value) and not name.startswith("_")}
    files = Recorder()
    with Place(files, tmp_path) as place:
        on_descriptors = {name for name in calls if getattr(place, name) == getattr(files, name)}
    assert calls == on_descriptors | (set(vars(Place)) & calls) | HERE
    assert not on_descriptors & set(vars(Place))


def test_reading_is_of_the_open_directory(moved):
    place, old, new = moved
    fd = place.open(old / "one", os.O_RDONLY)
    assert place.pread(fd, 10, 0) == b"ours"
    assert place.has(old / "one", place.identity(fd))
    place.close(fd)
    assert not place.has(old / "one", place.identity(os.open(old / "one", os.O_RDONLY)))
    assert place.path_identity(old / "none") is None
    assert place.path_size(str(old / "one")) == 4
    (new / "below" / "two").touch(mode=0o640)
    os.chmod(new / "below" / "two", 0o640)
    assert place.mode(old / "below" / "two") == 0o640
    assert place.listdir(old) == ["below", "one"]
    assert place.listdir(old / "below") == ["two"]
    assert place.listdir(old / "none") == []


def test_writing_is_in_the_open_directory(moved):
    place, old, new = moved
    fd = place.open(old / "two", os.O_WRONLY | os.O_CREAT, 0o600)
    place.set_mode(fd, 0o640, old)
    place.close(fd)
    place.link(old / "two", old / "below" / "three")
    place.rename(old / "two", old / "one")
    place.sync_directory(old)
    place.unlink(old / "below" / "three")
    place.unlink(old / "below" / "none")
    assert (new / "one").read_bytes() == b""
    assert os.listdir(new / "below") == []
    assert (old / "one").read_bytes() == b"theirs"


def test_other_paths_are_left_alone(moved, tmp_path: Path):
    place, *_ = moved
    (tmp_path / "queue2").mkdir()
    assert place.listdir(tmp_path / "queue2") == []
    assert place.path_identity(tmp_path) == Files().path_identity(tmp_path)


def test_errors_name_the_path(moved):
    place, old, _ = moved
    for act in (lambda: place.open(old / "none", os.O_RDONLY), lambda: place.mode(old / "none")):
        with pytest.raises(FileNotFoundError) as error:
            act()
        assert error.value.filename == str(old / "none")
    with pytest.raises(FileNotFoundError) as error:
        place.rename(old / "none", old / "two")
    assert (error.value.filename, error.value.filename2) == (str(old / "none"), str(old / "two"))
