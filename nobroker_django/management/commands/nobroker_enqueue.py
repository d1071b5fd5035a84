"""``manage.py nobroker_enqueue``: one call of a task, by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from nobroker_django.byhand import enqueue_by_name
from nobroker_django.cli import arguments, values
from nobroker_django.cli.documents import job_document
from nobroker_django.commandline import NobrokerCommand, chosen_queues


class Command(NobrokerCommand):
    help = "Enqueue one call of a task: nobroker_enqueue app.tasks.f --args '[1]' --kwargs '{}'. Prints the job's id."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("task", help="name of the task, such as app.tasks.f")
        parser.add_argument(
            "--args", type=values.json_list, default=[], dest="task_args", metavar="JSON", help="positional arguments"
        )
        parser.add_argument(
            "--kwargs", type=values.json_object, default={}, dest="task_kwargs", metavar="JSON", help="named arguments"
        )
        parser.add_argument("-q", "--queue", metavar="NAME", help="another queue than the task's own")
        arguments.add_adding(parser)

    def run(self, options: dict[str, Any]) -> None:
        if options["queue"] is not None:
            chosen_queues([options["queue"]])
        queue, job = enqueue_by_name(
            options["task"],
            options["task_args"],
            options["task_kwargs"],
            queue_name=options["queue"],
            delay=options["delay"],
            priority=options["priority"],
            job_id=options["job_id"],
        )
        out = self.out
        if options["json"]:
            out.json({"queue": queue, "jobs": [job_document(job, queue)]})
        else:
            out.line(job.id)
        if not job.created:
            out.remark(f"job {job.id} was there already; nothing was added")
