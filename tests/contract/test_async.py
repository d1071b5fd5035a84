"""The promises that matter most, kept by ``AsyncQueue`` as well: with many coroutines, loops and processes."""

import asyncio
import json
from pathlib import Path

import pytest

from nobroker_django import JobConflictError, JobState, NobrokerError, NotLeasedError, Queue, StorageError
from nobroker_django.engine.aio import AsyncQueue

from .helpers import ENQUEUE, FailingFiles, RecordingFiles, in_child, live_log, read_log, start_python

PATIENCE = 60


@pytest.mark.contract("ENQ-01")
def test_a_job_is_on_the_disk_when_enqueue_has_been_awaited(queue_dir):
    files = RecordingFiles()

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=files) as queue:
            for verb in (queue.enqueue("x"), queue.enqueue("y", job_id="y"), queue.enqueue_many([1, 2])):
                files.record.clear()
                await verb
                calls = [call.name for call in files.record.on(".log", "write", "pwrite", "datasync")]
                assert calls == ["pwrite", "datasync"]

    asyncio.run(main(), debug=True)
    assert len([record for record in read_log(live_log(queue_dir)) if record.type == ENQUEUE]) == 4


@pytest.mark.contract("ENQ-04")
def test_a_hundred_coroutines_with_one_id_add_one_job(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            jobs = await asyncio.gather(*(queue.enqueue({"a": 1}, job_id="same") for _ in range(100)))
            assert sum(job.created for job in jobs) == 1
            with pytest.raises(JobConflictError):
                await queue.enqueue({"a": 2}, job_id="same")
            assert (await queue.stats()).total == 1

    asyncio.run(main())


@pytest.mark.contract("ENQ-04")
def test_an_enqueue_that_was_cancelled_is_tried_again_under_its_id_and_adds_one_job(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            for number in range(50):
                task = asyncio.create_task(queue.enqueue(number, job_id=str(number)))
                await asyncio.sleep(number / 10_000)
                task.cancel()
                await asyncio.wait([task])
                assert (await queue.enqueue(number, job_id=str(number))).payload == number
            assert [job.payload for job in await queue.list_jobs()] == list(range(50))

    asyncio.run(main())


@pytest.mark.contract("ENQ-07")
def test_adding_work_reads_nothing_of_the_queue(queue_dir):
    with Queue(queue_dir, fsync=False) as full:
        full.enqueue_many(["x" * 1000] * 2000)
    files = RecordingFiles()

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=files) as queue:
            await queue.enqueue("first")
            files.record.clear()
            await asyncio.gather(*(queue.enqueue(number) for number in range(20)))
            assert files.record.bytes_read < 100_000

    asyncio.run(main())


@pytest.mark.contract("API-03")
def test_errors_are_those_of_the_queue_and_say_what_was_stored(queue_dir):
    files = FailingFiles(
        lambda call: call.name == "pwrite" and call.path.endswith(".log"), OSError(28, "No space left on device")
    )
    files.armed = False

    async def main() -> None:
        async with AsyncQueue(queue_dir, files=files) as queue:
            files.armed = True
            with pytest.raises(StorageError) as caught:
                await queue.enqueue("x")
            assert caught.value.stored is False
            job = await queue.enqueue("y")
            with pytest.raises(NotLeasedError):
                await queue.ack(job)
        with pytest.raises(NobrokerError):
            await queue.stats()

    asyncio.run(main(), debug=True)


@pytest.mark.contract("API-04")
def test_a_job_is_a_copy(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            job = await queue.enqueue({"a": [1]})
            job.payload["a"].append(2)
            job.state = JobState.DEAD
            same = await queue.get(job.id)
            assert (same.payload, same.state) == ({"a": [1]}, JobState.READY)

    asyncio.run(main())


@pytest.mark.contract("LEASE-02")
def test_two_hundred_waiting_coroutines_get_each_job_once_while_jobs_are_enqueued(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir, retention=1000) as queue:
            tokens: list[str] = []
            got: list[str] = []

            async def take() -> None:
                for _ in range(3):
                    async with queue.processing(timeout=PATIENCE) as job:
                        tokens.append(job.lease_token)
                        got.append(job.id)
                        await asyncio.sleep(0)

            takers = [asyncio.create_task(take()) for _ in range(200)]
            added: list[str] = []
            for number in range(100):
                added.append((await queue.enqueue(number)).id)
                added += [job.id for job in await queue.enqueue_many(range(5))]
            await asyncio.gather(*takers)
            assert sorted(got) == sorted(added)
            assert len(set(tokens)) == 600
            assert (await queue.stats()).done == 600

    asyncio.run(main(), debug=True)


@pytest.mark.contract("LEASE-02", "LEASE-04")
def test_cancelling_waiting_and_running_leases_at_any_time_loses_and_doubles_nothing(queue_dir):
    async def main() -> None:
        async with AsyncQueue(queue_dir, retention=1000) as queue:
            finished: list[str] = []

            async def take() -> None:
                async with queue.processing(timeout=PATIENCE) as job:
                    await asyncio.sleep(0)
                    finished.append(job.id)

            takers: set[asyncio.Task[None]] = set()
            added = []
            for number in range(150):
                takers |= {asyncio.create_task(take()) for _ in range(3)}
                added.append((await queue.enqueue(number)).id)
                for task in list(takers)[::2]:
                    task.cancel()
                takers = {task for task in takers if not task.done()}
            for task in takers:
                task.cancel()
            await asyncio.gather(*takers, return_exceptions=True)
            while async_job := await queue.lease_one():
                assert async_job.attempts == 1, "a lease that was given back was counted"
                finished.append(async_job.id)
            assert sorted(finished) == sorted(added)

    asyncio.run(main())


WORKER = """
import asyncio, json, sys
from nobroker_django.engine.aio import AsyncQueue

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # a remark on a step that a busy machine made slow is none
    async with AsyncQueue(sys.argv[1]) as queue:
        mine = []
        async def take():
            while True:
                async with queue.processing(timeout=60) as job:
                    if job.payload == "end":
                        return
                    mine.append(job.id)
        takers = [asyncio.create_task(take()) for _ in range(5)]
        print("ready", flush=True)
        await asyncio.gather(*takers)
        print(json.dumps(mine))

asyncio.run(main(), debug=True)
"""


@pytest.mark.contract("LEASE-02", "PROC-01")
def test_coroutines_of_several_processes_wake_up_for_each_others_jobs_and_get_disjoint_ones(queue_dir):
    workers = [start_python(WORKER, queue_dir) for _ in range(2)]
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 2

    async def main() -> list[str]:
        async with AsyncQueue(queue_dir) as queue:
            added = [(await queue.enqueue(number)).id for number in range(100)]
            await queue.enqueue_many(["end"] * 10, priority=-1)
            return added

    added = asyncio.run(main())
    outputs = [worker.communicate(timeout=PATIENCE) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert [err for _, err in outputs] == ["", ""]
    done = [json.loads(out) for out, _ in outputs]
    assert sorted(done[0] + done[1]) == sorted(added)


@pytest.mark.contract("PROC-02")
def test_a_child_forked_while_coroutines_wait_goes_on_with_its_own_threads(queue_dir: Path):
    async def in_the_child(queue: AsyncQueue) -> None:
        async with asyncio.timeout(PATIENCE):
            await queue.enqueue_many(["for the parent", "for the child"])
            job = await queue.lease_one(timeout=PATIENCE)
            assert job is not None
            await queue.ack(job)
            await queue.close()

    async def main() -> None:
        async with AsyncQueue(queue_dir) as queue:
            await queue.stats()
            waiting = asyncio.create_task(queue.lease_one(timeout=PATIENCE, visibility_timeout=1000))
            await asyncio.sleep(0.05)
            status = in_child(lambda: asyncio.run(in_the_child(queue)))
            assert status == 0
            assert (await waiting) is not None
            await queue.enqueue("parent's")
            assert (await queue.stats()).enqueued_total == 3

    asyncio.run(main())
