"""Django's SQLite backend takes every connection for usable; one to a server is asked."""

import sqlite3
from typing import Any

from django.db.backends.sqlite3 import base


class DatabaseWrapper(base.DatabaseWrapper):
    def is_usable(self) -> bool:
        connection: Any = self.connection
        try:
            connection.execute("SELECT 1")
        except sqlite3.Error:
            return False
        return True
