"""A worker's byte: free when the last process with its descriptor has ended, and proof of nothing in another file."""

import os
import signal

import pytest

from nobroker_django.engine.files import Files
from nobroker_django.engine.generations import Layout
from nobroker_django.engine.liveness import Census, Liveness

files = Files()


@pytest.fixture
def layout(tmp_path):
    return Layout.of(tmp_path, "default")


@pytest.fixture
def census(layout):
    made = Census(files, layout)
    yield made
    made.close()


def register(layout) -> Liveness:
    return Liveness(files, layout, dir_mode=0o700, file_mode=0o600)


def fork(act) -> int:
    """A child that calls ``act`` and then waits for its end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_worker_is_dead_when_it_has_let_go(layout, census):
    worker, other = register(layout), register(layout)
    assert worker.holder != other.holder
    assert not census.is_dead(worker.holder)
    worker.close()
    assert census.is_dead(worker.holder)
    assert not census.is_dead(other.holder)
    other.close()


def test_a_killed_process_is_dead_at_once(layout, census):
    reading, writing = os.pipe()

    def act():
        os.write(writing, register(layout).holder.encode())

    pid = fork(act)
    holder = os.read(reading, 100).decode()
    assert not census.is_dead(holder)
    kill(pid)
    assert census.is_dead(holder)
    os.close(reading)
    os.close(writing)


def test_of_a_supervisor_and_its_child_both_have_to_end(layout, census):
    worker = register(layout)
    child = fork(worker.adopt)
    worker.close()
    assert not census.is_dead(worker.holder)
    kill(child)
    assert census.is_dead(worker.holder)


def test_what_a_task_forks_cannot_pass_for_the_worker(layout, census):
    worker = register(layout)
    worker.adopt()
    child = fork(lambda: None)
    worker.close()
    assert census.is_dead(worker.holder)
    kill(child)


def test_a_stopped_process_is_alive(layout, census):
    worker = register(layout)
    child = fork(worker.adopt)
    worker.close()
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    assert not census.is_dead(worker.holder)
    kill(child)


@pytest.mark.parametrize("how", ["removed", "emptied", "replaced"])
def test_a_file_that_is_not_the_workers_proves_nothing(layout, census, how):
    worker = register(layout)
    assert not census.is_dead(worker.holder)
    path = layout.run / "alive"
    if how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    if how == "replaced":
        register(layout).close()
    worker.close()
    afresh = Census(files, layout)
    assert not afresh.is_dead(worker.holder)
    afresh.close()
    again = register(layout)
    assert not census.is_dead(again.holder)
    again.close()
    assert census.is_dead(again.holder)


@pytest.mark.parametrize("holder", ["", "x", "0123456789abcdef", "0123456789abcdef-zz"])
def test_a_name_that_no_worker_has_proves_nothing(layout, census, holder):
    register(layout).close()
    assert not census.is_dead(holder)
    file_id = (layout.run / "alive").read_text()
    assert not census.is_dead(f"{file_id}-zz")


def test_many_register_at_once(layout, census):
    """However they race for the file, all are in the same one."""
    children = []
    reading, writing = os.pipe()
    gate_reading, gate_writing = os.pipe()
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(gate_writing)
                os.read(gate_reading, 1)
                worker = register(layout)
                os.write(writing, f"{worker.holder}\n".encode())
                signal.pause()
            finally:
                os._exit(1)
        children.append(pid)
    os.close(gate_writing)
    holders: list[str] = []
    data = b""
    while len(holders) < 8:
        data += os.read(reading, 1000)
        holders = data.decode().splitlines()
    assert len({holder.split("-")[0] for holder in holders}) == 1
    assert not any(map(census.is_dead, holders))
    for pid in children:
        kill(pid)
    assert all(map(census.is_dead, holders))
    for fd in (reading, writing, gate_reading):
        os.close(fd)
