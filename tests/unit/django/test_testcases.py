"""What becomes of jobs in the several kinds of Django test cases: the table of the documentation.

Each kind is tried with a real queue and with ``IMMEDIATE``: a job that is not written does not run either.
"""

from typing import TYPE_CHECKING

import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings

from nobroker_django import JobResult, conf, registry
from nobroker_django.queues import get_queue
from nobroker_django.testing import NobrokerTestMixin

from .sample import add

if TYPE_CHECKING:
    _TestCase = TestCase
else:
    _TestCase = object


class Both(_TestCase):
    """The assertions, and which of the two it is."""

    immediate = False

    def setUp(self):
        super().setUp()
        immediate = override_settings(
            NOBROKER={"DIR": conf.get_settings().dir, "QUEUES": {"default": {}}, "IMMEDIATE": self.immediate}
        )
        self.enterContext(immediate)

    def waits(self, result):
        self.assertEqual((result.created, result.status), (None, "READY"))
        if not self.immediate:
            self.assertEqual(get_queue().stats().total, 0)

    def is_written(self, result):
        self.assertIs(result.created, True)
        self.assertEqual(result.status, "SUCCESSFUL" if self.immediate else "READY")


class InTestCase(Both, NobrokerTestMixin, TestCase):
    """Every test is one transaction that is rolled back, so the callbacks of a commit never run by themselves."""

    result: JobResult[int]

    @classmethod
    def setUpTestData(cls):
        cls.result = add.enqueue(1)

    def test_a_job_waits_for_a_commit_that_never_comes(self):
        """C44: TestCase."""
        result = add.enqueue(1)
        with transaction.atomic():
            inner = add.enqueue(2)
        self.waits(result)
        self.waits(inner)

    def test_captured_callbacks_store_it(self):
        """C44: TestCase with captureOnCommitCallbacks."""
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            result = add.enqueue(1)
            self.waits(result)
        self.assertEqual(len(callbacks), 1)
        self.is_written(result)

    def test_without_on_commit_it_is_stored_at_once(self):
        """C44: on_commit=False."""
        self.is_written(add.using(on_commit=False).enqueue(1))

    def test_a_job_of_set_up_test_data_waits_too(self):
        """C44: setUpTestData."""
        self.waits(self.result)


class InTestCaseImmediate(InTestCase):
    immediate = True


class InTransactionTestCase(Both, NobrokerTestMixin, TransactionTestCase):
    def test_a_commit_is_a_commit(self):
        """C44: TransactionTestCase."""
        self.is_written(add.enqueue(1))
        with transaction.atomic():
            result = add.enqueue(2)
            self.waits_in_transaction(result)
        self.is_written(result)

    def waits_in_transaction(self, result):
        self.assertIsNone(result.created)


class InTransactionTestCaseImmediate(InTransactionTestCase):
    immediate = True


@pytest.fixture(params=[False, True], ids=["queue", "immediate"])
def immediate(request, settings):
    settings.NOBROKER = {**settings.NOBROKER, "IMMEDIATE": request.param}
    return request.param


@pytest.mark.django_db
def test_pytest_djangos_db_is_a_test_case(django_capture_on_commit_callbacks, immediate):
    """C44: pytest-django's db."""
    assert add.enqueue(1).created is None
    with django_capture_on_commit_callbacks(execute=True):
        result = add.enqueue(1)
    assert (result.created, result.status) == (True, "SUCCESSFUL" if immediate else "READY")


@pytest.mark.django_db(transaction=True)
def test_pytest_djangos_transactional_db_commits(immediate):
    """C44: pytest-django's transaction=True."""
    with transaction.atomic():
        result = add.enqueue(1)
        assert result.created is None
    assert (result.created, result.status) == (True, "SUCCESSFUL" if immediate else "READY")


def test_without_a_database_fixture_a_job_is_stored_at_once(immediate):
    """C44: no transaction."""
    assert add.enqueue(1).created is True


@pytest.mark.django_db
def test_the_immediate_backend_waits_like_a_queue(django_capture_on_commit_callbacks, settings):
    """C44: the Immediate backend of this package."""
    compat = pytest.importorskip("nobroker_django.compat")
    if not compat.AVAILABLE:
        pytest.skip("this Django has no task framework")
    from importlib import import_module

    settings.TASKS = {"default": {"BACKEND": "nobroker_django.backend.ImmediateBackend"}}
    task = import_module(compat.SOURCE).task(_double)
    assert task.enqueue(1).status == "READY"
    with django_capture_on_commit_callbacks(execute=True):
        result = task.enqueue(2)
    assert result.return_value == 4
    registry.unregister(registry.find(task.module_path))


def _double(number):
    return 2 * number
