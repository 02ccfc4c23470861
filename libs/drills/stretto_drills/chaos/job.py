"""The job that is put under fire, and the settings of the installation that it trains in."""

from __future__ import annotations

import json
from typing import Any

from stretto_messages.base import GIB

MODELS = {
    "wide_deep": "stretto.examples.wide_deep:WideDeep",
    "xdeepfm": "stretto.examples.xdeepfm:XDeepFM",
    "dcn": "stretto.examples.dcn:DCN",
}
DATA_SEED = 7
WORKERS, DATA_WORKERS = 2, 2
WORKERS_MOST, PS_MOST = 3, 3
STAGE, STAGE_WORKERS = "stage-1", 2
"""The type of devices that workers of the second stage have, which is cores as any others, and their number."""
CLUSTER_CPU_CORES = 8.0
CLUSTER_MEMORY_BYTES = 32 * GIB
"""Claimed memory, of which a quarter would suffice: the machine's true size must not forbid a change of the plan."""

SPILLING_BYTES = 112 * 2**20
"""Memory of a parameter server whose rows go to the disk: some 15 MiB more than it takes without rows."""
SPILLING_BYTES_OF_POLICY = 106 * 2**20
"""The same where a policy leaves out rows and rounds others."""

MERGED = {"wire": {"pull": "bfloat16", "push": "int8", "push_every": 3}, "pipeline_from_step": 0}
"""Pushes of three batches: the last one of a shard of eight has two."""

_SECOND_STAGE = {
    "stage": 1, "first_layer": 1, "device": STAGE, "workers": STAGE_WORKERS, "cpu_cores": 0.5, "memory_bytes": 2 * GIB,
}  # fmt: skip

# short leases, windows and intervals: a minute has to show what takes hours in production
SETTINGS = {
    "STRETTO_LEASE_S": "2",
    "STRETTO_DISPATCHER_LEASE_TIMEOUT_S": "5.5",
    "STRETTO_DISPATCHER_PROGRESS_EVERY_S": "0.5",
    "STRETTO_DISPATCHER_FORGET_AFTER_S": "5",
    "STRETTO_DISPATCHER_WAIT_S": "0.2",
    "STRETTO_PROFILER_WINDOW_S": "1",
    "STRETTO_ACTUATOR_STOP_GRACE_S": "8",
    "STRETTO_CHECKPOINTS_RESTORE_PAUSE_S": "1",
    "STRETTO_PLANNER_WINDOW_S": "1",
    "STRETTO_DEVICE_TYPES": json.dumps(
        [{"name": STAGE, "price_per_hour": 0.01, "count": STAGE_WORKERS, "cpu_cores": 0.5, "memory": "2Gi"}]
    ),
}


def spec(
    name: str,
    model: str,
    samples: int,
    training_s: float,
    batch_size: int = 512,
    data_workers: int = 0,
    *,
    spills: bool = False,
    has_policy: bool = False,
    is_staged: bool = False,
) -> dict[str, Any]:
    """Return the job: two workers and two servers, which only the schedule changes, and so many data workers.

    ``model`` is one of MODELS. Its data come from a store so slow that all of its readers together need at least
    ``training_s``. ``spills``: its parameter servers get less memory than their rows take. ``has_policy``: rare keys
    get no row, rows expire and are rounded before they go to a disk, and workers push several batches at once, rounded.
    ``is_staged``: its workers ask further ones for all but the rows of each step.
    """
    spilling_bytes = SPILLING_BYTES_OF_POLICY if has_policy else SPILLING_BYTES
    ps_memory_bytes = spilling_bytes if spills else 2 * GIB
    return {
        "api": "stretto/v1",
        "name": name,
        "model": {
            "entry": MODELS[model],
            "arguments": {
                "samples": samples,
                "categories": 50_000,
                "new_categories": samples // 5,
                "embedding_dim": 16,
                "seed": DATA_SEED,
                "samples_per_s": samples / (WORKERS + data_workers) / training_s,
            },
            "optimizer": "adagrad",
            "learning_rate": 0.02,
            "embedding_dim": 16,
            **(MERGED if has_policy else {}),
        },
        "dataset": {"samples": samples, "batch_size": batch_size, "batches_per_shard": 8, "seed": DATA_SEED},
        "resources": {
            "fixed": True,
            "workers": {
                "count": {"min": 1, "max": WORKERS_MOST + is_staged * STAGE_WORKERS},
                **({"devices": [STAGE], "stages": 2} if is_staged else {}),
            },
            "ps": {
                "count": {"min": 1, "max": PS_MOST},
                "spill": "emergency",
                **({"memory": {"min": ps_memory_bytes, "max": ps_memory_bytes}} if spills else {}),
            },
            "data": _data(data_workers),
            "initial": {
                "workers": WORKERS + is_staged * STAGE_WORKERS,
                "ps": 2,
                "worker_cpu_cores": 0.5,
                "ps_cpu_cores": 0.5,
                "worker_memory_bytes": 2 * GIB,
                "ps_memory_bytes": ps_memory_bytes,
                **({"groups": [_SECOND_STAGE]} if is_staged else {}),
            },
        },
        **({"rows": {"admit": 2, "expire_samples": samples // 2, "warm": "bf16"}} if has_policy else {}),
        "checkpoint": {"every_s": 4, "keep": 3},
        "evaluate": 20_480,
    }


def _data(count: int) -> dict[str, Any]:
    always = {"mode": "always", "count": count, "cpu_cores": 0.25, "memory": 2 * GIB}
    return always if count else {"mode": "off"}
