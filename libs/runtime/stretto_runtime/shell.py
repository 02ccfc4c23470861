"""What all partitions of one replica share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto_runtime.bus import Bus
from stretto_runtime.inputs import Routes
from stretto_runtime.ownership import Ownership
from stretto_runtime.telemetry import Metrics, Tracing

if TYPE_CHECKING:
    from stretto_runtime.service import Service


@dataclass(slots=True)
class Shell:
    """A service and its tools."""

    service: Service
    bus: Bus
    ownership: Ownership
    routes: Routes
    metrics: Metrics
    tracing: Tracing
