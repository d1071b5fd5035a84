"""The queue itself: an append-only log in a file, without Django.

Read in this order, which is also the order of the imports: ``errors``, ``clock``, ``backoff``, ``files``, ``locks``,
``control``, ``framing``, ``payload``, ``job``, ``records``, ``log``, ``generations``, ``projection``, ``recovery``,
``session``, ``durability``, ``compaction``, ``queue``, ``worker``.
"""
