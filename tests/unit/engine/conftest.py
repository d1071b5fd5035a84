"""The same queues, clock and closing as for the tests of the contract."""

from tests.contract.conftest import clock, memory_dir, open_queue, queue

__all__ = ["clock", "memory_dir", "open_queue", "queue"]
