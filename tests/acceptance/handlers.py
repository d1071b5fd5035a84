"""A log handler for the project of the acceptance tests."""

import logging
import os
from pathlib import Path

from .jobs import trace, wait_for


class Slow(logging.Handler):
    """As one that sends a mail through a server that does not answer: it waits for ``handler.go``."""

    def emit(self, record: logging.LogRecord) -> None:
        place = Path(os.environ["NOBROKER_TESTS_DIR"])
        trace(place / "handler.started", record.getMessage())
        wait_for((place / "handler.go").exists)
        trace(place / "handler.ended", record.getMessage())
