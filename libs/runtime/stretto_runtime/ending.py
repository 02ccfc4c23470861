"""How a task is ended by whoever started it."""

from __future__ import annotations

import asyncio
from typing import Any


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and return once it has ended, however.

    ``suppress(CancelledError): await task`` would swallow the cancelling of the caller, too, who then goes on for ever.
    """
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
