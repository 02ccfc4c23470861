"""The demonstration's choices: past jobs, the job, the cluster, and the settings of the services."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from stretto_messages.base import GIB
from stretto_messages.planner import HistoryRecorded
from stretto_messages.values import Plan

MIB = 2**20

CLUSTER_CPU_CORES = 2.0
PS_MEMORY_BYTES = 208 * MIB
"""Memory that suffices for the past jobs, whose 0.6 million rows were a third of this job's."""

# the job lasts minutes, not hours: shorter windows, quicker changes, and a measurement that pays back sooner
SETTINGS = {
    "STRETTO_PROFILER_WINDOW_S": "3",
    "STRETTO_PLANNER_WINDOW_S": "3",
    "STRETTO_PLANNER_WORKER_CHANGE_S": "4",
    "STRETTO_PLANNER_PS_CHANGE_S": "2",
    "STRETTO_PLANNER_PAYBACK_FACTOR": "1.0",
    "STRETTO_ARBITER_SETTLE_S": "10",
    "STRETTO_OOM_LEAD_S": "120",
}


def job() -> dict[str, Any]:
    """Return the elastic job as its file states it."""
    return yaml.safe_load((files("stretto_drills.demo") / "elastic.yaml").read_text())


SLOW_SAMPLES_PER_S = 8_000
"""Rate of the slow store for each reader, far below that of training."""


def slow_store_job(store: Path) -> dict[str, Any]:
    """Return the job whose data come from a store of its own; the file ``store`` says how fast it is."""
    spec = yaml.safe_load((files("stretto_drills.demo") / "slow_store.yaml").read_text())
    spec["model"]["arguments"]["samples_per_s_file"] = str(store)
    spec["volumes"] = [{"name": "store", "path": str(store.parent), "folder": str(store.parent)}]
    return spec


def reference(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the same model and data at a fixed plan, with memory to spare."""
    spec = job()
    spec["name"] = "demo-reference"
    spec["resources"] = {"fixed": True, "initial": {**plan, "ps_memory_bytes": 2 * GIB}}
    return spec


def past_jobs() -> list[HistoryRecorded]:
    """Return eight invented past jobs: five small ones of this model, for warm start to follow, and three others."""
    alike = job()["model"]["metadata"]
    small = Plan(
        workers=1,
        ps=1,
        worker_cpu_cores=0.5,
        ps_cpu_cores=0.5,
        worker_memory_bytes=2 * GIB,
        ps_memory_bytes=PS_MEMORY_BYTES,
    )
    large = replace(small, workers=6, ps=3, worker_cpu_cores=2.0, ps_memory_bytes=4 * GIB)
    rows = [
        _past(f"wide-deep-{n}", {**alike, "samples": samples}, small, throughput, samples)
        for n, (samples, throughput) in enumerate(
            [
                (1_400_000, 40_100.0),
                (1_300_000, 39_600.0),
                (1_500_000, 40_400.0),
                (1_200_000, 39_100.0),
                (1_600_000, 40_500.0),
            ],
            start=1,
        )
    ]
    other: dict[str, Any] = {"optimizer": "adam", "embedding_dim": 64, "batch_size": 4096, "samples": 90_000_000}
    for name in ("xdeepfm-1", "dcn-1", "dcn-2"):
        metadata = {**alike, **other, "model": name.partition("-")[0]}
        rows.append(_past(name, metadata, large, 21_000.0, 90_000_000))
    return rows


def _past(
    name: str, metadata: dict[str, str | int | float | bool], plan: Plan, throughput: float, samples: int
) -> HistoryRecorded:
    return HistoryRecorded(
        job=name,
        metadata=metadata,
        plan=plan,
        throughput=throughput,
        duration_s=samples / throughput,
        ps_memory_peak_bytes=int(plan.ps_memory_bytes * 0.85),
        samples=samples,
    )
