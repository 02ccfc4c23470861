"""Warnings before an outage or a loss: stream almost full, certificate expiring, servers that sync less often than they
should; and the backlog of inputs."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.reading.servers import Lag, ask_servers, contradiction, lags_in, loss_of_power
from stretto_bus.writer import SYNC_METADATA, fullness_in
from stretto_wire.contract.registry import STATE, STREAM, TELEMETRY
from stretto_wire.surroundings import wall_s

from stretto_runtime.process.telemetry import Metrics

WARN_AT = 0.8
RENEWED_BEFORE_DAYS = 30

log = structlog.get_logger("stretto.warnings")


def ending(end_s: float, now: float) -> bool:
    """Return whether a certificate that ends at ``end_s`` needs renewal now."""
    return end_s - now < RENEWED_BEFORE_DAYS * 24 * 3600


class HealthWarnings:
    """Checks every ``every_s`` seconds. ``fullness`` is the used share of the stream's bytes, None if unknown.
    ``power`` says what a loss of power costs, as verified with the servers; empty before the first look.

    For a service that ``reads_telemetry``, ``reporting_pods`` is the number of pods in that stream.
    """

    def __init__(
        self,
        bus: Bus,
        metrics: Metrics,
        every_s: float = 60.0,
        reads_telemetry: bool = False,
        clock: Callable[[], float] = wall_s,
    ) -> None:
        self._bus = bus
        self._metrics = metrics
        self._every_s = every_s
        self._clock = clock
        self._logged: set[str] = set()
        self.fullness: float | None = None
        self.reporting_pods = 0
        self.power = ""
        self._syncs_less = ""
        self._lags: dict[str, list[Lag]] = {}
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
        if self._syncs_less:
            found["power"] = self._syncs_less
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
                await self._look_at_servers(info["config"])
            if self._bus.clustered:
                await self._look_at_replicas()
            found = self._warnings()
            for what in found.keys() - self._logged:
                log.warning(found[what])
            self._logged = {*found}
            await asyncio.sleep(self._every_s)

    async def _look_at_servers(self, config: Mapping[str, Any]) -> None:
        """Ask the servers what they do, and compare that with the ``config`` of the stream."""
        setting = config.get("metadata", {}).get(SYNC_METADATA, "")
        try:
            servers = await ask_servers(self._bus)
        except BusFault as fault:
            self.power = f"not verified: {fault}"
            self._syncs_less = f"whether servers sync their disks ({setting}) is {self.power}" if setting else ""
            return
        self.power = loss_of_power(servers, int(config.get("num_replicas", 1)))
        self._syncs_less = contradiction(setting, servers)

    async def _look_at_replicas(self) -> None:
        """Note how far the replicas of log and bucket are behind; a stream that nobody leads keeps its last note."""
        for stream in (STREAM, STATE):
            with contextlib.suppress(BusFault):
                self._lags[stream] = lags_in(await self._bus.ask(f"STREAM.INFO.{stream}"))
        self._metrics.replica_lag.clear()  # a server that was replaced under another name is told no more
        for stream, lags in self._lags.items():
            for lag in lags:
                self._metrics.replica_lag.labels(self._metrics.service, stream, lag.server).set(lag.entries)
