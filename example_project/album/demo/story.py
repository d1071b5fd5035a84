"""What happens in the demo, step by step, and what is checked on the way.

Each step does one thing to the running site and notes in the checklist what it saw. Nothing is simulated: the site
is served over HTTP, the workers are `nobroker_work`, the kill is SIGKILL.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from album.demo.checklist import Checklist
from album.demo.pictures import Pictures
from album.demo.processes import DemoError, Processes
from album.demo.progress import Progress
from album.demo.visitor import SentFile, Visitor
from album.running import Marker, running
from nobroker_django import Job, JobState, Queue, QueueStats

VISIBILITY_TIMEOUT = 3.0  # seconds, as in demo_settings
RETENTION = 86_400.0  # seconds; what the site's processes open the queue with
CATCH_TIMEOUT = 20.0  # seconds in which a worker has to be seen at work
SETTLE_TIMEOUT = 30.0  # seconds in which all work has to be done
STOP_TIME = 0.03  # seconds after which a stopped process has stopped
POLL = 0.1
EMAIL = {"email": "visitor@example.org"}

THUMBNAILS, WEBHOOK, NOTICE = "album.tasks.make_thumbnails", "album.tasks.call_webhook", "album.tasks.send_notice"


class Story:
    """One run of the demo in one fresh directory."""

    def __init__(self, processes: Processes, pictures: Pictures, progress: Progress, checklist: Checklist) -> None:
        self.processes = processes
        self.pictures = pictures
        self.progress = progress
        self.checklist = checklist
        self.directory = processes.directory
        self.photos = 0
        self.uploads = 0
        self.killed_at = 0.0
        self.queue: Queue

    def run(self) -> None:
        """Everything, in order. Raises DemoError if a step cannot be done at all."""
        self.prepare()
        with Queue(
            self.directory / "queue", "default", visibility_timeout=VISIBILITY_TIMEOUT, retention=RETENTION
        ) as self.queue:
            self.upload_everything()
            self.send_a_duplicate()
            self.start_workers()
            killed = self.kill_a_worker()
            self.wait_until_settled("retries and leases")
            self.see_the_job_back(killed)
            self.see_the_retries()
            self.mend_the_dead_letter()
            self.compact()
            self.upload_one_more()
            self.stop_workers()
            self.add_up()
        self.look_at_the_album()

    # The steps

    def prepare(self) -> None:
        """A database, and the site on a port of its own."""
        self.processes.must_run("migrate", "--verbosity=0")
        self.visitor = Visitor(self.processes.start_site())
        self.progress.say(f"Serving the album at {self.visitor.address} out of {self.directory}")

    def upload_everything(self) -> None:
        """Upload through the form; the view enqueues inside its transaction. No worker runs yet."""
        for files in self.pictures.uploads():
            self.upload(files)
        self.upload([self.pictures.broken])
        self.broken_photo = self.jobs_of(THUMBNAILS)[-1].payload["args"][0]
        stats = self.queue.stats()
        self.progress.say(
            f"Uploaded {self.photos} photographs in {self.uploads} requests; one file breaks off half way"
        )
        self.checklist.add(
            "jobs of a committed transaction are stored",
            stats.enqueued_total == stats.ready == self.photos + self.uploads,
            f"{stats.enqueued_total} jobs of {self.uploads} requests",
        )

    def send_a_duplicate(self) -> None:
        """An upload whose second file is in the album already: the transaction is rolled back after an enqueue."""
        before, files = self.queue.stats().enqueued_total, self.files("media/originals")
        refused = self.visitor.send("/upload/", EMAIL, "photos", [self.pictures.whole, self.pictures.good[0]])
        added = self.queue.stats().enqueued_total - before
        self.progress.say("Uploaded a photograph that is there already: the whole request was rolled back")
        self.checklist.add(
            "a rolled back transaction leaves no job and no file",
            refused.status == 400 and added == 0 and self.files("media/originals") == files,
            f"HTTP {refused.status}, {added} jobs",
        )

    def start_workers(self) -> None:
        """Two processes of two threads each."""
        self.worker = self.processes.start(
            "worker", "nobroker_work", "--no-reload", "--processes", "2", "--threads", "2"
        )
        self.progress.say("Started nobroker_work with 2 processes of 2 threads")

    def kill_a_worker(self) -> Job:
        """Catch a worker process in the middle of a thumbnail and kill it; returns the job it was working on.

        The process is stopped first. It cannot finish then, so a marker that is still there proves that the work is
        not done; a process that was faster is let go, and the next one is tried.
        """
        deadline = time.monotonic() + CATCH_TIMEOUT
        while time.monotonic() < deadline:
            for marker in running(self.directory / "running"):
                if marker.parent_pid != self.worker.pid or marker.photo_id == self.broken_photo:
                    continue
                if self.stopped_at_work(marker):
                    job = self.job_of(marker.photo_id)
                    os.kill(marker.pid, signal.SIGKILL)
                    self.killed_at = time.time()
                    self.progress.say(
                        f"Killed worker process {marker.pid} with SIGKILL in the middle of job {job.id} "
                        f"(attempt {job.attempts})"
                    )
                    self.checklist.add(
                        "a worker was killed in the middle of a job",
                        job.state is JobState.LEASED,
                        f"process {marker.pid}, attempt {job.attempts}",
                    )
                    return job
            self.ended(self.worker, "worker")
            time.sleep(0.001)
        raise DemoError(f"no worker was caught at work:\n{self.processes.tail('worker')}")

    def stopped_at_work(self, marker: Marker) -> bool:
        """Stop a worker process; whether it is still at that photograph. If not, it goes on."""
        try:
            os.kill(marker.pid, signal.SIGSTOP)
        except ProcessLookupError:
            return False
        time.sleep(STOP_TIME)
        if marker in running(self.directory / "running"):
            return True
        os.kill(marker.pid, signal.SIGCONT)
        return False

    def see_the_job_back(self, killed: Job) -> None:
        """The killed worker's job was delivered again when its lease had ended."""
        job = self.queue.get(killed.id)
        reason = (job.errors[0].message or "").partition(":")[0] if job.errors else "no error recorded"
        if job.finished_at is not None:
            self.progress.say(
                f"Job {job.id} came back and was done at attempt {job.attempts}, "
                f"{job.finished_at - self.killed_at:.1f} s after the kill"
            )
        self.checklist.add(
            "its job came back and was done",
            job.state is JobState.DONE and job.attempts > killed.attempts and job.errors,
            f"attempt {job.attempts}; {reason}",
        )

    def see_the_retries(self) -> None:
        """The endpoint refused the first calls about each photograph, so each webhook job needed three attempts."""
        jobs = self.jobs_of(WEBHOOK)
        done = [job for job in jobs if job.state is JobState.DONE and job.attempts >= 3 and len(job.errors) >= 2]
        self.checklist.add(
            "refused webhooks were retried until they were taken",
            len(jobs) == len(done) == self.photos - 1,
            f"{len(done)} jobs, {sum(len(job.errors) for job in jobs)} failed attempts",
        )

    def mend_the_dead_letter(self) -> None:
        """The broken file's job is the one dead letter; with a whole file and new attempts it succeeds."""
        dead = self.json("nobroker_dlq", "--json")["jobs"]
        job = next((self.queue.get(letter["id"]) for letter in dead), None)
        self.checklist.add(
            "the broken photograph ended as the only dead letter",
            job is not None
            and len(dead) == 1
            and job.payload["task"] == THUMBNAILS
            and job.attempts == job.max_attempts,
            f"{job.attempts} attempts; {job.last_error}" if job else "no dead letter",
        )
        if job is None:
            raise DemoError("there is no dead letter to mend")
        photo = f"/photos/{job.payload['args'][0]}/"
        page = self.visitor.get(photo)
        replaced = self.visitor.send(photo, {}, "photo", [self.pictures.whole])
        requeued = self.processes.run("nobroker_dlq", "--requeue", job.id)
        self.progress.say(f"Replaced the broken file and requeued dead letter {job.id}")
        self.wait_until_settled("the requeued job")
        self.checklist.add(
            "it was requeued after the fix and done",
            job.id in page.text
            and replaced.status == 200
            and requeued.returncode == 0
            and self.queue.get(job.id).state is JobState.DONE
            and self.queue.stats().dead == 0,
            requeued.stdout.strip() or requeued.stderr.strip(),
        )

    def compact(self) -> None:
        """The history of finished deliveries goes; jobs and counts stay. The workers are running meanwhile."""
        before = self.queue.stats()
        (result,) = self.json("nobroker_compact", "--json")["queues"]
        after = self.queue.stats()
        sizes = f"{result['bytes_before']:,} to {result['bytes_after']:,} bytes"
        self.progress.say(f"Compacted the log: {sizes}")
        self.checklist.add(
            "the compaction made the log smaller and kept the counts",
            result["bytes_after"] < result["bytes_before"] and counts(after) == counts(before),
            sizes,
        )

    def upload_one_more(self) -> None:
        """The site and the workers go on with the new generation of the log."""
        self.upload([self.pictures.late])
        self.wait_until_settled("one more photograph")
        last = self.jobs_of(NOTICE)[-1]
        self.checklist.add(
            "the running site and workers followed to the new log",
            self.everything_done() and last.state is JobState.DONE,
            "one more photograph was prepared",
        )

    def stop_workers(self) -> None:
        """SIGTERM: running jobs are finished, nothing new is begun."""
        code = self.processes.stop(self.worker)
        self.checklist.add("the workers stopped when asked to", code == 0, f"exit code {code}")

    def add_up(self) -> None:
        """No job was lost and none was made up, and the command says the same as the queue."""
        stats = self.queue.stats()
        waiting = stats.ready + stats.delayed + stats.leased
        (shown,) = self.json("nobroker_stats", "--json")["queues"]
        self.checklist.add(
            "the numbers add up",
            stats.enqueued_total == stats.done + stats.dead + waiting == stats.done == self.expected_jobs
            and all(shown[name] == value for name, value in counts(stats).items()),
            f"{stats.enqueued_total} enqueued = {stats.done} done + {stats.dead} dead + {waiting} waiting",
        )
        jobs = self.queue.list_jobs()
        once = len({job.id for job in jobs}) == len(jobs) == self.expected_jobs
        self.checklist.add("every job is there once", once, f"{len(jobs)} jobs")

    def look_at_the_album(self) -> None:
        """What the jobs left behind, checked by the site itself, and what a visitor sees."""
        check_album(self.processes, self.checklist)
        pictures = set(re.findall(r'src="(/media/thumbnails/[^"]+)"', self.visitor.get("/").text))
        seen = sum(1 for picture in pictures if self.visitor.get(picture).status == 200)
        self.checklist.add(
            "the gallery shows every photograph", seen == len(pictures) == self.photos, f"{seen} thumbnails over HTTP"
        )

    # What the steps share

    def upload(self, files: list[SentFile]) -> None:
        """One use of the upload form."""
        answer = self.visitor.send("/upload/", EMAIL, "photos", files)
        if answer.status != 200:
            raise DemoError(f"the upload was answered with {answer.status}:\n{self.processes.tail('site')}")
        self.photos += len(files)
        self.uploads += 1

    @property
    def expected_jobs(self) -> int:
        """A job for each photograph's thumbnails, one for its webhook, and one for each upload's notice."""
        return 2 * self.photos + self.uploads

    def everything_done(self) -> bool:
        """Whether all expected jobs are there and done."""
        stats = self.queue.stats()
        return stats.done == stats.enqueued_total == self.expected_jobs

    def wait_until_settled(self, waiting_for: str) -> None:
        """Show the bar until no job is waiting or running."""

        def settled() -> bool:
            stats = self.queue.stats()
            self.progress.show(stats.done, self.expected_jobs, status_line(stats))
            return stats.ready + stats.delayed + stats.leased == 0

        self.wait(settled, waiting_for)

    def wait(self, condition: Callable[[], bool], waiting_for: str) -> None:
        """Wait for something to become true. Raises DemoError when it takes too long."""
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while not condition():
            self.ended(self.worker, "worker")
            if time.monotonic() > deadline:
                raise DemoError(f"{waiting_for}: not done in {SETTLE_TIMEOUT:g} s:\n{self.processes.tail('worker')}")
            time.sleep(POLL)

    def ended(self, process: subprocess.Popen[bytes], name: str) -> None:
        """Raise DemoError if a process that should be there is gone."""
        if process.poll() is not None:
            raise DemoError(f"{name} ended with exit code {process.returncode}:\n{self.processes.tail(name)}")

    def jobs_of(self, task: str) -> list[Job]:
        """All jobs of one task, the first enqueued first."""
        jobs = [job for job in self.queue.list_jobs() if job.payload["task"] == task]
        return sorted(jobs, key=lambda job: job.seq)

    def job_of(self, photo_id: str) -> Job:
        """The job that makes the thumbnails of a photograph."""
        return next(job for job in self.jobs_of(THUMBNAILS) if job.payload["args"][0] == photo_id)

    def json(self, *arguments: str) -> dict[str, Any]:
        """What a command prints with --json."""
        document: dict[str, Any] = json.loads(self.processes.must_run(*arguments))
        return document

    def files(self, directory: str) -> set[Path]:
        """The files of a directory of the site."""
        return set((self.directory / directory).iterdir())


def check_album(processes: Processes, checklist: Checklist) -> None:
    """Note what `manage.py check_album` finds in the site's database and files."""
    checked = processes.run("check_album", "--json")
    if not checked.stdout.startswith("{"):
        raise DemoError(f"check_album ended with {checked.returncode}:\n{checked.stderr}")
    for check in json.loads(checked.stdout)["checks"]:
        complaints = check["complaints"]
        detail = f"{len(complaints)} wrong: {complaints[0]}" if complaints else f"{check['looked_at']} looked at"
        checklist.add(check["name"], not complaints and check["looked_at"], detail)


def counts(stats: QueueStats) -> dict[str, int]:
    """The counts that a compaction may not change."""
    return {
        name: getattr(stats, name)
        for name in ("ready", "delayed", "leased", "done", "dead", "total", "enqueued_total")
    }


def status_line(stats: QueueStats) -> str:
    """The queue in a few words."""
    return f"{stats.ready} ready, {stats.delayed} delayed, {stats.leased} running, {stats.dead} dead"
