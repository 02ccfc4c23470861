"""What the examples have in common: a click-through model on two workers, growing to four."""

from __future__ import annotations

from . import values as v
from .spec import JobSpec

GIB = 2**30
JOB = "ctr-ranking-42"
NOW_S = 1_795_000_000.25

SPEC = JobSpec.parse(
    {
        "name": JOB,
        "model": {
            "entry": "stretto.examples.wide_deep:WideDeep",
            "arguments": {"hidden_units": 256, "dropout": 0.1},
            "optimizer": "adagrad",
            "learning_rate": 0.05,
            "embedding_dim": 16,
            "metadata": {"family": "wide-deep", "dense_features": 13, "sparse_features": 26, "owner": "ads"},
        },
        "dataset": {"samples": 45_840_617, "epochs": 2, "batch_size": 512, "batches_per_shard": 64, "seed": 7},
        "resources": {"workers": {"count": {"min": 1, "max": 8}}, "ps": {"memory": {"min": "1Gi", "max": "16Gi"}}},
        "priority": 2.0,
        "deadline_s": 21_600.0,
        "checkpoint": {"every_s": 600.0, "keep": 3},
        "environment": {"CRITEO_FOLDER": "/data/criteo"},
        "evaluate": 100_000,
    }
)

PLAN = v.Plan(
    workers=2, ps=2, worker_cpu_cores=2.0, ps_cpu_cores=1.0, worker_memory_bytes=4 * GIB, ps_memory_bytes=2 * GIB
)
WIDER = v.Plan(
    workers=4, ps=2, worker_cpu_cores=2.0, ps_cpu_cores=1.5, worker_memory_bytes=4 * GIB, ps_memory_bytes=2 * GIB
)
LARGEST = v.Plan(
    workers=8, ps=4, worker_cpu_cores=4.0, ps_cpu_cores=2.0, worker_memory_bytes=4 * GIB, ps_memory_bytes=2 * GIB
)
TIMES = v.StepTimes(emb_s=0.0041, grad_s=0.0185, upd_s=0.0032, sync_s=0.0027)
METADATA: v.Metadata = dict(SPEC.model.metadata)
CHECKPOINT = v.CheckpointRef(
    id="ctr-ranking-42-000003",
    url="file:///data/checkpoints/ctr-ranking-42/000003/manifest.json",
    samples=10_158_080,
    size_bytes=268_435_456,
    ps=2,
)
