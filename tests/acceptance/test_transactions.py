"""A hot worker beside a process that enqueues in transactions."""

import subprocess
import sys
import textwrap

import pytest

from .conftest import ROOT

ROUNDS = 100


@pytest.mark.contract("DJ-02")
def test_a_hot_worker_sees_every_committed_row_and_no_job_of_a_rollback(place):
    """C40."""
    assert place.manage("migrate", "--verbosity", "0").returncode == 0
    work = place.work("--processes", 2, "--threads", 2)
    work.until_ready(2)
    script = f"""
        import django
        django.setup()
        from django.contrib.auth.models import User
        from django.db import transaction
        from tests.acceptance.jobs import find_user

        class RollBack(Exception):
            pass

        for number in range({ROUNDS}):
            try:
                with transaction.atomic():
                    user = User.objects.create(username=f"user{{number}}")
                    find_user.using(job_id=f"user {{number}}").enqueue(user.pk, user.username)
                    if number % 4 == 3:
                        raise RollBack
            except RollBack:
                pass
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, env=place.environment(), check=True)
    work.signal(15)
    assert work.end() == 0
    assert place.work("--drain").end() == 0
    found = {job.id: (job.result, job.attempts) for job in place.queue().list_jobs()}
    assert found == {f"user {number}": (True, 1) for number in range(ROUNDS) if number % 4 != 3}
