"""A hot worker beside a process that enqueues in transactions, with and without the outbox, on both databases."""

import pytest

ROUNDS = 100


@pytest.mark.contract("DJ-02")
def test_a_hot_worker_sees_every_committed_row_and_no_job_of_a_rollback(on_database, database):
    """C40."""
    place = on_database(OUTBOX=database is not None)  # the other two ways are those of the long test
    work = place.work("--processes", 2, "--threads", 2)
    work.until_ready(2)
    done = place.run(f"""
        from django.contrib.auth.models import User
        from django.db import transaction
        from tests.acceptance.jobs import find_user

        class RollBack(Exception):
            pass

        for number in range({ROUNDS}):
            try:
                with transaction.atomic():
                    user = User.objects.create(username=f"user {{number}}")
                    find_user.using(job_id=f"user {{number}}").enqueue(user.pk, user.username)
                    if number % 4 == 3:
                        raise RollBack
            except RollBack:
                pass
    """)
    assert done.returncode == 0, done.stderr
    work.signal(15)
    assert work.end() == 0
    assert place.work("--drain").end() == 0
    found = {job.id: (job.result, job.attempts) for job in place.queue().list_jobs()}
    assert found == {f"user {number}": (True, 1) for number in range(ROUNDS) if number % 4 != 3}


@pytest.mark.long
@pytest.mark.contract("DJ-02")
@pytest.mark.parametrize("with_outbox", [False, True], ids=["without outbox", "with outbox"])
def test_so_it_does_where_transactions_take_their_time(on_database, with_outbox):
    place = on_database(OUTBOX=with_outbox)
    work = place.work("--processes", 2, "--threads", 2)
    work.until_ready(2)
    done = place.run("""
        import time
        from django.contrib.auth.models import User
        from django.db import transaction
        from tests.acceptance.jobs import find_user

        for number in range(600):
            with transaction.atomic():
                user = User.objects.create(username=f"user {number}")
                find_user.using(job_id=f"user {number}").enqueue(user.pk, user.username)
                time.sleep(0.02)  # what the worker would have to see a job too early
                transaction.set_rollback(number % 6 == 5)
    """)
    assert done.returncode == 0, done.stderr
    work.signal(15)
    assert work.end() == 0
    assert place.work("--drain").end() == 0
    found = {job.id: (job.result, job.attempts) for job in place.queue().list_jobs()}
    assert found == {f"user {number}": (True, 1) for number in range(600) if number % 6 != 5}
