"""Real workers and an outbox that a killed process has left something in."""

import json
import re
import signal
import sys
import textwrap

import pytest

from .conftest import until

pytestmark = pytest.mark.contract("DJ-02")
DOOMED = """
    import os, signal
    from django.contrib.auth.models import User
    from django.db import transaction
    from tests.acceptance.jobs import find_user

    with transaction.atomic():
        transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
        user = User.objects.create(username="ann")
        find_user.using(job_id="of ann").enqueue(user.pk, "ann")
"""


def test_a_worker_writes_and_runs_what_a_killed_process_has_left(on_database, database):
    how = "drain" if database is None else "stay"
    place = on_database(OUTBOX=True)
    done = place.run(DOOMED)
    assert done.returncode == -signal.SIGKILL
    assert place.queue().stats().total == 0
    work = place.work(*(["--drain"] if how == "drain" else []))
    if how == "stay":
        until(lambda: place.queue().stats().done, "the job is done")
        work.until_says("1 job of committed transactions written")  # and its row is deleted
        work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert "1 job of committed transactions written" in work.text()
    (job,) = place.queue().list_jobs()
    assert (job.id, job.result, job.attempts) == ("of ann", True, 1)
    assert json.loads(place.manage("nobroker_outbox", "--json").stdout) == {"schema": 1, "rows": []}


def test_a_worker_goes_on_while_the_database_of_the_outbox_cannot_be_reached(place, configure):
    configure(OUTBOX=True)
    place.database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(place / "no such directory" / "db")}
    place.queue().enqueue({"task": "tests.acceptance.jobs.say", "args": ["x"], "kwargs": {}})
    work = place.work("--drain")
    assert work.end() == 0
    assert "database 'default' could not be asked for rows of the outbox" in work.text()
    assert place.queue().stats().done == 1


def test_a_stop_while_sweeping_ends_the_worker(place, configure):
    configure(OUTBOX=True)
    assert place.manage("migrate", "--verbosity", "0").returncode == 0
    work = place.work("--drain")
    work.until_says("started")
    work.signal(signal.SIGTERM)
    assert work.end() == 0


IMPATIENT = """
    import django

    django.setup()
    from django.core.management import execute_from_command_line
    from nobroker_django.outbox import sweeping
    from nobroker_django.worker import supervisor

    supervisor.LOOK_SECONDS = 0.2
    sweeping.YOUNG_SECONDS = 0.0
    execute_from_command_line(["manage.py", "nobroker_work", "--no-reload"])
"""


def test_a_worker_sweeps_again_and_again(place, configure):
    configure(OUTBOX=True)
    assert place.manage("migrate", "--verbosity", "0").returncode == 0
    work = place.start([sys.executable, "-c", textwrap.dedent(IMPATIENT)])
    work.until_ready()
    for number in (1, 2):
        assert place.run(DOOMED.replace("ann", f"ann{number}")).returncode == -signal.SIGKILL

        def is_done(count: int = number) -> bool:
            return bool(place.queue().stats().done == count)

        until(is_done, "the job is done")

    def sweepers() -> set[str]:
        return set(re.findall(r"outbox \(pid (\d+)\): database 'default': 1 job of committed", work.text()))

    until(lambda: len(sweepers()) >= 2, "two of them have said so")  # a stop may come before that is said
    work.signal(signal.SIGTERM)
    assert work.end() == 0
    assert place.queue().stats().enqueued_total == 2
