"""Descriptors with counted users."""

import os

import pytest

from nobroker_django.engine.files import Files, write_all
from nobroker_django.engine.locks import Descriptor


class Closing(Files):
    def __init__(self):
        self.closed = []

    def close(self, fd):
        self.closed.append(fd)
        super().close(fd)


def test_the_last_user_closes(tmp_path):
    files = Closing()
    fd = os.open(tmp_path, os.O_RDONLY)
    descriptor = Descriptor(files, fd)
    descriptor.retain()
    descriptor.retain()
    descriptor.release()
    descriptor.release()
    assert files.closed == []
    descriptor.release()
    assert files.closed == [fd]


class Short(Files):
    def __init__(self, pieces):
        self.pieces = pieces
        self.written = []

    def write(self, fd, data):
        size = self.pieces.pop(0)
        self.written.append(data[:size])
        return min(size, len(data))

    def pwrite(self, fd, data, offset):
        size = self.pieces.pop(0)
        self.written.append((offset, data[:size]))
        return min(size, len(data))


def test_short_writes_are_continued():
    files = Short([2, 1, 9])
    write_all(files, 0, b"abcdef")
    assert files.written == [b"ab", b"c", b"def"]
    files = Short([2, 9])
    write_all(files, 0, b"abcdef", 10)
    assert files.written == [(10, b"ab"), (12, b"cdef")]


def test_a_write_of_nothing_is_an_error():
    with pytest.raises(OSError, match="no bytes"):
        write_all(Short([2, 0]), 0, b"abcdef")
