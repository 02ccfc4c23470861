"""The memory watch on a real server: profiles in, a request for memory out before the limit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from stretto_bus import Client
from stretto_core import oom as memory
from stretto_messages.actuator import PodExited, PodResized
from stretto_messages.dispatcher import JobProgressed
from stretto_messages.oom import OomForecast
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, PsProfile, StepTimes
from stretto_oom import handlers
from stretto_oom.service import Oom
from stretto_oom.settings import OomSettings
from stretto_runtime import EmbeddedServer, SettingsFault, provision, serve
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.snapshots import Document
from stretto_wire.spec import JobSpec, ModelSpec
from stretto_wire.submission import JobSubmitted

MIB = 2**20
PLAN = Plan(
    workers=2,
    ps=2,
    worker_cpu_cores=1.0,
    ps_cpu_cores=1.0,
    worker_memory_bytes=1024 * MIB,
    ps_memory_bytes=900 * MIB,
)


def profile(job: str, step: int) -> ProfileMeasured:
    """10,000 samples and, on each PS, 2,000 rows of 13,000 bytes a step."""
    rows = 2000 * step
    ps = PsProfile(
        pod="ps-0",
        cpu_used_cores=0.5,
        cpu_limit_cores=1.0,
        memory_used_bytes=600 * MIB + 13_000 * rows,
        memory_limit_bytes=900 * MIB,
        categories=rows,
        buckets=32,
        update_time_s=0.002,
    )
    return ProfileMeasured(
        job=job,
        plan_version=1,
        plan=PLAN,
        batch_size=512,
        window_s=5.0,
        step_time_s=0.05,
        times=StepTimes(emb_s=0.01, grad_s=0.01, upd_s=0.01, sync_s=0.01),
        throughput=2000.0,
        samples_total=77_000 + 10_000 * step,  # as the pods count: more than the ledger
        categories=2 * rows,
        settled=True,
        workers=(),
        ps=(ps, replace(ps, pod="ps-1")),
    )


def progress(job: str, step: int) -> JobProgressed:
    return JobProgressed(
        job=job,
        samples_done=10_000 * step,
        samples_total=300_000,
        epoch=0,
        samples_per_s=2000.0,
        shards_leased=2,
        shards_requeued_total=0,
    )


def spec(job: str) -> JobSpec:
    model = {"entry": "a:B", "embedding_dim": 1600}
    return JobSpec.parse({"name": job, "model": model, "dataset": {"samples": 300_000}})


async def test_memory_is_asked_for_before_it_runs_out(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats", secured=False)
    await server.start()
    client = await Client.connect(server.url)
    await provision(client.bus)
    stop = asyncio.Event()
    settings = OomSettings(nats_url=server.url, state_folder=tmp_path / "state", table_slots=0)
    task = asyncio.create_task(serve(Oom(settings), stop))
    try:
        await client.publish(JobSubmitted(job="grows", spec=spec("grows")))
        for step in range(1, 10):
            await client.publish(progress("grows", step))
            await client.publish(profile("grows", step))
        asked = None
        async with asyncio.timeout(20):
            async for event in client.events():
                if isinstance(event.message, OomForecast) and event.message.action == "grow":
                    asked = event.message
                    break
    finally:
        stop.set()
        await task
        await client.close()
        server.stop()
    assert asked is not None
    assert [ps.pod for ps in asked.ps] == ["ps-0", "ps-1"]
    full_at = 10_000 * 300 * MIB / (13_000 * 2000)
    assert asked.samples_done < full_at
    assert asked.ps[0].oom_at_samples is not None
    # the first windows do not show yet that growth is linear
    assert abs(asked.ps[0].oom_at_samples / full_at - 1) < 0.3
    need = 600 * MIB + 13_000 * 60_000
    assert 900 * MIB < asked.recommended_ps_memory_bytes <= 1.15 * need


def test_the_law_of_growth_is_chosen_by_name_and_an_unknown_one_refused() -> None:
    assert Oom(OomSettings()).machine("a", None).law is memory.fit_growth
    assert Oom(OomSettings(algorithm="linear")).machine("a", None).law is memory.fit_line
    with pytest.raises(SettingsFault, match=r"STRETTO_OOM_ALGORITHM='oracle'.*installed for oom are growth, linear"):
        Oom(OomSettings(algorithm="oracle"))


def test_every_routed_message_is_translated() -> None:
    heard = {entry.message for entry in Oom.inputs}
    assert heard == {*handlers._EVENTS, JobSubmitted}


def test_workers_are_not_its_business_and_rows_cost_what_the_optimiser_keeps() -> None:
    resized = PodResized(job="a", pod="worker-1", cpu_cores=1.0, memory_bytes=MIB)
    assert handlers.to_event(resized, 256) is None
    resized = replace(resized, pod="ps-1")
    assert handlers.to_event(resized, 256) == memory.LimitChanged(MIB, "ps-1")
    exited = PodExited(job="a", pod="ps-1", role="ps", reason="oom-killed", exit_code=137)
    assert handlers.to_event(exited, 256) == memory.ServerLeft("ps-1", oom_killed=True)
    assert handlers.row_bytes(ModelSpec(entry="a:B")) == 136
    assert handlers.row_bytes(ModelSpec(entry="a:B", optimizer="adam")) == 204


def test_what_the_version_before_has_seen_is_gone_on_from() -> None:
    """It foresaw otherwise from the same points."""
    service = Oom(OomSettings())
    seen = memory.WatchState(samples_total=300_000)
    memory.add_point(seen.points, 1000, 10)
    machines = Machines(service)
    machines.load({"a": Document(1, 3, TypeAdapter(memory.WatchState).dump_json(seen))})
    assert machines.slots["a"].machine.state == seen
    assert machines.documents(["a"])["a"].version == memory.OomMachine.version > 3
