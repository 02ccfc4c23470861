"""The service and its tools, shared by all partitions of one replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto_bus.bus import Bus

from stretto_runtime.inputs import Routes
from stretto_runtime.owner.tenure.ownership import Ownership
from stretto_runtime.process.telemetry import Metrics
from stretto_runtime.service import Service
from stretto_runtime.spans.tracing import Tracing


def _unknown() -> None:
    return None


@dataclass(slots=True)
class Tools:
    """The dependencies of handling, live and in a replay."""

    service: Service
    routes: Routes
    metrics: Metrics
    tracing: Tracing


@dataclass(slots=True)
class Context(Tools):
    """The dependencies of one replica's partitions."""

    bus: Bus
    ownership: Ownership
    fullness: Callable[[], float | None] = _unknown
    """The used share of the bytes of the stream of facts"""
