"""Real servers with real memory limits: profiler, watch, arbiter and actuator on a bus, pods in control groups."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_actuator.local.backend import LocalBackend
from stretto_actuator.local.control_groups import Cgroups
from stretto_actuator.service import Actuator
from stretto_actuator.settings import ActuatorSettings
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_bus import Client
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import PlanApplied, PodExited
from stretto_messages.arbiter import PlanDecided
from stretto_messages.gateway import JobCancelled
from stretto_messages.oom import OomForecast
from stretto_messages.planner import PlanProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_oom.service import Oom
from stretto_oom.settings import OomSettings
from stretto_profiler.service import Profiler
from stretto_profiler.settings import ProfilerSettings
from stretto_runtime import Runner

from tests.integration.pods import end_pods
from tests.live_bus import plan_of, progressed, python_of, submission

POD = Path(__file__).with_name("growing_pod.py")
MIB, GIB = 2**20, 2**30
WINDOW_S = 0.5
BUSY_S = 5.0
START_S = 180.0
SAMPLES = 1_000_000

Floats = NDArray[np.float64]


def missing() -> str:
    """Why there can be no real memory limits here; empty where there can."""
    return "" if Cgroups.find("stretto-memory-probe").has("memory") else "no writable memory control group"


@dataclass
class Growth:
    """Memory of one job: ``used`` and ``tables`` bytes and ``rows`` of each server [servers, moments]."""

    job: str
    used: Floats
    tables: Floats
    rows: Floats
    limit: int
    row_bytes: float


@dataclass
class Seen:
    """Result of a job."""

    exits: list[str] = field(default_factory=list[str])
    limits: list[int] = field(default_factory=list[int])
    forecasts: list[OomForecast] = field(default_factory=list[OomForecast])
    measured: int = 0
    decided: int = 0
    applied: int = 0
    """Versions of the latest plan that was decided, and that was applied: one that another overtakes never is."""


class MemoryStage:
    """The services in this process; time runs ``lead_s`` / 30 times as fast as with their defaults."""

    def __init__(self, folder: Path, lead_s: float = 2.5) -> None:
        self.folder = folder
        self.lead_s = lead_s
        self.seen: dict[str, Seen] = {}
        self._running: list[tuple[Runner, asyncio.Task[None]]] = []

    async def __aenter__(self) -> MemoryStage:
        self.server = EmbeddedServer(self.folder / "nats")
        await self.server.start()
        self.client = await Client.connect(self.server.url, self.server.login())
        await provision(self.client.bus)
        self.curves = self.folder / "curves"
        self.curves.mkdir()
        python = python_of(self.folder / "growing-python", POD)
        assert self.server.keys is not None
        lead_s = self.lead_s
        self._start(Profiler, ProfilerSettings, window_s=WINDOW_S)
        watch = {"lead_s": lead_s, "move_lead_s": 2 * lead_s, "repeat_s": 1.0, "shrink_patience_s": 2 * lead_s}
        self._start(Oom, OomSettings, **watch)
        cluster = {"cpu_cores": 1000.0, "memory_bytes": 1024 * GIB}
        self._start(Arbiter, ArbiterSettings, shrink_after_s=2 * lead_s, **cluster)
        start = {
            "signing_key_file": self.server.keys.signing_file,
            "pod_python": python,
            "local_writable": str(self.curves),
            "poll_s": 0.1,
            "stop_grace_s": 1.0,
        }
        self._start(Actuator, ActuatorSettings, **start)
        self._following = asyncio.create_task(self._follow())
        return self

    def _start(self, service: type, settings_type: type, **settings: Any) -> None:
        own = settings_type(
            nats_url=self.server.url,
            nats_credentials=self.server.login(service.name).credentials,
            state_folder=self.folder / "state",
            **settings,
        )
        runner = Runner(service(own))
        self._running.append((runner, asyncio.create_task(runner.run())))

    async def __aexit__(self, *exc: object) -> None:
        for job in self.seen:
            await self.client.publish(JobCancelled(job=job))
        backend = LocalBackend(self.folder / "state")
        for _ in range(100):
            if not await backend.list():
                break
            await asyncio.sleep(0.05)
        for runner, task in self._running:
            runner.stop()
            await task
        await end_pods(self.folder / "state")
        self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following
        await self.client.close()
        self.server.kill()

    async def _follow(self) -> None:
        async for event in self.client.events():
            message = event.message
            seen = self.seen.get(getattr(message, "job", ""))
            if seen is None:
                continue
            match message:
                case ProfileMeasured():
                    seen.measured += 1
                case PlanDecided():
                    seen.decided = message.version
                case PlanApplied():
                    seen.applied = message.version
                    seen.limits.append(message.plan.ps_memory_bytes)
                case PodExited() if message.pod.startswith("ps-"):
                    seen.exits.append(message.reason)
                case OomForecast():
                    seen.forecasts.append(message)
                case _:
                    pass

    async def play(self, *jobs: Growth) -> None:
        """Start all jobs, then let them grow at the same time, to the end or until a server of each was killed."""
        for growth in jobs:
            self.seen[growth.job] = Seen()
            self._tell_moment(growth, 0)
            await self._submit(growth)
        async with asyncio.timeout(START_S):
            while not all(self.seen[growth.job].applied for growth in jobs):
                await asyncio.sleep(0.02)
        await asyncio.gather(*(self._grow(growth) for growth in jobs))

    async def _grow(self, growth: Growth) -> None:
        """Moment after moment, each at least a window long, and not before it was measured: while this machine is too
        busy for that, or for a change of limits that was decided, time stands still."""
        seen, moments = self.seen[growth.job], growth.rows.shape[1]
        for moment in range(moments):
            self._tell_moment(growth, moment)
            measured = seen.measured
            await self._progress(growth, (moment + 1) / moments)
            await asyncio.sleep(WINDOW_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_S):
                    while not seen.exits and (seen.measured == measured or seen.applied < seen.decided):
                        await asyncio.sleep(0.02)
            if seen.exits:
                return

    def _tell_moment(self, growth: Growth, moment: int) -> None:
        draft = self._moment(growth).with_suffix(".tmp")
        draft.write_text(str(moment))
        draft.replace(self._moment(growth))

    async def _submit(self, growth: Growth) -> None:
        servers = len(growth.rows)
        plan = replace(plan_of(1, servers, ps_memory=growth.limit), worker_cpu_cores=0.25)
        curve = self.curves / f"{growth.job}.json"
        numbers = {name: getattr(growth, name).astype(int).tolist() for name in ("used", "tables", "rows")}
        moment = {"moment": str(self._moment(growth)), "row_bytes": growth.row_bytes}
        curve.write_text(json.dumps(moment | numbers))
        ps = {"memory": {"min": 64 * MIB, "max": 8 * GIB}}
        spec = {"dataset": {"samples": SAMPLES}, "checkpoint": {"every_s": None}, "environment": {"CURVE": str(curve)}}
        spec["resources"] = {"fixed": True, "initial": asdict(plan), "ps": ps}
        await self.client.publish(submission(growth.job, **spec))
        proposed = PlanProposed(job=growth.job, kind="initial", plan=plan, cost_per_hour=1.0, reasons=("given",))
        await self.client.publish(proposed)

    def _moment(self, growth: Growth) -> Path:
        return self.curves / f"{growth.job}.moment"

    async def _progress(self, growth: Growth, share: float) -> None:
        rate = SAMPLES / (growth.rows.shape[1] * WINDOW_S)
        await self.client.publish(progressed(growth.job, int(SAMPLES * share), SAMPLES, rate))
