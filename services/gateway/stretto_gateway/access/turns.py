"""Turns of callers: one costly question of each at a time, so that a burst of one caller delays only itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turns:
    """One lock for each caller that asks now."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """The lock of a caller, and the number of its questions that hold it or wait for it."""

    @property
    def callers(self) -> int:
        """Return the number of callers that ask now."""
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
