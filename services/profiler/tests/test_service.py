"""The profiler over a real bus: profiles come out, impossible telemetry goes to the dead letters with its reason."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import stretto_wire as wire
from stretto_bus import Client
from stretto_core.profiler.machine import ProfilerEvent
from stretto_core.profiler.peers import cusum, threshold
from stretto_core.profiler.state import JobOpened
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import PlanApplied, PodStarted
from stretto_messages.base import example_of
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_profiler.service import Profiler
from stretto_profiler.settings import ProfilerSettings
from stretto_runtime import SettingsFault, serve

from tests.live_bus import plan_of

GIB = 2**30
PLAN = plan_of(cores=1.0)


def started(pod: str, role: Any) -> PodStarted:
    given = {"plan_version": 1, "cpu_cores": 1.0, "memory_bytes": GIB}
    return replace(example_of(PodStarted), job="j", pod=pod, role=role, **given)


def report(number: int, at_s: float, **more: Any) -> WorkerReported:
    done = {"steps": 2, "steps_total": 2 * number, "samples_total": 1024 * number, "step_time_s": 0.05}
    given = {"job": "j", "ended_at_s": at_s, "window_s": 0.1, "memory_used_bytes": GIB // 2, "memory_limit_bytes": GIB}
    return replace(example_of(WorkerReported), **{**given, **done, "longest_gap_s": 0.06, **more})


async def test_profiles_and_dead_letters(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats")
    await server.start()
    client = await Client.connect(server.url, server.login())
    await provision(client.bus)
    settings = ProfilerSettings(
        nats_url=server.url,
        nats_credentials=server.login("profiler").credentials,
        state_folder=tmp_path,
        lease_s=1,
        window_s=0.5,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(serve(Profiler(settings), stop))
    spec = wire.JobSpec.parse({"name": "j", "model": {"entry": "m:M"}, "dataset": {"samples": 10**6}})
    await client.publish(wire.JobSubmitted(job="j", spec=spec))
    await client.publish(started("ps-0", "ps"))
    await client.publish(started("worker-0", "worker"))
    await client.publish(PlanApplied(job="j", version=1, plan=PLAN, took_s=1.0))
    for number in range(1, 21):
        now = time.time()
        await client.publish(report(number, now))
        ps = PsReported(
            job="j", pod="ps-0", ended_at_s=now, window_s=0.1, updates=2, update_time_s=0.001,
            applied_samples_total=1024, categories=77, row_bytes=152.6, table_bytes=2**20, buckets=64,
            cpu_used_cores=0.1, cpu_limit_cores=1.0, memory_used_bytes=GIB // 4, memory_limit_bytes=GIB,
        )  # fmt: skip
        await client.publish(ps)
        await asyncio.sleep(0.1)
    await client.publish(report(1, time.time()))
    await client.publish(report(1, time.time(), pod="worker-77"))
    profiles: list[Any] = []
    for _ in range(100):
        events = [e.message async for e in client.events(patterns=("evt.v1.profiler.*.*",), follow=False)]
        profiles = [message for message in events if isinstance(message, ProfileMeasured)]
        dead = await client.dead_letters()
        if len(profiles) >= 2 and len(dead) >= 2:
            break
        await asyncio.sleep(0.1)
    assert profiles[0].step_time_s == pytest.approx(0.05)
    assert profiles[1].categories == 77
    assert any(profile.settled for profile in profiles)
    first, second = (letter.headers for letter in dead)
    assert (first["field"], second["field"]) == ("steps_total", "pod")
    assert "not below" in first["error"]
    assert "a pod that the actuator has started" in second["error"]
    stop.set()
    await running
    await client.close()
    server.kill()


def test_the_detector_is_chosen_by_name_and_an_unknown_one_refused() -> None:
    assert Profiler(ProfilerSettings()).machine("a", None).detector is cusum
    assert Profiler(ProfilerSettings(algorithm="threshold")).machine("a", None).detector is threshold
    with pytest.raises(SettingsFault, match=r"STRETTO_PROFILER_ALGORITHM='oracle'.*for detect are cusum, threshold"):
        Profiler(ProfilerSettings(algorithm="oracle"))


def test_every_input_is_an_event_of_the_machine() -> None:
    read = {entry.message for entry in Profiler.inputs}
    assert read - {wire.JobSubmitted} == {*get_args(ProfilerEvent)} - {JobOpened}
