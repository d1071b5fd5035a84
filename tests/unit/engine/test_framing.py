"""Header and frames: bytes as documented, damage found, files read in pieces."""

import os
import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nobroker_django.engine import framing
from nobroker_django.engine.files import Files
from nobroker_django.engine.framing import (
    MAX_BODY_BYTES,
    FrameDamage,
    decode_header,
    encode_frame,
    encode_header,
    iter_frames,
    parse_frame,
    read_frame,
)
from tests.contract.helpers import frame

bodies = st.binary(max_size=200)


@pytest.mark.contract("LOG-02")
def test_the_header_is_16_documented_bytes():
    assert encode_header(258) == b"NOBROKER\x02\x00\x02\x01\x00\x00\x00\x00"
    assert decode_header(encode_header(258) + b"more") == (2, 258)


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"", 0),
        (encode_header(1)[:15], 0),
        (b"N0BROKER" + encode_header(1)[8:], 0),
        (encode_header(1)[:14] + b"\1\0", 14),
    ],
)
def test_another_header_is_damage(data, offset):
    with pytest.raises(FrameDamage) as damage:
        decode_header(data)
    assert damage.value.offset == offset
    assert damage.value.cut_short == (len(data) < 16)


@pytest.mark.contract("LOG-02")
@given(st.integers(0, 255), bodies)
def test_a_frame_is_length_type_crc_body_and_the_crc_covers_length_and_type(kind, body):
    data = encode_frame(kind, body)
    assert data == frame(kind, body)
    assert struct.unpack_from("<IBI", data) == (len(body), kind, zlib.crc32(body, zlib.crc32(data[:5])))
    parsed = parse_frame(data, 0, 1000, last=True)
    assert (parsed.offset, parsed.type, parsed.body, parsed.end) == (1000, kind, body, 1000 + len(data))


@pytest.mark.contract("LOG-07")
@given(st.integers(0, 255), st.binary(min_size=1, max_size=40), st.data())
@settings(max_examples=300)
def test_any_flipped_bit_is_noticed(kind, body, data):
    intact = encode_frame(kind, body)
    bit = data.draw(st.integers(0, len(intact) * 8 - 1))
    flipped = bytearray(intact)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameDamage) as damage:
        parse_frame(bytes(flipped) + encode_frame(1, b"{}"), 0, 16, last=True)
    assert damage.value.offset == 16


@given(bodies, st.data())
def test_a_frame_that_is_cut_off_is_damage_at_the_end_and_a_reason_to_read_on_before(body, data):
    whole = encode_frame(1, body)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert parse_frame(part, 0, 0, last=False) is None
    with pytest.raises(FrameDamage) as damage:
        parse_frame(part, 0, 0, last=True)
    assert damage.value.cut_short


def test_a_length_beyond_the_limit_is_damage_before_the_body_is_read():
    data = struct.pack("<IBI", MAX_BODY_BYTES + 1, 1, 0)
    for last in (True, False):
        with pytest.raises(FrameDamage, match="limit"):
            parse_frame(data, 0, 0, last=last)


class Counting(Files):
    def __init__(self):
        self.counts = []

    def pread(self, fd, count, offset):
        self.counts.append(count)
        return super().pread(fd, count, offset)


@pytest.fixture
def file_with(tmp_path):
    opened = []

    def make(data):
        path = tmp_path / "frames"
        path.write_bytes(data)
        opened.append(os.open(path, os.O_RDONLY))
        return opened[-1]

    yield make
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("chunk", [1, 10, 64, 1024 * 1024])
def test_frames_are_read_in_order_whatever_the_size_of_the_pieces(file_with, monkeypatch, chunk):
    monkeypatch.setattr(framing, "_CHUNK_BYTES", chunk)
    sizes = [0, 1, 2, 5, 300, 0, 64, 1000]
    data = b"".join(encode_frame(number, bytes([number]) * size) for number, size in enumerate(sizes))
    fd = file_with(b"header" + data + b"rest")
    found = list(iter_frames(Files(), fd, 6, 6 + len(data)))
    assert [(item.type, len(item.body)) for item in found] == list(enumerate(sizes))
    assert found[0].offset == 6
    assert all(one.end == two.offset for one, two in pairwise(found))


def test_a_large_file_is_read_about_a_mebibyte_at_a_time(file_with):
    one = encode_frame(1, b"x" * 10_000)
    files = Counting()
    fd = file_with(one * 500)
    assert sum(1 for _ in iter_frames(files, fd, 0, len(one) * 500)) == 500
    assert max(files.counts) <= 1024 * 1024
    assert len(files.counts) < 12


def test_the_frames_before_damage_are_delivered(file_with):
    good = encode_frame(1, b"{}")
    fd = file_with(good + good + good[:-1] + b"!")
    found: list = []
    with pytest.raises(FrameDamage, match="checksum") as damage:
        found.extend(iter_frames(Files(), fd, 0, 3 * len(good)))
    assert damage.value.offset == 2 * len(good)


def test_a_file_that_is_shorter_than_was_said_is_damage(file_with):
    good = encode_frame(1, b"{}")
    fd = file_with(good * 2)
    for stop in (2 * len(good) + 1, 5 * len(good)):
        with pytest.raises(FrameDamage) as damage:
            list(iter_frames(Files(), fd, 0, stop))
        assert damage.value.cut_short


@pytest.mark.parametrize("size", [0, 10, 4086, 4087, 4088, 100_000])
def test_one_frame_is_read_whatever_its_size(file_with, size):
    data = encode_frame(7, b"y" * size)
    fd = file_with(b"before" + data + b"after")
    found = read_frame(Files(), fd, 6)
    assert (found.type, found.body, found.end) == (7, b"y" * size, 6 + len(data))
    with pytest.raises(FrameDamage):
        read_frame(Files(), fd, 7)
    cut = file_with(b"before" + data[:-1])
    with pytest.raises(FrameDamage):
        read_frame(Files(), cut, 6)
