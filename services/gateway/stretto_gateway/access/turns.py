"""Turns of callers: each caller has one costly question answered at a time, so that a burst delays only its sender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turns:
    """Locks of the callers whose questions are being answered or wait, one for each caller."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """The lock of a caller, and the number of its questions that hold it or wait for it."""

    @property
    def callers(self) -> int:
        """Return the number of callers with an unanswered question."""
        return len(self._locks)

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncGenerator[None]:
        """Wait until no other question of this caller is being answered."""
        lock, count = self._locks.get(caller, (asyncio.Lock(), 0))
        self._locks[caller] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            count = self._locks[caller][1] - 1
            if count:
                self._locks[caller] = lock, count
            else:
                del self._locks[caller]
