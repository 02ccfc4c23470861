"""Gateways of a simulation: replicas as they are, but for HTTP, and whoever sends them requests until one answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pydantic import TypeAdapter
from stretto_bus.faults import BusFault
from stretto_bus.received import header_lines
from stretto_gateway.__main__ import follow
from stretto_gateway.problems import Problem
from stretto_gateway.read_model.projection import Projection
from stretto_gateway.service import Gateway
from stretto_gateway.settings import GatewaySettings
from stretto_gateway.streams import bus as gateway_bus
from stretto_gateway.streams.stored_events import trace_id_of
from stretto_gateway.streams.storing import try_again_and_again
from stretto_runtime.spans.tracing import Tracing
from stretto_wire.contract.registry import parse
from stretto_wire.errors import WireError
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.rest.views import JobView
from stretto_wire.surroundings import new_id, wall_s

from stretto_testing.jetstream.streams import KeptStream

OF_REPORTS = {
    "pods": [
        *("cpu_used_cores", "memory_used_bytes", "samples_total", "step_bytes", "step_bytes_exact", "reported_at_s"),
        *("update_time_s", "categories", "buckets", "cold_rows", "log_bytes", "spill_fault", "warm_rows", "warm_bytes"),
        *("row_bytes", "batches_per_s"),
    ],
    "phases": ["reports", "longest_gap_s", "longest_gap_pod"],
    "migrations": ["longest_gap_s"],
}
"""Fields of a view that follow from the reports of pods, of which a gateway reads only what is kept when it starts"""
VIEW: TypeAdapter[JobView] = TypeAdapter(JobView)


class SimulatedGateway:
    """A replica of the gateway: its process, and the next one each time that its process has ended."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.gateway: Gateway | None = None
        self._settings = settings

    async def run(self) -> None:
        """Serve for ever."""
        settings = self._settings
        tracing = Tracing("gateway", settings.state_folder, settings.spans_bytes, settings.spans_per_s)
        stream = gateway_bus.StreamBus(tracing)
        self.gateway = Gateway(stream, settings, wall_s)
        await asyncio.gather(follow(self.gateway, stream, settings), try_again_and_again(stream))

    async def submit(self, spec: JobSpec) -> bool:
        """Submit a job; return whether the gateway has accepted it."""
        if self.gateway is None:
            return False
        try:
            await self.gateway.submissions.submit(spec, "somebody")
        except (Problem, BusFault):
            return False
        return True

    def views(self) -> dict[str, Any]:
        """Return what the gateway shows of each job."""
        return {} if self.gateway is None else shown(self.gateway.follower.projection)


def told_by(stream: KeptStream) -> Projection:
    """Return the projection of everything that a stream of facts holds now."""
    projection = Projection()
    for kept in stream:
        if ".evt." in kept.subject:
            trace = trace_id_of(header_lines(kept.block.decode().partition("\r\n")[2]).get("traceparent", ""))
            with contextlib.suppress(WireError):
                projection.apply(parse(kept.subject, kept.data), kept.seq, kept.time_ns / 1e9, trace)
    return projection


def shown(projection: Projection) -> dict[str, Any]:
    """Return the views of jobs without what follows from reports."""
    found: dict[str, Any] = {}
    for name, view in projection.jobs.items():
        document = VIEW.dump_python(view, mode="json")
        for part, fields in OF_REPORTS.items():
            values = document[part]
            for value in values.values() if isinstance(values, dict) else values:
                for field in fields:
                    value.pop(field)
        found[name] = document
    return found


@contextlib.contextmanager
def seeded() -> Generator[None]:
    """Let the ids of gateways come from the seed: they are secrets, against strangers that no simulation has."""
    ids = SimpleNamespace(token_hex=lambda size: new_id(2 * size))
    with mock.patch.object(gateway_bus, "secrets", ids):
        yield
