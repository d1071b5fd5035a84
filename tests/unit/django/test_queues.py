"""One queue object per name and process, opened with the settings."""

import os
import signal
import threading

import pytest

from nobroker_django import InvalidOptionError, QueueClosedError
from nobroker_django.queues import close_queues, get_queue


def test_all_threads_of_a_process_share_one_object():
    found = []
    threads = [threading.Thread(target=lambda: found.append(get_queue("emails"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(queue) for queue in found} == {id(get_queue("emails"))}
    assert get_queue() is get_queue("default")
    assert get_queue() is not get_queue("emails")


def test_the_settings_of_the_queue_reach_it(tmp_path):
    job = get_queue("emails").enqueue("x")
    assert job.max_attempts == 3
    assert get_queue("emails").dir == tmp_path / "queues"


def test_a_queue_that_the_settings_do_not_name_is_refused():
    with pytest.raises(InvalidOptionError, match="known queues: default, emails"):
        get_queue("nobody")


def test_changed_settings_close_what_was_open(settings, tmp_path):
    before = get_queue()
    settings.NOBROKER = {"DIR": tmp_path / "elsewhere"}
    assert get_queue() is not before
    assert get_queue().dir == tmp_path / "elsewhere"
    with pytest.raises(QueueClosedError):
        before.enqueue("x")


def test_a_closed_queue_is_opened_again_when_asked_for():
    get_queue().enqueue("x")
    close_queues()
    assert get_queue().stats().ready == 1


def test_a_forked_child_can_ask_for_a_queue_while_a_thread_of_the_parent_was_opening_one():
    from nobroker_django import queues

    with queues._lock:
        pid = os.fork()
        if pid == 0:
            code = 1
            signal.alarm(60)  # instead of waiting for ever for a lock that nobody holds
            try:
                get_queue().enqueue("from the child")
                code = 0
            finally:
                os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert get_queue().stats().ready == 1
