"""The replayed state in a dictionary: what the transitions are tried on."""


class Memory:
    """The state in a dictionary."""

    def __init__(self):
        self.base, self.open_seq, self.clock, self.enqueued_total, self.ignored = 0, 0, 0.0, 0, 0
        self.promoted = 0.0
        self.rows = {}
        self.failures = []

    def find(self, job_id):
        return self.rows.get(job_id)

    def add(self, row):
        self.rows[row.id] = row

    def remove(self, row):
        del self.rows[row.id]

    def change(self, row, state):
        row.state = state

    def add_failure(self, row, offset):
        row.failures += 1
        self.failures.append((row.id, offset))

    def clear(self):
        self.rows.clear()
