"""This queue as one more system of a peers' benchmark that registers its systems with ``@reg`` in ``adapters.py``.

Not imported by any test: append it to that file (``cat tests/bench/adapter.py >> adapters.py``), where ``reg``,
``Adapter`` and ``benchcore`` are.
"""


@reg  # type: ignore[name-defined]  # noqa: F821
class NobrokerDjango(Adapter):  # type: ignore[name-defined,misc]  # noqa: F821
    name = "nobroker-django"

    def open_cold(self):
        from nobroker_django import Queue

        self.q = Queue(self.d, fsync=self.durable, visibility_timeout=36000, lock_timeout=60)

    def enqueue(self, p):
        self.q.enqueue(p)

    def enqueue_many(self, ps):
        self.q.enqueue_many(ps)

    def take_and_ack(self):
        job = self.q.lease_one()
        if job is None:
            return 0
        self.q.ack(job)
        return 1

    def make_history(self, n):
        done = 0
        while done < n:
            jobs = self.q.lease(min(5000, n - done))
            self.q.ack_many(jobs)
            done += len(jobs)

    def stats(self):
        return self.q.stats()

    def close(self):
        self.q.close()

    def run_worker(self, conc, poll):
        from nobroker_django import Worker

        Worker(self.q, benchcore.hit, concurrency=conc, poll_interval=poll).run()  # type: ignore[name-defined]  # noqa: F821
