"""Jobs of a transaction kept in its own database until they are in the log: the app behind ``NOBROKER["OUTBOX"]``.

The log cannot join the transaction of a database. Without this app, a process that dies between the commit and the
write to the log takes the job with it. With it, ``enqueue`` inside a transaction inserts a row there and then; after
the commit the row is written to the log, and deleted once that is durable. Rows that stayed are swept by workers.

A write may so come twice; the engine (``engine.once``) sees to it that the jobs are there once.

Reading order: ``rows``, ``models``, ``holding``, ``sweeping``, ``operating``.
"""
