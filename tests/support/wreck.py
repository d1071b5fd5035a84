"""Queues that are damaged on purpose, and what must be left of them when they have been salvaged."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nobroker_django import Job, JobState, Queue
from nobroker_django.engine.endings import Ended
from nobroker_django.engine.rescue import SalvageReport
from nobroker_django.engine.verification import verify_queue

from . import bytes as raw
from .scripts import all_record_types, clock, open_queue

ENQUEUE, LEASE, ACK, PURGE = 1, 2, 3, 8


@dataclass
class Wreck:
    """A queue as it was, and the directory in which its log is damaged.

    ``frames`` are those of the sound log; ``struck`` says which of them are damaged.
    """

    directory: Path
    log: Path
    data: bytes
    jobs: dict[str, dict[str, Any]]
    frames: list[raw.Frame]
    struck: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, sound: Path, directory: Path) -> Wreck:
        """A copy of a queue that was closed in order, not damaged yet."""
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(sound, directory)
        with open_queue(sound) as queue:
            jobs, name = {job.id: shown(job) for job in queue.list_jobs()}, queue.path.name
        shutil.rmtree(directory)
        shutil.copytree(sound, directory)
        data = (directory / name).read_bytes()
        return cls(directory, directory / name, data, jobs, raw.parse(data))

    def damage(self, start: int, new: bytes) -> None:
        """Overwrite some bytes."""
        with self.log.open("r+b") as file:
            file.seek(start)
            file.write(new)
        now = self.log.read_bytes()
        pieces = [slice(one.start, one.end) for one in self.frames]
        self.struck = {number for number, piece in enumerate(pieces) if now[piece] != self.data[piece]}

    def damage_randomly(self, rng: random.Random) -> None:
        """Flipped bits, zeroed or garbled stretches, in some places; at least one record is struck."""
        places = rng.choice((1, 1, 2, 5))
        while places > 0 or not self.struck:
            places -= 1
            at = rng.randrange(16, len(self.data))
            count = rng.choice((1, 1, 1, 9, 100, 512, 2000))
            piece = self.log.read_bytes()[at : at + count]
            new = {
                "flip": bytes([piece[0] ^ 1 << rng.randrange(8)]) + piece[1:],
                "zero": bytes(len(piece)),
                "garbage": rng.randbytes(len(piece)),
            }[rng.choice(("flip", "flip", "zero", "garbage"))]
            self.damage(at, new)

    def of_job(self, job_id: str) -> list[int]:
        """The numbers of the frames that speak of a job."""
        return [number for number, one in enumerate(self.frames) if one.body.get("id") == job_id]

    def tokens(self) -> list[str]:
        """Every fencing token that stands in the sound log."""
        found = [one.body.get(name) for one in self.frames for name in ("token", "lease_token")]
        return [token for token in found if isinstance(token, str)]


def shown(job: Job) -> dict[str, Any]:
    """All of a job but what a copy may change: the token of a finished one is not kept."""
    facts = job.to_dict()
    facts.pop("created", None)
    return facts


def everything(directory: Path) -> None:
    """Every record type, behind a compaction, and some more jobs; nobody has the queue open."""
    all_record_types(directory)
    with open_queue(directory) as queue:
        queue.enqueue_many([{"k": f"m{number}"} for number in range(6)], priority=20)
        queue._end_all([Ended.succeeded(job, {"of": job.id}, worker="host:1") for job in queue.lease(3)])
        queue._end_all([Ended.failed(job, "no", worker=f"host:{job.attempts}") for job in queue.lease(1)])


def check_salvaged(wreck: Wreck, report: SalvageReport) -> None:
    """Hold a salvaged queue against what it was before it was damaged.

    Raises:
        AssertionError: something was lost, revived or made up that need not be, or the report hides it.
    """
    directory = wreck.directory
    assert report.kept_path is not None
    kept = report.kept_path.read_bytes()
    before = wreck.log.read_bytes()
    assert kept == before, "the damaged log was changed"
    found = verify_queue(directory, "default")
    assert found.whole, found.findings
    with open_queue(directory) as queue:
        now = {job.id: shown(job) for job in queue.list_jobs()}
        _check_jobs(wreck, report, now)
        _check_rising(wreck, queue)
    _check_damage(wreck, report)


def _check_jobs(wreck: Wreck, report: SalvageReport, now: dict[str, dict[str, Any]]) -> None:
    everyone = {str(one.body["id"]) for one in wreck.frames if "id" in one.body}
    assert not now.keys() - everyone, "a job was made up"
    lost = {one.job_id for one in report.lost}
    for job_id in everyone:
        numbers = wreck.of_job(job_id)
        left = [wreck.frames[number] for number in numbers if number not in wreck.struck]
        if not left:
            assert job_id not in now
        elif left[0].type != ENQUEUE:
            assert job_id not in now, f"{job_id} was made up without its payload"
            assert job_id in lost, f"{job_id} is lost, and nobody says so"
        elif any(one.type == ACK for one in left):
            assert now[job_id]["state"] == JobState.DONE.value, f"{job_id} was finished and is {now[job_id]['state']}"
        elif not wreck.struck & set(numbers):
            changed = {name: (wreck.jobs[job_id][name], new) for name, new in now[job_id].items()}
            # When a job became ready may come from the clock of another record, and ``seq`` from the first one.
            free = {"available_at"} | ({"seq"} if 0 in wreck.struck else set())
            changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1] and name not in free}
            assert not changed, f"{job_id} was not damaged, and has changed: {changed}"
        else:
            assert job_id in now, f"{job_id} is gone, although its record is intact"
        if job_id in now:
            assert now[job_id]["payload"] == wreck.jobs[job_id]["payload"]
            assert now[job_id]["seq"] == wreck.jobs[job_id]["seq"] or 0 in wreck.struck


def _check_rising(wreck: Wreck, queue: Queue) -> None:
    job = queue.enqueue({"k": "new"}, priority=1 << 30)
    assert job.seq is None or job.seq > max(facts["seq"] for facts in wreck.jobs.values())
    leased = queue.lease_one()
    assert leased is not None
    assert leased.id == job.id
    assert all((leased.lease_token or "") > token for token in wreck.tokens())
    queue.ack(leased)


def _check_damage(wreck: Wreck, report: SalvageReport) -> None:
    bytes_reported = {at for one in report.damage for at in range(one.start, one.stop)}
    for number, one in enumerate(wreck.frames):
        inside = all(at in bytes_reported for at in range(one.start, one.end))
        assert inside == (number in wreck.struck), (one, report.damage)


__all__ = ["Wreck", "check_salvaged", "clock", "everything"]
