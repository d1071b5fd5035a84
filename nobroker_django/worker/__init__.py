"""``nobroker_work``: a supervisor process and its children.

``options`` what was asked for; ``console`` the lines on standard output; ``shutdown`` signals as bytes in a pipe,
and the orders of the supervisor; ``budget`` how many jobs are left; ``damaged`` which queues cannot be worked on;
``heartbeat`` leases of running jobs; ``turns`` which queue is asked next; ``fetcher`` from the queues to the threads;
``child`` one process; ``supervisor`` all of them.
"""
