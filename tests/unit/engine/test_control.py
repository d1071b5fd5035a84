"""The control words: layout, what belongs to whom, short and foreign files."""

import os
import struct

import pytest

from nobroker_django.engine.control import (
    AREA_BYTES,
    MAX_GENERATION,
    MAX_OFFSET,
    Control,
    Words,
    generation_of,
    offset_of,
    position,
)
from nobroker_django.engine.files import Files


@pytest.fixture
def lock_fd(tmp_path):
    fd = os.open(tmp_path / "q.lock", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_a_position_holds_generation_and_offset_and_compares_across_generations():
    for generation, offset in ((0, 0), (1, 16), (MAX_GENERATION, MAX_OFFSET)):
        word = position(generation, offset)
        assert (generation_of(word), offset_of(word)) == (generation, offset)
        assert word < 1 << 64
    assert position(1, MAX_OFFSET) < position(2, 0)


def test_the_words_stand_where_the_docstring_says(lock_fd):
    control = Control(Files(), lock_fd)
    control.prepare()
    assert os.fstat(lock_fd).st_size == AREA_BYTES
    control.set_log_id(0xFEDCBA9876543210)
    control.publish(position(1, 200), position(1, 100))
    control.set_synced(position(1, 150))
    control.begin_sync()
    control.set_poisoned(True)
    control.set_build(5)
    control.set_clean(6)
    control.set_damaged(7)
    control.set_listening(8)
    data = os.pread(lock_fd, 88, 0)
    assert data[:8] == b"NBWORDS2"
    assert struct.unpack("<10Q", data[8:]) == (
        0xFEDCBA9876543210, position(1, 200), position(1, 100), position(1, 150), 1, 1, 5, 6, 7, 8,
    )  # fmt: skip
    assert control.read() == Words(*struct.unpack("<10Q", data[8:]))
    control.set_synced(position(1, 200))
    assert (control.read().synced, control.read().syncing) == (position(1, 200), 0)


@pytest.mark.parametrize("content", [b"", b"\0" * 72, b"NBWORDS1" + b"\1" * 64, b"1234", b"NBWORDS2" + b"\1" * 60])
def test_missing_short_and_foreign_words_belong_to_no_log(lock_fd, content):
    os.pwrite(lock_fd, content, 0)
    words = Control(Files(), lock_fd).read()
    assert not words.belong_to(0x0101010101010101, generation_of(words.end) or 1)


def test_words_belong_to_one_log_and_generation():
    words = Words(7, position(3, 100), position(3, 50), position(3, 80), 0, 0, 0, 0)
    assert words.belong_to(7, 3)
    assert not words.belong_to(8, 3)
    assert not words.belong_to(7, 2)
    assert not words._replace(synced=position(2, 80)).belong_to(7, 3)


def test_preparing_again_keeps_the_words(lock_fd):
    control = Control(Files(), lock_fd)
    control.prepare()
    control.set_log_id(9)
    control.prepare()
    assert control.read().log_id == 9
