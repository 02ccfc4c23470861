"""How full the stream is, told before it refuses (a full stream stops every service), and how far we are behind."""

from __future__ import annotations

import asyncio

import structlog

from stretto_runtime.bus import EVENTS, Bus
from stretto_runtime.faults import BusFault
from stretto_runtime.telemetry import Metrics

WARN_AT = 0.8

log = structlog.get_logger("stretto.fullness")


class Fullness:
    """Looks every ``every_s`` seconds. ``fraction``: of the stream's bytes; None: not known (yet), or no bound."""

    def __init__(self, bus: Bus, metrics: Metrics, every_s: float = 60.0) -> None:
        self._bus = bus
        self._metrics = metrics
        self._every_s = every_s
        self.fraction: float | None = None
        metrics.backlog.set_function(lambda: sum(tail.waiting for tail in bus.tails))
        metrics.pauses.set_function(lambda: sum(tail.pauses for tail in bus.tails))

    @property
    def warning(self) -> str:
        """What /readyz tells; empty while there is room."""
        if self.fraction is None or self.fraction < WARN_AT:
            return ""
        return f"the stream {EVENTS} is {self.fraction:.0%} full; when it is full nothing goes on: raise its max_bytes"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                info = await self._bus.ask(f"STREAM.INFO.{EVENTS}")
            except BusFault as fault:
                log.info("cannot see how full the stream is", fault=str(fault))
            else:
                bound, warned = int(info["config"].get("max_bytes", -1)), bool(self.warning)
                self.fraction = int(info["state"]["bytes"]) / bound if bound > 0 else None
                self._metrics.stream_fullness.set(self.fraction or 0.0)
                if self.warning and not warned:
                    log.warning(self.warning)
            await asyncio.sleep(self._every_s)
