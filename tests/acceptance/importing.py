"""Imported by workers of some tests: what happens then, the test says in the environment.

``NOBROKER_TESTS_WHILE_IMPORTING``: ``wait`` (for ``importing.go``, after leaving ``importing.started``), ``exit``,
``die``, or ``register`` (a function that leaves ``exit.trace`` when the process ends).
"""

import atexit
import os
import sys
from pathlib import Path

from .jobs import trace, wait_for

place = Path(os.environ["NOBROKER_TESTS_DIR"])

match os.environ.get("NOBROKER_TESTS_WHILE_IMPORTING", "") if "nobroker_work" in sys.argv else "":
    case "wait":
        trace(place / "importing.started", str(os.getpid()))
        wait_for((place / "importing.go").exists)
    case "exit":
        sys.exit(3)
    case "die":
        os._exit(9)
    case "register":
        atexit.register(trace, place / "exit.trace", str(os.getpid()))
