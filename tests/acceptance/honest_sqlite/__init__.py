"""A database backend for a test: SQLite whose connections can be found broken, as those of a server can."""
