"""How much memory this process occupies, for ``--max-memory``."""

from __future__ import annotations

import os


def resident_bytes() -> int | None:
    """Resident memory of this process in bytes; None where the system does not tell (no ``/proc``)."""
    # Second field of proc_pid_statm(5), in pages. getrusage() tells the highest value ever, which never goes down.
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
