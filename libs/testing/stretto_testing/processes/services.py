"""The services of a simulated installation, as they are, with settings for small jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from stretto_actuator.backend import Backend
from stretto_actuator.service import Actuator
from stretto_arbiter.service import Arbiter
from stretto_checkpoints.service import Checkpoints
from stretto_dispatcher.service import Dispatcher
from stretto_fitter.service import Fitter
from stretto_gateway.settings import GatewaySettings
from stretto_oom.service import Oom
from stretto_planner.service import Planner
from stretto_profiler.service import Profiler
from stretto_runtime import Service
from stretto_runtime.settings import ClusterSettings
from stretto_wire.surroundings import chance as current_chance

from stretto_testing.simulation import URL

MEMORY_BYTES, START_CORES = 32 << 30, 0.1
"""Memory of the simulated cluster; cores of a pod that starts, if these are more than its plan gives."""
PACES = ((1, 0.05), (10, 0.3), (200, 1.0), (10**6, 60.0))
"""Inputs and seconds after which a replica saves a snapshot. What the last one leaves its successor decides again."""


class SimulatedCheckpoints(Checkpoints):
    """Checkpoints as they are, but for the check of the store, which takes a thread of its own: a folder is there."""

    lacks = ""

    async def opened(self) -> None:
        """Do nothing."""


DECIDING: dict[type[Service], dict[str, Any]] = {
    Dispatcher: {"lease_timeout_s": 12.0},
    Profiler: {"window_s": 2.0},
    Fitter: {},
    Planner: {"window_s": 2.0, "ps_change_s": 2.0},
    Arbiter: {"settle_s": 5.0, "round_s": 1.0, "background_algorithm": ""},
    Oom: {},
    SimulatedCheckpoints: {"poll_s": 0.5},
}
"""Services and their settings. No round is solved again: that takes a process of its own."""


def folder_of(seed: int) -> Path:
    """Return the folder of a history: the streams name it, so it has the same name in each process."""
    return Path(tempfile.gettempdir(), f"stretto-simulation.{os.getuid()}", str(seed))


@contextlib.contextmanager
def own(folder: Path) -> Generator[None]:
    """Give a history its folder, empty, and remove it at the end. Two histories of one seed wait for each other."""
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one history, beside its faults. Every service has ``settings``; each replica draws its pace.

    ``cores``: the capacity of the cluster; a job that starts takes one. ``window_s``: how long the server remembers
    ids; while it does so for a shorter time than an owner is away, nobody else may let an output be stored twice.
    ``lag_share``: share of readers whose server, one of a cluster, believes that it holds nothing of what they ask for.
    """

    is_clustered: bool
    delay_s: float
    cores: float
    settings: Mapping[str, Any]
    window_s: float
    lag_share: float
    folder: Path
    given: Mapping[str, Mapping[str, Any]]
    """Service -> settings that whoever asks for the history gives"""

    @classmethod
    def drawn(cls, chance: Random, folder: Path, given: Mapping[str, Mapping[str, Any]]) -> Conditions:
        """Draw conditions, most of them harsher than the defaults: small snapshots, slow lines, short leases."""
        settings = {"lease_s": chance.choice((0.5, 1.0, 2.0, 4.0))}
        delay_s = chance.choice((0.0002, 0.001, 0.01, 0.04))
        is_clustered, cores = chance.random() < 0.3, chance.choice((1.0, 2.0, 8.0))
        window_s = chance.choice((0.1, 1.0, 120.0))
        return cls(is_clustered, delay_s, cores, settings, window_s, 0.2 if is_clustered else 0.0, folder, given)

    def make(self, kind: type[Service]) -> Service:
        """Return a service."""
        return kind(self._settings(kind, **DECIDING[kind]))

    def maker(self, kind: type[Service]) -> Callable[[], Service]:
        """Return what makes a service."""
        return lambda: self.make(kind)

    def make_actuator(self, backend: Backend) -> Actuator:
        """Return an actuator whose pods are simulated."""
        settings = self._settings(Actuator, backend="docker", pod_image="simulated", start_cpu_cores=START_CORES)
        return Actuator(settings, backend)

    def gateway(self) -> GatewaySettings:
        """Return the settings of a gateway, at which everybody is an admin."""
        given: dict[str, Any] = {"token": "", **self.given.get("gateway", {})}
        return GatewaySettings(nats_url=URL, state_folder=self.folder, spans_per_s=1e-9, **given)

    def _settings(self, kind: type[Service], **more: Any) -> Any:
        snapshot_inputs, snapshot_s = current_chance().choice(PACES)
        own: dict[str, Any] = {"nats_url": URL, "state_folder": self.folder, "spans_per_s": 1e-9}
        own |= {"snapshot_inputs": snapshot_inputs, "snapshot_s": snapshot_s}
        if issubclass(kind.settings_type, ClusterSettings):
            own |= {"cpu_cores": self.cores, "memory_bytes": MEMORY_BYTES}
        return kind.settings_type(**{**own, **self.settings, **more, **self.given.get(kind.name, {})})
