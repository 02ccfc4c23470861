"""Planner, arbiter and actuator share one device between two jobs: the second waits for it, and then has it.

The pods are real processes that answer as pods do, without TensorFlow; the device is one that only the settings know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from stretto_actuator.service import Actuator
from stretto_actuator.settings import ActuatorSettings
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_messages.actuator import PlanApplied, PodExited, PodPending, PodStarted
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.gateway import JobCancelled
from stretto_planner.service import Planner
from stretto_planner.settings import PlannerSettings
from stretto_runtime import serve
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

from tests.integration.test_parameters_come_back import FAKE_POD, House, opened
from tests.live_bus import plan_of

FPGA, DEVICE = "example.com/fpga", "/dev/fpga7"
PLAN = asdict(plan_of(memory=2**29, ps_memory=2**28))


class Sharing(House):
    """The three services, and every event of all jobs."""

    async def follow(self) -> None:
        async for event in self.client.events():
            self.events.append(event.message)

    def start(self, **actuator: Any) -> None:
        """Start the services where there is one device; the arbiter does not wait for the pods of an ended job."""
        there = {"extended_resources": {FPGA: 1}}
        room = there | {"cpu_cores": 8.0, "memory_bytes": 2**33}
        own = there | {"devices": {FPGA: (DEVICE,)}, "pod_python": self.fake_python(), "poll_s": 0.2}
        for service, settings, more in (
            (Arbiter, ArbiterSettings, room | {"stop_grace_s": 0.0, "round_s": 0.0}),
            (Planner, PlannerSettings, room),
            (Actuator, ActuatorSettings, own | actuator),
        ):
            login = self.server.login(service.name).credentials
            common = {"nats_url": self.server.url, "nats_credentials": login, "state_folder": self.folder}
            self.tasks.append(asyncio.create_task(serve(service(settings(**common, **more)), self.stop)))

    def of(self, job: str, kind: type[Any]) -> list[Any]:
        return [event for event in self.told(kind) if event.job == job]


@pytest.fixture
async def sharing(tmp_path: Path) -> AsyncIterator[Sharing]:
    async with opened(Sharing, tmp_path) as made:
        made.start()
        yield made


def submitted(job: str) -> JobSubmitted:
    resources = {"workers": {"extended": {FPGA: 1}}, "initial": PLAN, "fixed": True}
    model, prices = {"entry": "m:M"}, {"cpu_core_hour": 1.0, "extended_hour": {FPGA: 10.0}}
    document = {"name": job, "model": model, "dataset": {"samples": 10**6}, "resources": resources, "prices": prices}
    return JobSubmitted(job=job, spec=JobSpec.parse(document))


def devices_of_pods(folder: Path) -> dict[str, str | None]:
    """Return the devices of every fake pod of this installation that runs, by its job and name."""
    pods: dict[str, str | None] = {}
    for process in psutil.process_iter():
        try:
            own = process.environ() if str(FAKE_POD) in process.cmdline() else {}
        except psutil.Error:
            continue
        if own.get("STRETTO_STATE_FOLDER") == str(folder):  # other tests run pods beside this one
            pods[f"{own['STRETTO_JOB']}/{own['STRETTO_POD']}"] = own.get("STRETTO_DEVICES_EXAMPLE_COM_FPGA")
    return pods


async def test_the_second_job_waits_for_the_device_of_the_first_and_gets_it_at_its_end(sharing: Sharing) -> None:
    """Method: two jobs that need one device each, where there is one; the first is cancelled while its pods are slow.

    The arbiter gives the device away at once, the actuator only when the first job's worker is gone.
    """
    await sharing.client.publish(submitted("first"))
    await sharing.until(lambda: sharing.of("first", PlanApplied))
    (decided,) = sharing.of("first", PlanDecided)
    assert decided.free_extended == {FPGA: 0}
    assert decided.cost_per_hour == pytest.approx(1.0 + 10.0 + 0.75 * 0.005)
    assert devices_of_pods(sharing.folder) == {"first/worker-0": DEVICE, "first/ps-0": None}, "the server takes none"
    (worker,) = [pod for pod in sharing.of("first", PodStarted) if pod.role == "worker"]

    await sharing.client.publish(submitted("second"))
    refused = (await sharing.until(lambda: sharing.of("second", PlanRefused)))[0]
    assert f"0 {FPGA} of 8 cores and 8.00 GiB and 1 {FPGA} are free" in refused.reasons[0]
    assert refused.reasons[-1].endswith(f"1 {FPGA}: it waits")
    assert not sharing.of("second", PlanDecided)

    process = psutil.Process(_pid(sharing.folder, "first", worker.pod))
    process.suspend()  # it leaves late
    await sharing.client.publish(JobCancelled(job="first"))
    waits = (await sharing.until(lambda: sharing.of("second", PodPending)))[0]
    assert (waits.pod, waits.reason) == ("worker-0", "no-room")
    assert waits.detail == f"{FPGA} = 1: 0 of 1 on this machine are free"
    process.resume()
    await sharing.until(lambda: sharing.of("second", PlanApplied))
    assert [pod.role for pod in sharing.of("first", PodExited)].count("worker") == 1
    assert devices_of_pods(sharing.folder) == {"second/worker-0": DEVICE, "second/ps-0": None}
    assert await sharing.client.dead_letters() == []


def _pid(folder: Path, job: str, pod: str) -> int:
    return int((folder / "pods" / job / pod / "pid").read_text())
