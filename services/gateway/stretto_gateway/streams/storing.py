"""The trial of the bus: does it store an entry of the gateway's own, which the next entry replaces?"""

from __future__ import annotations

import asyncio
from typing import NoReturn, Protocol

import structlog
from stretto_bus.faults import BusFault

EVERY_S = 5.0
AGAIN_S = 1.0
FAILURES = 2
"""Attempts in a row that fail before the bus counts as storing nothing: one may fall into a reconnect."""
REMEDY = (
    "the bus stores nothing, so jobs stand still and nothing can be changed: make room on its disk, or give it file "
    "descriptors; on one machine it is then restarted by itself, and so it is on Kubernetes by its probe"
)

log = structlog.get_logger("stretto.gateway")


class TriedBus(Protocol):
    """A bus that can be tried."""

    refuses: str
    """The reason why changes are refused at once; empty: none."""

    async def try_to_store(self) -> None:
        """Store an entry in place of the one before. Raises BusFault."""
        ...


async def try_again_and_again(bus: TriedBus) -> NoReturn:
    """Try for ever; ``bus.refuses`` says why the bus stores nothing."""
    failed = 0
    while True:
        try:
            await bus.try_to_store()
        except BusFault as fault:
            failed += 1
            if failed == FAILURES:
                bus.refuses = f"{REMEDY} ({fault})"
                log.error(bus.refuses)
        else:
            failed, bus.refuses = 0, ""
        await asyncio.sleep(AGAIN_S if failed else EVERY_S)
