"""What the tests of the admin share: addresses, jobs in every state, what a directory holds."""

import os
import re
from pathlib import Path

from nobroker_django import conf
from nobroker_django.queues import get_queue, open_queue

JOBS = "/admin/nobroker_django/job/"
DEAD = "/admin/nobroker_django/deadletter/"


def call(task="shop.tasks.mail", *args, **kwargs):
    """The payload of a task's call."""
    return {"task": task, "args": list(args), "kwargs": kwargs}


def fresh_queue(name="default"):
    """A ``Queue`` object that the test closes: as if another process had the queue open."""
    return open_queue(name, conf.queue_settings(name))


def one_of_each_state(name="default"):
    """Jobs of five states, by the name of the state."""
    queue = get_queue(name)
    jobs = {
        "done": queue.enqueue(call("shop.tasks.done", 1), priority=3),
        "dead": queue.enqueue(call("shop.tasks.dead", 2), priority=2, max_attempts=1),
        "leased": queue.enqueue(call("shop.tasks.leased", 3), priority=1),
    }
    done, dead, _ = queue.lease(3)
    queue.ack(done, result={"sent": True})
    queue.nack(dead, error=ValueError("no such address"))
    jobs["ready"] = queue.enqueue(call("shop.tasks.ready", 4))
    jobs["delayed"] = queue.enqueue(call("shop.tasks.delayed", 5), delay=3600)
    return jobs


def listed(response):
    """The ids of the jobs in a list, from top to bottom."""
    assert response.status_code == 200, (response.status_code, response.headers)
    return re.findall(r'<th class="field-short_id"><a href="[^"]*">([^<]*)</a>', response.content.decode())


def notice(response):
    """The text of the notice above a page; empty when there is none."""
    found = re.search(r'<p class="[^"]*nobroker-notice[^"]*">(.*?)</p>', response.content.decode(), re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every file below a directory and its bytes; of directories the name alone."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def open_descriptors(below: Path) -> list[str]:
    """What this process has open below a directory."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        if target.startswith(str(below)):
            found.append(target)
    return found
