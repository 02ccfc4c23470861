"""The memory watch on a real server: profiles in, a request for memory out before the limit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from runtime_live import running
from stretto_core.oom.growth import fit_growth
from stretto_core.oom.line import fit_line
from stretto_core.oom.machine import WatchEvent
from stretto_core.oom.state import JobOpened
from stretto_messages.actuator import PodExited
from stretto_messages.base import example_of
from stretto_messages.oom import OomForecast
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import PsProfile
from stretto_oom.service import Oom
from stretto_oom.settings import OomSettings
from stretto_runtime import Meta, SettingsFault
from stretto_runtime.profile import profile_of
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

from tests.live_bus import live_bus, plan_of, progressed

MIB = 2**20
PLAN = plan_of(2, 2, cores=1.0, ps_memory=900 * MIB)


def profile(job: str, step: int) -> ProfileMeasured:
    """10,000 samples and, on each PS, 2,000 rows of 13,000 bytes a step."""
    rows = 2000 * step
    kept = {"categories": rows, "row_bytes": 13_000.0, "table_bytes": 13_000 * rows, "buckets": 32}
    memory = {"memory_used_bytes": 600 * MIB + 13_000 * rows, "memory_limit_bytes": 900 * MIB}
    ps = PsProfile(pod="ps-0", cpu_used_cores=0.5, cpu_limit_cores=1.0, update_time_s=0.002, **kept, **memory)
    samples = 77_000 + 10_000 * step  # as the pods count: more than the ledger
    of_job = {"job": job, "plan": PLAN, "samples_total": samples, "categories": 2 * rows, "workers": (), "feed": None}
    return replace(example_of(ProfileMeasured), ps=(ps, replace(ps, pod="ps-1")), **of_job)


def spec(job: str) -> JobSpec:
    return JobSpec.parse({"name": job, "model": {"entry": "a:B"}, "dataset": {"samples": 300_000}})


async def test_memory_is_asked_for_before_it_runs_out(tmp_path: Path) -> None:
    asked = None
    async with live_bus(tmp_path) as (server, client), running(Oom, server, tmp_path / "state"):
        await client.publish(JobSubmitted(job="grows", spec=spec("grows")))
        for step in range(1, 10):
            await client.publish(progressed("grows", 10_000 * step, 300_000, 2000.0))
            await client.publish(profile("grows", step))
        async with asyncio.timeout(60):
            async for event in client.events():
                if isinstance(event.message, OomForecast) and event.message.action == "grow":
                    asked = event.message
                    break
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
    assert Oom(OomSettings()).machine("a", None).law is fit_growth
    assert Oom(OomSettings(algorithm="linear")).machine("a", None).law is fit_line
    with pytest.raises(SettingsFault, match=r"STRETTO_OOM_ALGORITHM='oracle'.*installed for oom are growth, linear"):
        Oom(OomSettings(algorithm="oracle"))


def test_every_input_is_an_event_of_the_watch() -> None:
    read = {entry.message for entry in Oom.inputs}
    assert read - {JobSubmitted} == {*get_args(WatchEvent)} - {JobOpened}


def test_a_job_opens_with_its_bounds() -> None:
    service = Oom(OomSettings())
    meta = Meta(seq=1, time_s=1.0, subject="", headers={}, key="a")
    opened = service.to_event(JobSubmitted(job="a", spec=spec("a")), meta)
    bounds = spec("a").resources.ps.memory
    assert opened == JobOpened(300_000, bounds.min, bounds.max, profile_of(spec("a")))
    exited = PodExited(job="a", pod="ps-1", role="ps", reason="oom-killed", exit_code=137)
    assert service.to_event(exited, meta) is exited
