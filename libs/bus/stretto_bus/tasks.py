"""How a task is ended by whoever started it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(stop: asyncio.Event, reaching: Coroutine[Any, Any, T]) -> T | None:
    """What comes of ``reaching``, which may take for ever; None: told to stop before."""
    task, stopped = asyncio.create_task(reaching), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (stopped, task):
            await end(each)


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
