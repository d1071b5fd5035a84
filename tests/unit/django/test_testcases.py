"""What becomes of jobs in the several kinds of Django test cases: the table of the documentation."""

import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from nobroker_django import JobResult
from nobroker_django.queues import get_queue

from .sample import add


class InTestCase(TestCase):
    """Every test is one transaction that is rolled back, so the callbacks of a commit never run by themselves."""

    def test_a_job_waits_for_a_commit_that_never_comes(self):
        result = add.enqueue(1)
        with transaction.atomic():
            add.enqueue(2)
        self.assertIsNone(result.created)
        self.assertEqual(get_queue().stats().total, 0)

    def test_captured_callbacks_store_it(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            result = add.enqueue(1)
        self.assertEqual(len(callbacks), 1)
        self.assertIs(result.created, True)
        self.assertEqual(get_queue().stats().total, 1)

    def test_without_on_commit_it_is_stored_at_once(self):
        self.assertIs(add.using(on_commit=False).enqueue(1).created, True)


class SetUpTestData(TestCase):
    result: JobResult[int]

    @classmethod
    def setUpTestData(cls):
        cls.result = add.enqueue(1)

    def test_a_job_of_the_class_waits_too(self):
        self.assertIsNone(self.result.created)


class InTransactionTestCase(TransactionTestCase):
    def test_a_commit_is_a_commit(self):
        self.assertIs(add.enqueue(1).created, True)
        with transaction.atomic():
            result = add.enqueue(2)
        self.assertIs(result.created, True)


@pytest.mark.django_db
def test_pytest_djangos_db_is_a_test_case(django_capture_on_commit_callbacks):
    assert add.enqueue(1).created is None
    with django_capture_on_commit_callbacks(execute=True):
        result = add.enqueue(1)
    assert result.created is True


@pytest.mark.django_db(transaction=True)
def test_pytest_djangos_transactional_db_commits():
    with transaction.atomic():
        result = add.enqueue(1)
    assert result.created is True


def test_without_a_database_fixture_a_job_is_stored_at_once():
    assert add.enqueue(1).created is True
