"""Damage of the stored streams, looked for once the gateway has read its events, and each day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, Protocol

import structlog
from stretto_bus.faults import BusFault
from stretto_bus.reading.damage import UNREAD, Damage
from stretto_wire.contract.registry import AUDIT, DEAD_LETTERS, STATE, STREAM

LOOKED_AT = (STREAM, STATE, DEAD_LETTERS, AUDIT)
"""The streams without TELEMETRY: its reports go within the hour."""
DAY_S, AGAIN_S, READY_POLL_S = 24 * 3600.0, 60.0, 0.1
WAY_ON = (
    "everything else goes on; `stretto status`, or the alert StrettoStreamDamaged, names subjects and jobs, and "
    "`stretto backup FOLDER --verify` the backup that has them"
)
log = structlog.get_logger("stretto.gateway")


class DamagedStreams(Protocol):
    """A bus that finds the damage of a stream."""

    async def damage(self, stream: str) -> Damage | None:
        """Return the damage of a stream; None: all its messages can be read."""
        ...


class Soundness:
    """Damage of each stream, as it was last found. ``ready``: whether looking may begin."""

    def __init__(self, bus: DamagedStreams, ready: Callable[[], bool]) -> None:
        self._bus, self._ready = bus, ready
        self._one_at_a_time = asyncio.Lock()
        self._unknown = dict.fromkeys(LOOKED_AT, UNREAD)
        """A sentence for each stream that was never looked at with success."""
        self.damages: dict[str, Damage] = {}

    @property
    def warnings(self) -> list[str]:
        """Return a sentence for each damaged stream, which names no job, and for each stream of which nothing is known.

        ``UNREAD`` is among them until each stream was tried.
        """
        found = [f"{damage.place}: {WAY_ON}" for damage in self.damages.values()]
        return [*found, *dict.fromkeys(self._unknown.values())]

    async def run(self) -> None:
        """Look for ever; log each damage once."""
        while not self._ready():
            await asyncio.sleep(READY_POLL_S)
        await asyncio.gather(*(self._watch(stream) for stream in LOOKED_AT))

    async def _watch(self, stream: str) -> NoReturn:
        """Look each day; after a fault soon, and after each further one twice as late, so that the bus can rest."""
        again_s = AGAIN_S
        while True:
            async with self._one_at_a_time:
                known = await self._look(stream)
            await asyncio.sleep(DAY_S if known else again_s)
            again_s = AGAIN_S if known else min(2 * again_s, DAY_S)

    async def _look(self, stream: str) -> bool:
        """Return whether the damage of a stream is known now; after a fault, what was last found stays."""
        try:
            found = await self._bus.damage(stream)
        except BusFault as fault:
            log.info("damage of a stream is not known", stream=stream, fault=str(fault))
            if stream in self._unknown:
                self._unknown[stream] = f"the stream {stream} could not be looked at: whether it is whole is not known"
            return False
        self._unknown.pop(stream, None)
        if found is None:
            self.damages.pop(stream, None)
        elif found != self.damages.get(stream):
            log.error(str(found))
            self.damages[stream] = found
        return True
