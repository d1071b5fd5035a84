"""An event loop for one test."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from .procs import PATIENCE


def run(work: Coroutine[Any, Any, Any], *, debug: bool = True) -> Any:
    """``asyncio.run`` in debug mode, without the remarks on slow steps, which a busy machine provokes.

    Raises:
        TimeoutError: it waits for what does not come.
    """

    async def main() -> Any:
        asyncio.get_running_loop().slow_callback_duration = PATIENCE
        return await asyncio.wait_for(work, PATIENCE)

    return asyncio.run(main(), debug=debug)
