"""Imported by workers of some tests: what happens then, the test says in the environment.

``NOBROKER_TESTS_WHILE_IMPORTING``: ``wait`` (for ``importing.go``, after leaving ``importing.started``), ``exit``,
``die``, ``one dies`` (the first process to come), ``register`` (a function that leaves ``exit.trace`` when the process
ends), ``hang`` (such a function that does not return), or ``fail`` (while there is a file ``broken``).
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
    case "one dies":
        try:
            (place / "first").touch(exist_ok=False)
        except FileExistsError:
            wait_for(lambda: "ready for" in (place / "output0").read_text())
            trace(place / "died", str(os.getpid()))
            if len((place / "died").read_text().splitlines()) <= 4:
                os._exit(9)
    case "fail":
        if (place / "broken").exists():
            raise ValueError("half a deploy")
    case "hang":
        atexit.register(wait_for, (place / "never").exists)
    case "register":
        atexit.register(trace, place / "exit.trace", str(os.getpid()))
