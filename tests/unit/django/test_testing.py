"""The helpers for the tests of other projects."""

import io
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from nobroker_django import InvalidOptionError, JobResult, JobState, QueueClosedError, conf, current_job, registry
from nobroker_django.decorators import Task
from nobroker_django.execution import Outcome
from nobroker_django.queues import get_queue
from nobroker_django.testing import NobrokerTestMixin, committed, own_queues, run_jobs

from .sample import add, send


def test_run_jobs_runs_what_is_there_in_this_thread_and_tells_how_it_ended(make, nobroker):
    import threading

    threads = []
    make(lambda: threads.append((threading.get_ident(), current_job().queue)), name="look").enqueue()
    failing = make(lambda: 1 / 0, name="fail").using(max_attempts=1).enqueue()
    send.enqueue("a")
    reports = nobroker.run_jobs()
    assert [(report.task, report.outcome) for report in reports] == [
        ("look", Outcome.SUCCEEDED),
        ("fail", Outcome.DEAD),
        (send.name, Outcome.SUCCEEDED),
    ]
    assert threads == [(threading.get_ident(), "default")]
    failing.refresh()
    assert failing.status == "FAILED"
    assert nobroker.run_jobs() == []


@pytest.mark.parametrize("coroutine", [False, True])
def test_who_interrupts_run_jobs_interrupts_the_test_and_the_job_is_given_back(make, nobroker, coroutine):
    def interrupted():
        raise KeyboardInterrupt

    async def interrupted_later():
        raise KeyboardInterrupt

    result = make(interrupted_later if coroutine else interrupted, name="interrupted").enqueue()
    with pytest.raises(KeyboardInterrupt):
        nobroker.run_jobs()
    result.refresh()
    assert (result.status, result.attempts, result.errors) == ("READY", 0, [])


def test_a_task_that_exits_is_a_failed_job_of_run_jobs(make, nobroker):
    def leave():
        raise SystemExit(3)

    make(leave, name="leave").enqueue()
    assert [report.error for report in nobroker.run_jobs()] == ["SystemExit: 3"]


def test_run_jobs_runs_what_jobs_enqueue_also_in_other_queues(make, nobroker):
    make(lambda: send.enqueue("a").id, name="first").enqueue()
    assert [report.task for report in run_jobs()] == ["first", send.name]
    assert nobroker.queue("emails").stats().done == 1


def test_run_jobs_imports_what_a_worker_imports(tmp_path, monkeypatch, settings):
    (tmp_path / "named_tasks.py").write_text(
        "from nobroker_django import task\n@task(name='a name')\ndef work():\n    return 'done'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings.NOBROKER = {**settings.NOBROKER, "IMPORTS": ["named_tasks"]}
    job = get_queue().enqueue({"task": "a name", "args": [], "kwargs": {}})
    assert [report.error for report in run_jobs()] == [""]
    assert get_queue().get(job.id).result == "done"
    registry.unregister(registry.find("a name"))


def test_run_jobs_of_some_queues_leaves_the_others_alone(nobroker):
    add.enqueue(1)
    send.enqueue("a")
    assert [report.task for report in run_jobs("emails")] == [send.name]
    assert nobroker.queue().stats().ready == 1
    with pytest.raises(InvalidOptionError, match="emial"):
        run_jobs("emial")


def test_what_waits_runs_when_asked_for_the_earliest_first(make, nobroker):
    again = make(lambda: 1 / 0, name="fail").using(max_attempts=3).enqueue()
    late, early = (add.using(delay=delay).enqueue(delay) for delay in (7200, 3600))
    assert [report.job_id for report in run_jobs()] == [again.id]
    reports = run_jobs(delayed=True)
    assert [report.job_id for report in reports] == [again.id, again.id, early.id, late.id]
    again.refresh()
    assert (again.status, again.attempts) == ("FAILED", 3)
    assert nobroker.queue().stats().delayed == 0


def test_the_earliest_of_all_queues_is_the_first(nobroker):
    late, early = add.using(delay=7200).enqueue(1), send.using(delay=3600).enqueue("a")
    assert [report.job_id for report in run_jobs(delayed=True)] == [early.id, late.id]


def test_a_job_that_enqueues_itself_does_not_hang_the_test(make, nobroker):
    made: list[Task] = []
    made.append(make(lambda: made[0].enqueue().id, name="again"))
    made[0].enqueue()
    with pytest.raises(RuntimeError, match="5 jobs have run"):
        run_jobs(limit=5)
    assert (nobroker.queue().stats().done, nobroker.queue().stats().ready) == (5, 1)
    assert nobroker.queue().list_jobs(JobState.READY)[0].attempts == 0


def test_run_jobs_makes_no_queue(nobroker):
    assert run_jobs(delayed=True) == []
    assert not nobroker.dir.exists()


@pytest.mark.django_db
def test_committed_writes_and_runs_what_the_block_enqueued(nobroker):
    with committed() as reports:
        result = add.enqueue(1)
        assert result.created is None
    assert [report.job_id for report in reports] == [result.id]
    result.refresh()
    assert result.return_value == 2
    with nobroker.committed(delayed=True) as reports:
        add.using(delay=50).enqueue(1)
    assert len(reports) == 1


def test_the_fixture_is_a_directory_of_this_test(nobroker, tmp_path):
    assert conf.get_settings().dir == nobroker.dir == tmp_path / "nobroker"
    assert set(conf.get_settings().queues) == {"default", "emails"}
    add.enqueue(1)
    assert nobroker.dir.is_dir()


def test_own_queues_are_removed_and_the_setting_put_back(tmp_path):
    before = conf.get_settings().dir
    with own_queues() as path:
        add.enqueue(1)
        queue = get_queue()
        assert list(path.iterdir())
    assert not path.exists()
    with pytest.raises(QueueClosedError):
        queue.stats()
    assert conf.get_settings().dir == before
    with own_queues(tmp_path / "kept") as path:
        add.enqueue(1)
    assert list(path.iterdir())


def test_the_directory_tells_which_worker_of_xdist_it_belongs_to(monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw7")
    with own_queues() as first, own_queues() as second:
        assert first != second
        assert "gw7" in first.name


class Simple(NobrokerTestMixin, SimpleTestCase):
    seen: list[Path] = []

    def setUp(self):
        super().setUp()
        self.seen.append(self.nobroker_dir)
        self.assertEqual(conf.get_settings().dir, self.nobroker_dir)

    def test_one(self):
        add.enqueue(1)
        self.assertEqual(len(self.run_jobs()), 1)

    def test_two(self):
        self.assertEqual(get_queue().stats().total, 0)
        self.assertFalse(self.seen[0].exists() and self.seen[0] != self.nobroker_dir)


class WithTransaction(NobrokerTestMixin, TestCase):
    of_class: JobResult[int]

    @classmethod
    def setUpTestData(cls):
        cls.of_class = add.using(on_commit=False).enqueue(1)

    def test_what_was_enqueued_runs_at_the_end_of_the_block(self):
        with self.committed() as reports:
            result = add.enqueue(1)
        self.assertEqual([report.job_id for report in reports], [result.id])

    def test_what_the_class_enqueued_is_not_in_the_queues_of_the_test(self):
        self.assertTrue(self.of_class.created)
        self.assertEqual(self.run_jobs(), [])


class WithCommits(NobrokerTestMixin, TransactionTestCase):
    def test_a_commit_is_a_commit(self):
        with transaction.atomic():
            add.enqueue(1)
            self.assertEqual(self.run_jobs(), [])
        self.assertEqual(len(self.run_jobs()), 1)

    def test_a_job_sees_the_database_of_the_test(self):
        self.assertFalse(connection.in_atomic_block)


class Forgetful(NobrokerTestMixin, SimpleTestCase):
    __test__ = False  # run below, where no fixture sets a directory

    def setUp(self):
        pass  # without super()

    def test_the_class_still_has_a_directory_of_its_own(self):
        self.assertIn("nobroker-test-", str(conf.get_settings().dir))


def test_the_mixin_works_with_unittests_runner():
    tests = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, (Simple, Forgetful)))
    result = unittest.TextTestRunner(stream=io.StringIO()).run(tests)
    assert result.wasSuccessful()
    assert result.testsRun == 3
    assert not any(path.exists() for path in Simple.seen)


def test_loading_the_plugin_imports_no_django():
    code = "import sys, nobroker_django.pytest_plugin; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0
