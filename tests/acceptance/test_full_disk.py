"""A worker on a disk that is full for a while."""

from pathlib import Path

import pytest

from nobroker_django import Queue, StorageError
from tests.support.disks import needs_root, tmpfs

from . import jobs
from .conftest import until


@needs_root
@pytest.mark.contract("ENQ-08")
def test_a_worker_on_a_full_disk_goes_on_when_there_is_space_again(place, tmp_path: Path):
    """C64. The job that runs then is not lost, and nobody has to start the worker again."""
    with tmpfs(tmp_path / "queues", 16_000_000) as disk:
        try:
            queue = place.queue()
            running = jobs.hold.enqueue(str(place), "running")
            work = place.work("--processes", 1)
            work.until_ready()
            place.until_started("running")
            with (
                (disk.path / "ballast").open("wb", buffering=0) as ballast,
                pytest.raises(OSError, match="No space left"),
            ):
                while True:
                    ballast.write(bytes(4096))
            with pytest.raises(StorageError):
                while True:  # what room the log had is used up
                    jobs.note.enqueue(str(place / "trace"), "filler")
            place.let_go("running")
            work.until_says("No space left on device")
            with Queue(queue.dir, read_only=True) as looking:
                assert looking.stats().leased + looking.stats().ready > 0
            (disk.path / "ballast").unlink()
            after = jobs.note.enqueue(str(place / "trace"), "after")
            until(lambda: queue.stats().ready == queue.stats().leased == 0, "the worker at work again")
            assert place.lines("running.done") == place.lines("running.started")
            for result in (running, after):
                result.refresh()
                assert result.status == "SUCCESSFUL"
            work.signal(15)
            assert work.end() == 0
        finally:
            for work in place.works:
                work.process.kill()
