"""Data workers of a real job: they come, die and stop while it trains, and nothing else notices.

The pods are real, TensorFlow included; in the first test the plan comes from the test.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import stretto_wire as wire
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_drills.chaos.job import MODELS, spec
from stretto_messages.actuator import DataWorkersChanged, JobFinished, PlanApplied, PodExited, PodStarted
from stretto_messages.arbiter import DataWorkersDecided
from stretto_messages.base import GIB
from stretto_messages.checkpoints import CheckpointRestored
from stretto_messages.gateway import JobCancelled
from stretto_messages.pods import WorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Evaluation
from stretto_planner.service import Planner
from stretto_planner.settings import PlannerSettings
from stretto_profiler.service import Profiler
from stretto_profiler.settings import ProfilerSettings

from tests.e2e.test_lost_server import LIMIT_S, audited, samples_done
from tests.e2e.test_lost_server import house as house
from tests.integration.test_parameters_come_back import JOB, House, kill, opened, plan_decided

pytestmark = [pytest.mark.slow, pytest.mark.night]

SAMPLES = 400_000
REPEATED, REPEATED_S = 160_000, 60.0
"""Samples of a job that trains again and again, 40 shards, and the time that its reader needs for them alone."""
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


async def test_the_numbers_are_those_without_data_workers(tmp_path: Path) -> None:
    """Method: the same job through all pods, without data workers, with two, and with faults of one; one worker, one
    server and no pipeline, for only so a run can be repeated."""
    alone, _ = await numbers(tmp_path, "off", None)
    for fault in (None, signal.SIGKILL, signal.SIGSTOP):
        fed, elsewhere = await numbers(tmp_path, "always", fault)
        assert fed == alone, fault
        assert elsewhere > 0.5


async def numbers(within: Path, mode: str, fault: signal.Signals | None) -> tuple[tuple[str, Evaluation | None], float]:
    """Train in an installation of its own; return checksum and evaluation, and the largest share of a report that data
    workers prepared."""
    folder = Path(tempfile.mkdtemp(dir=within))
    document = spec(JOB, next(iter(MODELS)), REPEATED, REPEATED_S)
    document["model"] |= {"pipeline": False}
    document["resources"] |= {"data": {"mode": mode, "count": 2, "memory": 2 * GIB}}
    plan = replace(plan_decided().plan, workers=1, ps=1, worker_memory_bytes=2 * GIB, ps_memory_bytes=GIB)
    async with opened(House, folder) as house:
        assert house.server.keys is not None
        house.start(pod_python=sys.executable, signing_key_file=house.server.keys.signing_file)
        await house.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))
        await house.client.publish(replace(plan_decided(), plan=plan))
        if fault is not None:
            await house.until(lambda: [e for e in house.told(DataWorkersChanged) if len(e.data_workers) == 2], LIMIT_S)
            done = samples_done(house)
            await house.until(lambda: samples_done(house) > done + 10_000, LIMIT_S)
            kill(house, "data-0", fault)
        (ended,) = await house.until(lambda: house.told(JobFinished), LIMIT_S)
        assert (ended.samples_lost, ended.samples_repeated) == (0, 0)
        return (ended.checksum, ended.evaluation), max(await shares(house))


class Deciding(House):
    """All services that decide on data workers, too."""

    services: ClassVar = (
        *House.services,
        (Profiler, ProfilerSettings),
        (Planner, PlannerSettings),
        (Arbiter, ArbiterSettings),
    )


CLUSTER = {"cpu_cores": 10.0, "memory_bytes": 64 * GIB}
QUICK = {"profiler": {"window_s": 1.0}, "planner": {**CLUSTER, "window_s": 1.0}, "arbiter": CLUSTER}
SLOW_PER_S, NO_LIMIT = "10000", "0"
CORES = 4.0
"""Cores of the worker: more than it uses, so reading takes none from training once the store is fast again."""
LONG = 3_000_000
"""Samples of a job that lasts until its data workers have come and gone."""


@pytest.fixture
async def deciding(tmp_path: Path) -> AsyncIterator[Deciding]:
    async with opened(Deciding, tmp_path) as made:
        assert made.server.keys is not None
        made.start(QUICK, pod_python=sys.executable, signing_key_file=made.server.keys.signing_file)
        yield made


async def test_data_workers_come_by_themselves_while_the_store_is_slow_and_go_again(
    deciding: Deciding, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.write_text(SLOW_PER_S)
    document = spec(JOB, next(iter(MODELS)), LONG, TRAINING_S)
    document["model"]["arguments"] |= {"samples_per_s": 0, "samples_per_s_file": str(store)}
    document["resources"]["data"] = {"mode": "auto"}
    document["resources"]["initial"] |= {"workers": 1, "ps": 1, "worker_cpu_cores": CORES}
    await deciding.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))

    (come, *_) = await deciding.until(lambda: deciding.told(DataWorkersDecided), LIMIT_S)
    assert come.count >= 1
    assert any("wait" in reason for reason in come.reasons)
    served = await deciding.until(lambda: [p for p in profiles(deciding) if p.feed and p.feed.lanes], LIMIT_S)
    alone = [p.throughput for p in profiles(deciding) if p.settled and p.feed and not p.feed.lanes]
    await deciding.until(lambda: len([p for p in profiles(deciding) if p.prepared_elsewhere > 0.5]) > 2, LIMIT_S)
    fed = max(p.throughput for p in profiles(deciding) if p.prepared_elsewhere > 0.5)
    assert served
    assert fed > 1.3 * max(alone), "the reader was the limit"

    store.write_text(NO_LIMIT)
    await deciding.until(lambda: deciding.told(DataWorkersDecided)[-1].count == 0, LIMIT_S)
    await deciding.until(lambda: not deciding.told(DataWorkersChanged)[-1].data_workers, LIMIT_S)
    done = samples_done(deciding)
    assert done < LONG, "the job trains on without them"
    await deciding.client.publish(JobCancelled(job=JOB))


ITEMS = """
import time
import stretto.agent


class Items:
    def __len__(self):
        return 10**9

    def __getitem__(self, number):
        time.sleep({item_s})
        return number * number


items = stretto.agent.prepared(Items())
for batch in stretto.agent.samples():
    assert [*items.__getitems__(batch)] == [number * number for number in batch]
    time.sleep(0.02)
"""
ITEM_S = 0.003
"""Seconds that an item takes: a batch of 20 takes three times as long as its step."""


async def test_data_workers_come_by_themselves_to_a_program_whose_items_are_slow(
    deciding: Deciding, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(ITEMS.format(item_s=ITEM_S))
    size = {"worker_cpu_cores": 1, "worker_memory_bytes": "512Mi"}
    document = {
        "name": JOB,
        "program": {"command": ["python", "train.py"], "path": str(tmp_path)},
        "dataset": {"samples": LONG, "batch_size": 20, "batches_per_shard": 10},
        "resources": {
            "data": {"cpu_cores": 1, "memory": "512Mi"},
            "workers": {"count": {"max": 1}},
            "initial": {"workers": 1, **size},
            "fixed": True,
        },
    }
    await deciding.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))
    (come, *_) = await deciding.until(lambda: deciding.told(DataWorkersDecided), LIMIT_S)
    assert come.count > 1
    assert any("wait" in reason for reason in come.reasons)
    await deciding.until(lambda: len([p for p in profiles(deciding) if p.prepared_elsewhere > 0.5]) > 2, LIMIT_S)
    alone = [p.throughput for p in profiles(deciding) if p.settled and p.feed and not p.feed.lanes]
    assert max(p.throughput for p in profiles(deciding)) > 1.5 * max(alone)

    await deciding.client.publish(JobCancelled(job=JOB))


def profiles(house: House) -> list[ProfileMeasured]:
    return house.told(ProfileMeasured)
