"""Waits of tests for conditions, asked again and again. Their bound is for a machine that does much beside."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S, AGAIN_S = 60.0, 0.02


def late() -> object:
    """Return what is told of a condition that did not become true."""
    return "not in time"


def wait_until(condition: Callable[[], T], told: Callable[[], object] = late, limit_s: float = LIMIT_S) -> T:
    """Wait until the condition gives something true, and return it. ``told``: the message of the failure."""
    deadline_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, told()
        time.sleep(AGAIN_S)
    return found


async def until(
    condition: Callable[[], Awaitable[T] | T], told: Callable[[], object] = late, limit_s: float = LIMIT_S
) -> T:
    """Wait as ``wait_until`` does, while others go on; the condition may have to be awaited."""
    deadline_s = time.monotonic() + limit_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline_s, told()
        await asyncio.sleep(AGAIN_S)
