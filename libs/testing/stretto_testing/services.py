"""The services of a simulated installation, as they are, with settings for small jobs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from stretto_actuator.backend import Backend
from stretto_actuator.service import Actuator
from stretto_arbiter.service import Arbiter
from stretto_dispatcher.service import Dispatcher
from stretto_fitter.service import Fitter
from stretto_oom.service import Oom
from stretto_planner.service import Planner
from stretto_profiler.service import Profiler
from stretto_runtime import Service
from stretto_runtime.settings import ClusterSettings

from stretto_testing.simulation import URL

MEMORY_BYTES, START_CORES = 32 << 30, 0.1
"""Memory of the simulated cluster; cores of a pod that starts, if these are more than its plan gives."""
DECIDING: dict[type[Service], dict[str, Any]] = {
    Dispatcher: {"lease_timeout_s": 12.0},
    Profiler: {"window_s": 2.0},
    Fitter: {},
    Planner: {"window_s": 2.0, "ps_change_s": 2.0},
    Arbiter: {"settle_s": 5.0, "round_s": 1.0, "background_algorithm": ""},
    Oom: {},
}
"""Services without side effects, and their settings. No round is solved again: that takes a process of its own."""


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stretto-simulation-")  # it goes with the process


def folder() -> Path:
    """Return the folder where services would keep their spans."""
    return Path(_temporary().name)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one history, beside its faults. Every service has ``settings``.

    ``cores``: the capacity of the cluster; a job that starts takes one.
    """

    is_clustered: bool
    delay_s: float
    cores: float
    settings: Mapping[str, Any]

    @classmethod
    def drawn(cls, chance: Random) -> Conditions:
        """Draw conditions, most of them harsher than the defaults: small snapshots, slow lines, short leases."""
        settings = {
            "lease_s": chance.choice((0.5, 1.0, 2.0, 4.0)),
            "snapshot_inputs": chance.choice((1, 10, 200)),
            "snapshot_s": chance.choice((0.05, 0.3, 1.0)),
        }
        delay_s = chance.choice((0.0002, 0.001, 0.01, 0.04))
        return cls(chance.random() < 0.3, delay_s, chance.choice((1.0, 2.0, 8.0)), settings)

    def make(self, kind: type[Service]) -> Service:
        """Return a service without side effects."""
        return kind(self._settings(kind, **DECIDING[kind]))

    def maker(self, kind: type[Service]) -> Callable[[], Service]:
        """Return what makes a service without side effects."""
        return lambda: self.make(kind)

    def make_actuator(self, backend: Backend) -> Actuator:
        """Return an actuator whose pods are simulated."""
        settings = self._settings(Actuator, backend="docker", pod_image="simulated", start_cpu_cores=START_CORES)
        return Actuator(settings, backend)

    def _settings(self, kind: type[Service], **more: Any) -> Any:
        own: dict[str, Any] = {"nats_url": URL, "state_folder": folder(), "spans_per_s": 1e-9}
        if issubclass(kind.settings_type, ClusterSettings):
            own |= {"cpu_cores": self.cores, "memory_bytes": MEMORY_BYTES}
        return kind.settings_type(**own, **self.settings, **more)
