"""``nobroker_work``: a supervisor process and its children.

``options`` what was asked for; ``console`` the lines on standard output, ``tally`` the counts behind them;
``shutdown`` signals as bytes in a pipe, and the orders of the supervisor; ``notices`` what a child tells it;
``budget`` how many jobs are left; ``damaged`` which queues cannot be worked on.

In a child: ``places`` where jobs run, ``guards`` and ``soft_limits`` what stands around them, ``desk`` one queue and
what is under way there, ``clerk`` the thread that talks to the queues, ``confirming`` the one that syncs, ``child``
the process. ``watch`` is what the supervisor does at the queues, ``supervisor`` the process that was started,
``upkeep`` the one that compacts.
"""
