"""The queue itself: an append-only log in a file, without Django.

Reading order, which is also the order of the imports:

* words everybody uses: ``wording``, ``errors``, ``clock``, ``options``, ``backoff``, ``thresholds``, ``failures``
* the operating system: ``libc``, ``files``, ``locks``, ``place``
* bytes and meanings: ``control``, ``framing``, ``payload``, ``records``, ``job``, ``transitions``
* files of one queue: ``generations``, ``log``, ``new_log``, ``lockfile``, ``bell``, ``liveness``, ``syncing``
* replayed state: ``selection``, ``schema``, ``unit``, ``projection``, ``cache``, ``snapshots``
* from one log to the next: ``copying``, ``leftovers``; ``beside``, ``passage``, ``flip``, ``compaction``
* who may write, and what is certain: ``recovery``, ``creation``, ``held``, ``session``,
  ``durability``, ``read_view``
* looking without taking part: ``inspection``, ``examination``, ``gaps``, ``findings``, ``comparison``,
  ``verification``; saving what is left: ``lenient``, ``remains``, ``rescue``, ``salvage``
* verbs: ``deciding``, ``core``, ``adding``, ``endings``, ``leasing``, ``looking``, ``queue``; for coroutines
  ``coroutines``, ``wake``, ``line``, ``offloop``, ``aio``; then ``upkeep``, ``worker``, ``worker_queue``
"""
