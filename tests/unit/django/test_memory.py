"""Resident memory, seen in a process that grows and shrinks."""

import io
import mmap
import os

from nobroker_django.worker import memory
from nobroker_django.worker.memory import resident_bytes

MIB = 1 << 20


def test_it_grows_with_what_is_touched_and_shrinks_with_what_is_given_back():
    before = resident_bytes()
    assert before is not None
    with mmap.mmap(-1, 64 * MIB) as pages:
        assert resident_bytes() - before < 8 * MIB  # asked for, not touched
        pages.write(b"x" * (64 * MIB))
        grown = resident_bytes()
        assert 60 * MIB < grown - before < 140 * MIB
    assert grown - resident_bytes() > 60 * MIB


def test_a_forked_process_sees_its_own():
    with mmap.mmap(-1, 64 * MIB) as pages:
        pages.write(b"x" * (64 * MIB))
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            pages.close()
            os.write(writing, str(resident_bytes()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert resident_bytes() - int(os.read(reading, 100)) > 50 * MIB
        os.close(reading)
        os.close(writing)


def test_where_the_system_does_not_tell_it_is_none(monkeypatch):
    def missing(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(memory, "open", missing, raising=False)
    assert resident_bytes() is None
    monkeypatch.setattr(memory, "open", lambda *args, **kwargs: io.BytesIO(b""), raising=False)
    assert resident_bytes() is None
