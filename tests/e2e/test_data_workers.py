"""Data workers of a real job: they come, die and stop while it trains, and nothing else notices.

The pods are real, TensorFlow included; the plan comes from the test.
"""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
import stretto_wire as wire
from stretto_drills.chaos.job import MODELS, spec
from stretto_messages.actuator import DataWorkersChanged, PlanApplied, PodExited, PodStarted
from stretto_messages.base import GIB
from stretto_messages.checkpoints import CheckpointRestored
from stretto_messages.pods import WorkerReported

from tests.e2e.test_lost_server import LIMIT_S, audited, samples_done
from tests.e2e.test_lost_server import house as house
from tests.integration.test_parameters_come_back import JOB, House, kill, plan_decided

pytestmark = pytest.mark.slow

SAMPLES = 400_000
TRAINING_S = 100.0
"""Time that two workers would need for reading alone: the reader is that slow. Three processes read here."""


async def shares(house: House) -> list[float]:
    """Return the share of batches that data workers prepared, by the workers' reports in order."""
    reports = house.client.reports(patterns=(f"tel.v1.worker.*.{JOB}",), follow=False)
    return [event.message.prepared_elsewhere async for event in reports if isinstance(event.message, WorkerReported)]


async def test_data_workers_come_and_go_and_every_sample_counts_once(house: House) -> None:
    document = spec(JOB, next(iter(MODELS)), SAMPLES, TRAINING_S)
    document["resources"] = {**document.get("resources", {}), "data": {"mode": "always", "count": 2, "memory": 2 * GIB}}
    plan = replace(plan_decided().plan, workers=1, ps=1, worker_memory_bytes=2 * GIB, ps_memory_bytes=GIB)
    await house.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))
    await house.client.publish(replace(plan_decided(), plan=plan))
    await house.until(lambda: house.told(PlanApplied), LIMIT_S)
    await house.until(lambda: [e for e in house.told(DataWorkersChanged) if len(e.data_workers) == 2], LIMIT_S)

    done = samples_done(house)
    await house.until(lambda: samples_done(house) > done + 20_000, LIMIT_S)
    kill(house, "data-0")
    await house.until(lambda: [e for e in house.told(PodStarted) if e.pod == "data-2"], LIMIT_S)
    kill(house, "data-1", signal.SIGSTOP)

    audit = await audited(house)
    assert audit.exact, audit.findings
    assert (audit.samples_done, audit.samples_lost, audit.samples_repeated) == (SAMPLES, 0, 0)
    assert max(await shares(house)) > 0.5
    assert not house.told(CheckpointRestored)
    gone = [e.pod for e in house.told(PodExited) if e.reason != "stopped"]
    assert {pod for pod in gone if not pod.startswith("data-")} == set()
    assert "data-0" in gone
    versions = [e.version for e in house.told(DataWorkersChanged)]
    assert versions == sorted(set(versions))
