"""How a coroutine waits for another thread: without blocking its event loop, and with an answer to a cancellation.

Nothing belongs to one event loop: each ``Signal`` knows the loop that it was made in, and may be set from any thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Signal:
    """A flag that one coroutine waits for, and that any thread may set. Made inside the coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        """Let the coroutine go on."""
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            pass  # the loop was closed: nobody waits

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    @property
    def is_awaited(self) -> bool:
        """Whether the coroutine can go on at all: False while its event loop stands still."""
        return self._loop.is_running()

    @property
    def is_orphaned(self) -> bool:
        """Whether the coroutine will never go on: its event loop was closed."""
        return self._loop.is_closed()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it is set, or until ``seconds`` have passed."""
        await asyncio.wait([self._future], timeout=seconds)

    async def wait_through(self) -> asyncio.CancelledError | None:
        """Wait until it is set, whatever cancels the task meanwhile; the first cancellation, which is put off."""
        cancelled: asyncio.CancelledError | None = None
        while not self._future.done():
            try:
                await self.wait()
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        return cancelled


async def settle(call: Future[T], *, droppable: bool) -> asyncio.CancelledError | None:
    """Wait until a call in another thread is over, also when the task is cancelled meanwhile.

    Args:
        droppable: whether a cancellation may drop the call while it has not begun.

    Returns:
        The cancellation that came meanwhile; the call is over all the same.

    Raises:
        asyncio.CancelledError: the call was dropped and will never begin.
    """
    signal = Signal()
    call.add_done_callback(lambda _: signal.set())
    try:
        await signal.wait()
    except asyncio.CancelledError as cancelled:
        if droppable and call.cancel():
            raise
        await signal.wait_through()
        return cancelled
    return None
