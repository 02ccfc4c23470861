"""End tasks, by whoever started them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(stop: asyncio.Event, reaching: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of ``reaching``, which may take for ever; None if ``stop`` is set first."""
    task, stopped = asyncio.create_task(reaching), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (stopped, task):
            await end(each)


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and return once it has ended.

    ``suppress(CancelledError): await task`` would swallow the cancellation of the caller too, which then runs on.
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
