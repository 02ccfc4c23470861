"""Warnings before an outage: stream almost full, certificate expiring; and the backlog of inputs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.writer import fullness_in
from stretto_wire.contract.registry import STREAM, TELEMETRY

from stretto_runtime.process.telemetry import Metrics

WARN_AT = 0.8
RENEWED_BEFORE_DAYS = 30

log = structlog.get_logger("stretto.warnings")


def ending(end_s: float, now: float) -> bool:
    """Return whether a certificate that ends at ``end_s`` needs renewal now."""
    return end_s - now < RENEWED_BEFORE_DAYS * 24 * 3600


class HealthWarnings:
    """Checks every ``every_s`` seconds. ``fullness`` is the used share of the stream's bytes, None if unknown.

    For a service that ``reads_telemetry``, ``reporting_pods`` is the number of pods in that stream.
    """

    def __init__(
        self,
        bus: Bus,
        metrics: Metrics,
        every_s: float = 60.0,
        reads_telemetry: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._bus = bus
        self._metrics = metrics
        self._every_s = every_s
        self._clock = clock
        self._logged: set[str] = set()
        self.fullness: float | None = None
        self.reporting_pods = 0
        self._reads_telemetry = reads_telemetry
        metrics.certificate_end.set_function(lambda: bus.connection.certificate_ends_s or math.inf)
        metrics.backlog.set_function(lambda: sum(consumer.waiting for consumer in bus.consumers))
        metrics.pauses.set_function(lambda: sum(consumer.pauses for consumer in bus.consumers))

    @property
    def warning(self) -> str:
        """The text for /readyz; empty while there is nothing."""
        return "; ".join(self._warnings().values())

    def _warnings(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.fullness is not None and self.fullness >= WARN_AT:
            found["stream"] = (
                f"the stream {STREAM} is {self.fullness:.0%} full; when it is full nothing goes on: raise its max_bytes"
            )
        end_s = self._bus.connection.certificate_ends_s
        if end_s is not None and ending(end_s, self._clock()):
            found["certificate"] = (
                f"the certificate that the bus showed when we connected ends on "
                f"{datetime.fromtimestamp(end_s, UTC):%Y-%m-%d}; then nobody connects any more: renew it and reload "
                "nats-server (`python -m stretto_installation keys FOLDER --tls HOST`, where that has made it)"
            )
        return found

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            try:
                info = await self._bus.ask(f"STREAM.INFO.{STREAM}")
                if self._reads_telemetry:
                    state = (await self._bus.ask(f"STREAM.INFO.{TELEMETRY}"))["state"]
                    self.reporting_pods = int(state.get("num_subjects", 0))
            except BusFault as fault:
                log.info("the size of the stream is unknown", fault=str(fault))
            else:
                self.fullness = fullness_in(info)
                self._metrics.stream_fullness.set(self.fullness or 0.0)
            found = self._warnings()
            for what in found.keys() - self._logged:
                log.warning(found[what])
            self._logged = {*found}
            await asyncio.sleep(self._every_s)
