"""Fitter, planner and arbiter over a real bus: a job's way from history to a better plan, decided by all three."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_bus import Client
from stretto_fitter.service import Fitter
from stretto_fitter.settings import FitterSettings
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import PlanApplied
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import example_of
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.fitter import ModelFitted
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, HistoryMatched, HistoryRecorded
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, StepTimes
from stretto_planner.service import Planner
from stretto_planner.settings import PlannerSettings
from stretto_runtime import Runner
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec import spec

from tests.live_bus import live_bus, plan_of
from tests.waits import until

GIB = 2**30
JOB = "ctr-1"


def step_time_s(p: Plan) -> float:
    return 0.010 / p.worker_cpu_cores + 0.002 + 0.004 * p.workers / (p.ps * p.ps_cpu_cores) + 0.001 * p.workers


def spans_of(folder: Path, job: str, service: str) -> list[str]:
    """Return the names of the spans of a service that are about a job."""
    spans = map(json.loads, (folder / "spans" / f"{service}.jsonl").read_text().splitlines())
    return [span["name"] for span in spans if span["attributes"].get("stretto.job") == job]


class Chain:
    """The three services, and a simulation of two rules: a decided plan is applied at once, then windows come."""

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        self.server, self.client, self.folder = server, client, folder
        self.running: dict[str, tuple[Runner, asyncio.Task[None]]] = {}
        self.seen: list[Any] = []
        self.simulation: asyncio.Task[None] | None = None

    def start(self, service: type, settings_type: type, **settings: Any) -> None:
        own = settings_type(
            nats_url=self.server.url,
            nats_credentials=self.server.login(service.name).credentials,
            state_folder=self.folder,
            **settings,
        )
        runner = Runner(service(own))
        self.running[service.name] = (runner, asyncio.create_task(runner.run()))

    def start_all(self) -> None:
        self.start(Fitter, FitterSettings)
        self.start(Planner, PlannerSettings, cpu_cores=8, memory_bytes=32 * GIB, window_s=0.05, ps_change_s=0.1)
        self.start(Arbiter, ArbiterSettings, cpu_cores=8, memory_bytes=32 * GIB, settle_s=0, round_s=0)

    async def stop(self, name: str) -> None:
        runner, task = self.running.pop(name)
        runner.stop()
        await task

    async def live(self) -> None:
        """Apply every decided plan, and publish measurements under it."""
        current: tuple[int, Plan] | None = None

        async def follow() -> None:
            nonlocal current
            async for event in self.client.events():
                self.seen.append(event.message)
                if isinstance(event.message, PlanDecided):
                    decided = event.message
                    await self.client.publish(
                        PlanApplied(job=JOB, version=decided.version, plan=decided.plan, took_s=0.1)
                    )
                    current = (decided.version, decided.plan)

        follower = asyncio.create_task(follow())
        try:
            samples = 0
            while True:
                await asyncio.sleep(0.03)
                if current is None:
                    continue
                version, now = current
                rate = now.workers * 512 / step_time_s(now)
                samples += int(rate)
                await self.client.publish(window(version, now, rate, samples))
        finally:
            follower.cancel()

    def facts(self, kind: type) -> list[Any]:
        return [fact for fact in self.seen if isinstance(fact, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, lambda: [(type(fact).__name__, getattr(fact, "kind", "")) for fact in self.seen[-15:]])


def window(version: int, now: Plan, rate: float, samples: int) -> ProfileMeasured:
    step_s, none = step_time_s(now), StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0)
    told = {"plan_version": version, "plan": now, "step_time_s": step_s, "throughput": rate, "samples_total": samples}
    of_nobody = {"times": none, "workers": (), "ps": (), "feed": None, "window_s": 0.05, "categories": samples // 10}
    return replace(example_of(ProfileMeasured), job=JOB, **told, **of_nobody)


@pytest.fixture
async def chain(tmp_path: Path) -> AsyncIterator[Chain]:
    async with live_bus(tmp_path) as (server, client):
        started = Chain(server, client, tmp_path)
        started.start_all()
        yield started
        if started.simulation is not None:
            started.simulation.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await started.simulation
        for name in list(started.running):
            await started.stop(name)


@contextlib.asynccontextmanager
async def gateway_beside(chain: Chain) -> AsyncIterator[list[str]]:
    """Run a gateway; yield the options that lead a command to it."""
    given = chain.server.environment("gateway") | {"STRETTO_STATE_FOLDER": str(chain.folder)}
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stretto_gateway", env={**os.environ, **given}, stderr=subprocess.DEVNULL
    )
    where = chain.folder / "run" / "gateway.json"
    try:
        async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as http:
            while not where.exists():
                await asyncio.sleep(0.05)
            found = json.loads(where.read_text())
            url = f"http://{found['host']}:{found['port']}"
            while (await http.get(f"{url}/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        yield ["--url", url, "--token", (chain.folder / "gateway.token").read_text().strip()]
    finally:
        gateway.terminate()
        await gateway.wait()


def submission(**resources: Any) -> JobSubmitted:
    return JobSubmitted(
        job=JOB,
        spec=spec.JobSpec.parse(
            {
                "name": JOB,
                "model": {"entry": "examples.wide_deep:WideDeep", "metadata": {"family": "wide-deep", "rows": 1000}},
                "dataset": {"samples": 2_000_000_000},
                "resources": resources,
            }
        ),
    )


async def test_a_job_is_started_from_history_measured_improved_and_remembered(chain: Chain) -> None:
    known = {"metadata": {"family": "wide-deep", "rows": 900}, "plan": plan_of(1, 1), "throughput": 10_000.0}
    past = replace(example_of(HistoryRecorded), job="past-1", ps_memory_peak_bytes=GIB // 2, **known)
    await chain.client.publish(past)
    await chain.client.publish(submission())
    chain.simulation = asyncio.create_task(chain.live())
    await chain.until(lambda: any(d.kind == "measure" for d in chain.facts(PlanDecided)))
    first = chain.facts(PlanDecided)[0]
    assert (first.kind, first.version, first.plan) == ("warm-start", 1, plan_of(1, 1))
    (matched,) = chain.facts(HistoryMatched)
    assert [(match.job, match.weight) for match in matched.matches] == [("past-1", 1.0)]
    assert matched.matches[0].features == {"family": 1.0, "rows": 0.9}

    await chain.stop("planner")  # a restart in the middle loses and repeats nothing
    chain.start(Planner, PlannerSettings, cpu_cores=8, memory_bytes=32 * GIB, window_s=0.05, ps_change_s=0.1)
    await chain.until(lambda: bool(chain.facts(CandidatesComputed)))
    decided = chain.facts(PlanDecided)
    assert [fact.version for fact in decided] == list(range(1, len(decided) + 1))
    assert max(fact.plan.workers for fact in decided) > 1
    assert max(fact.plan.ps for fact in decided) > 1
    for fact in decided:
        used = fact.plan.workers * fact.plan.worker_cpu_cores + fact.plan.ps * fact.plan.ps_cpu_cores
        assert used <= 8
        assert fact.reasons

    last = chain.facts(ModelFitted)[-1]
    assert last.rmsle < 0.1
    await chain.client.publish(
        JobCompleted(job=JOB, samples=1, samples_abandoned=0, epochs=1, shards=1, requeued=0, started_at_s=1.0)
    )
    await chain.until(lambda: any(fact.job == JOB for fact in chain.facts(HistoryRecorded)))
    remembered = next(fact for fact in chain.facts(HistoryRecorded) if fact.job == JOB)
    assert remembered.throughput > 10_000
    assert await chain.client.dead_letters() == []

    traced = {service: spans_of(chain.folder, JOB, service) for service in ("fitter", "planner", "arbiter")}
    assert all(traced.values()), "the arbiter decides for all jobs by one machine; its spans name the job all the same"


async def test_memory_is_decided_within_the_capacity_and_a_second_job_waits(chain: Chain) -> None:
    await chain.client.publish(submission(initial=asdict(plan_of(1, 1)), fixed=True))
    chain.simulation = asyncio.create_task(chain.live())
    await chain.until(lambda: bool(chain.facts(PlanApplied)))
    memory = {"recommended_ps_memory_bytes": 5 * GIB, "limit_ps_memory_bytes": GIB}
    forecast = replace(example_of(OomForecast), job=JOB, ps=(), reason="categories grow", **memory)
    await chain.client.publish(forecast)
    await chain.until(lambda: len(chain.facts(PlanDecided)) == 2)
    memory = chain.facts(PlanDecided)[1]
    assert (memory.kind, memory.plan.ps_memory_bytes) == ("memory", 5 * GIB)
    large = submission(initial=asdict(plan_of(40, 1, 1.0)), fixed=True)
    other = replace(large, job="ctr-2")
    await chain.client.publish(other)
    await chain.until(lambda: bool(chain.facts(PlanRefused)))
    refused = chain.facts(PlanRefused)[0]
    assert (refused.job, refused.kind) == ("ctr-2", "initial")
    assert any("it waits" in reason for reason in refused.reasons)
    assert await chain.client.dead_letters() == []


@pytest.mark.night
async def test_all_that_was_decided_under_changing_capacity_is_replayed_bit_by_bit(chain: Chain) -> None:
    """By the gateway; from what is on disk, with nothing running; then under a setting that decides otherwise."""
    await chain.client.publish(submission())
    chain.simulation = asyncio.create_task(chain.live())
    await chain.until(lambda: len(chain.facts(PlanDecided)) >= 2)
    await chain.stop("arbiter")
    chain.start(Arbiter, ArbiterSettings, cpu_cores=4, memory_bytes=8 * GIB, settle_s=0, round_s=0)
    before = len(chain.facts(PlanDecided)) + len(chain.facts(PlanRefused))
    await chain.until(lambda: len(chain.facts(PlanDecided)) + len(chain.facts(PlanRefused)) > before)
    chain.simulation.cancel()
    for name in ("fitter", "planner", "arbiter"):
        await chain.stop(name)

    async def stretto_replay(*more: str) -> tuple[int, dict[str, Any]]:
        services = [word for name in ("fitter", "planner", "arbiter") for word in ("--service", name)]
        command = [sys.executable, "-m", "stretto_cli.main", "replay", JOB, "-o", "json", "--folder", str(chain.folder)]
        done = await asyncio.to_thread(subprocess.run, [*command, *services, *more], capture_output=True, check=False)
        return done.returncode, json.loads(done.stdout)

    async with gateway_beside(chain) as elsewhere:
        by_gateway = await stretto_replay(*elsewhere)
    chain.server.stop()
    status, told = await stretto_replay()
    assert by_gateway == (status, told)
    assert (status, told["reproduced"]) == (0, True), told
    for service in told["services"]:
        assert service["same"] == service["decisions"] > 0, service
        assert service["missing"] == []
    status, told = await stretto_replay("--set", "STRETTO_ARBITER_CPU_CORES=1.0")
    fitter, planner, arbiter = told["services"]
    assert (status, fitter["differences"], planner["differences"]) == (1, [], [])
    first = arbiter["differences"][0]
    assert first["version"] == Arbiter.version
    assert any("free" in field["field"] or "reasons" in field["field"] for field in first["fields"])
