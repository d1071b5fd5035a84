"""Names, generations and the pointer."""

import pytest

from nobroker_django import CorruptLogError, InvalidOptionError
from nobroker_django.engine.files import Files
from nobroker_django.engine.generations import (
    Layout,
    check_name_is_distinct,
    list_generations,
    parse_pointer,
    write_pointer,
)
from tests.contract.helpers import RecordingFiles


@pytest.fixture
def layout(tmp_path):
    return Layout.of(tmp_path, "mails")


def test_the_names_of_a_queues_files(layout, tmp_path):
    assert layout.log(1) == tmp_path / "mails.000001.log"
    assert layout.log(1_234_567) == tmp_path / "mails.1234567.log"
    assert (layout.pointer, layout.lock) == (str(tmp_path / "mails.current"), str(tmp_path / "mails.lock"))
    assert layout.run == tmp_path / "mails.run"
    assert layout.torn(3, 99, Files()) == tmp_path / "mails.torn-3-99-1"
    (tmp_path / "mails.torn-3-99-1").touch()
    assert layout.torn(3, 99, Files()) == tmp_path / "mails.torn-3-99-2"
    assert layout.temporary("x") != layout.temporary("x")


def test_the_directory_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Layout.of("here", "a").directory == tmp_path / "here"


@pytest.mark.contract("PROC-05")
@pytest.mark.parametrize("name", ["", ".", "a.b", "../x", "a/b", "-a", "a\n", "ä", "a" * 65, None, 5])
def test_other_names_are_refused(tmp_path, name):
    with pytest.raises(InvalidOptionError):
        Layout.of(tmp_path, name)


def test_only_the_logs_of_this_queue_count(layout, tmp_path):
    for name in (
        "mails.000002.log", "mails.000010.log", "mails.1000000.log", "mails.2.log", "mails.000003.log.bak",
        "mails2.000004.log", "a-mails.000005.log", "Mails.000006.log", "mails.compact.1.tmp", "mails.00000x.log",
    ):  # fmt: skip
        (tmp_path / name).touch()
    assert list_generations(Files(), layout) == [2, 10, 1_000_000]


@pytest.mark.parametrize("entry", ["Mails.lock", "MAILS.current", "mailS.000001.log", "Mails.run"])
def test_a_name_that_differs_only_by_case_is_noticed_by_any_of_the_files(layout, tmp_path, entry):
    (tmp_path / entry).touch()
    with pytest.raises(InvalidOptionError, match=entry.split(".")[0]):
        check_name_is_distinct(Files(), layout)


def test_other_queues_are_no_trouble(layout, tmp_path):
    for entry in ("mails.lock", "mails2.lock", "mail.current", "Mails.txt"):
        (tmp_path / entry).touch()
    check_name_is_distinct(Files(), layout)


@pytest.mark.contract("LOG-10")
@pytest.mark.parametrize("text", [b"1", b"1\n", b"000001\n"])
def test_a_pointer_is_a_decimal_number(layout, text):
    layout.log(1).touch()
    assert parse_pointer(Files(), layout, text) == 1


@pytest.mark.contract("LOG-10")
@pytest.mark.parametrize(
    "text", [b"", b"\n", b" 1", b"1 ", b"+1", b"1\n\n", b"1\r\n", "１".encode(), b"99999999", b"-1", b"0x1"]
)
def test_anything_else_is_an_error_that_names_the_logs_that_are_there(layout, text):
    layout.log(1).touch()
    with pytest.raises(CorruptLogError, match=r"mails\.000001\.log") as refused:
        parse_pointer(Files(), layout, text)
    assert refused.value.path == layout.pointer


@pytest.mark.contract("COMP-02")
def test_the_pointer_is_replaced_by_a_synced_file_and_one_rename_and_the_directory_synced(layout, tmp_path):
    files = RecordingFiles()
    write_pointer(files, layout, 7, 0o640)
    assert (tmp_path / "mails.current").read_bytes() == b"7\n"
    assert (tmp_path / "mails.current").stat().st_mode & 0o777 == 0o640
    names = [call.name for call in files.record.named("write", "sync", "rename")]
    assert names == ["write", "sync", "rename", "sync"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["mails.current"]


def test_a_pointer_that_cannot_be_written_leaves_no_temporary_file(layout, tmp_path):
    class Full(Files):
        def write(self, fd, data):
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        write_pointer(Full(), layout, 7, 0o600)
    assert list(tmp_path.iterdir()) == []
