"""Damage of the stored streams, looked for once the gateway has read its events, and each day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, Protocol

import structlog
from stretto_bus.damage import UNREAD, Damage
from stretto_bus.faults import BusFault
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
        self._looked = False
        self.damages: dict[str, Damage] = {}

    @property
    def warnings(self) -> list[str]:
        """Return a sentence for each damaged stream, which names no job, and one until all streams were looked at."""
        found = [f"{damage.place}: {WAY_ON}" for damage in self.damages.values()]
        return found if self._looked else [*found, UNREAD]

    async def run(self) -> NoReturn:
        """Look for ever; log each damage once."""
        while not self._ready():
            await asyncio.sleep(READY_POLL_S)
        while True:
            all_known = True
            for stream in LOOKED_AT:
                try:
                    found = await self._bus.damage(stream)
                except BusFault as fault:  # what was last found stays
                    log.info("damage of a stream is not known", stream=stream, fault=str(fault))
                    all_known = False
                    continue
                if found is None:
                    self.damages.pop(stream, None)
                elif found != self.damages.get(stream):
                    log.error(str(found))
                    self.damages[stream] = found
            self._looked = self._looked or all_known
            await asyncio.sleep(DAY_S if all_known else AGAIN_S)
