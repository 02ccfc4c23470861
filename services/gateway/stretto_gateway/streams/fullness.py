"""Used shares of the streams that refuse when they are full, and the warnings before that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn, Protocol

import structlog
from stretto_bus.faults import BusFault
from stretto_runtime.process.health_warnings import WARN_AT
from stretto_wire.contract.registry import AUDIT, STATE

CONSEQUENCES = {
    AUDIT: "the audit log is {share:.0%} full; when it is full, changes are in the gateway's own log only: export it, "
    "and shorten STRETTO_STREAMS_AUDIT_KEPT_S",
    STATE: "the saved state of the services is {share:.0%} full; above 90% no new job is taken: raise "
    "STRETTO_STREAMS_STATE_MAX_BYTES",
}
"""Warning about each stream."""
log = structlog.get_logger("stretto.gateway")


class StreamSizes(Protocol):
    """A bus that tells how full a stream is."""

    async def fullness(self, stream: str) -> float:
        """Return the used share of the stream's bytes; 0 without a bound."""
        ...


class Fullness:
    """Used shares of the streams, read every ``every_s`` seconds; ``shares`` has each stream that could be read."""

    def __init__(self, sizes: StreamSizes, every_s: float) -> None:
        self._sizes, self._every_s = sizes, every_s
        self.shares: dict[str, float] = {}

    async def run(self) -> NoReturn:
        """Read the shares for ever, and log each new warning."""
        warned: set[str] = set()
        while True:
            for stream in CONSEQUENCES:
                try:
                    self.shares[stream] = await self._sizes.fullness(stream)
                except BusFault as fault:  # the last known share stays valid
                    log.info("the size of a stream is unknown", stream=stream, fault=str(fault))
            found = warnings(self.shares)
            for stream in found.keys() - warned:
                log.warning(found[stream])
            warned = {*found}
            await asyncio.sleep(self._every_s)


def warnings(shares: Mapping[str, float]) -> dict[str, str]:
    """Return the warning about each stream that is almost full."""
    return {name: CONSEQUENCES[name].format(share=share) for name, share in shares.items() if share >= WARN_AT}
