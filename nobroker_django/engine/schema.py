"""The tables of a projection, and the words in which they are read and written.

``FORMAT`` is raised with every change of the tables or of what the transitions make of a record: a file of another
format is thrown away and built anew.
"""

from __future__ import annotations

from dataclasses import fields

from .transitions import DEAD, DUE, LEASED, WAITING, Row

FORMAT = 7
STATES = ("waiting", "due", "leased", "done", "dead")
COLUMNS = tuple(field.name for field in fields(Row))
# Set by a job's first record and never changed.
FIXED = frozenset(("seq", "id", "priority", "enqueued_at", "visibility_timeout", "payload_offset", "task"))
SCHEMA = f"""
CREATE TABLE meta (
    format INTEGER, generation INTEGER, log_id INTEGER, applied INTEGER, head_offset INTEGER, head BLOB,
    base INTEGER, open_seq INTEGER, clock REAL, enqueued_total INTEGER, ignored INTEGER, promoted REAL,
    waiting INTEGER, due INTEGER, leased INTEGER, done INTEGER, dead INTEGER, closed_at REAL
);
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state INTEGER NOT NULL, priority INTEGER NOT NULL,
    rank REAL NOT NULL, available_at REAL NOT NULL, waits INTEGER NOT NULL, enqueued_at REAL NOT NULL,
    attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL, lease_deadline REAL, lease_token TEXT,
    holder TEXT, started_at REAL, extensions INTEGER NOT NULL, deaths INTEGER NOT NULL, visibility_timeout REAL,
    payload_offset INTEGER NOT NULL, result_offset INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    finished_at REAL, keep_until REAL, task TEXT, error_class TEXT, last_error TEXT
);
CREATE INDEX jobs_due ON jobs (priority DESC, rank, seq) WHERE state = {DUE};
CREATE INDEX jobs_waiting ON jobs (available_at) WHERE state = {WAITING};
CREATE INDEX jobs_leased ON jobs (lease_deadline) WHERE state = {LEASED};
CREATE INDEX jobs_held ON jobs (holder) WHERE holder IS NOT NULL;
CREATE INDEX jobs_task ON jobs (task, seq) WHERE task IS NOT NULL;
CREATE INDEX jobs_failed ON jobs (error_class, seq) WHERE error_class IS NOT NULL;
CREATE INDEX jobs_dead ON jobs (seq) WHERE state = {DEAD};
CREATE TABLE failures (job INTEGER NOT NULL, at_offset INTEGER NOT NULL, PRIMARY KEY (job, at_offset)) WITHOUT ROWID;
"""
META = (
    "generation", "log_id", "applied", "head_offset", "head", "base", "open_seq", "clock", "enqueued_total",
    "ignored", "promoted",
    *STATES,
)  # fmt: skip
SELECT_META = f"SELECT format, {', '.join(META)} FROM meta"
UPDATE_META = f"UPDATE meta SET {', '.join(f'{name} = ?' for name in META)}"


class Stale(Exception):
    """The file does not describe this log, or is damaged: a new one has to be built."""
