"""An elastic job whose workers run PyTorch: pods as the product starts them, and exact books after a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from trainer_harness import spec_of, wait_for

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="PyTorch is not installed here: pip install stretto[torch]")

SAMPLES = 60_000


OWN = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(500, 8)
        self.tags = nn.EmbeddingBag(40, 4, mode="mean", padding_idx=0)
        self.last = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, user, tags):
        return self.last(torch.cat([self.users(user), self.tags(tags)], dim=1))

class Model:
    def build(self):
        return Net()

    def read(self, start, length):
        place = np.arange(start, start + length)
        tags = [[1 + int(i) % 39, 5][: 1 + int(i) % 2] for i in place]
        return {"user": place % 500, "tags": tags}, (place % 500 % 3 == 0).astype(np.float32)
"""
MODELS = {
    "rows": {"entry": "stretto.examples.wide_deep_torch:WideDeep"},
    "rows in bfloat16": {
        "entry": "stretto.examples.wide_deep_torch:WideDeep", "row_weights": "bfloat16", "transfer": "bfloat16",
        "wire": {"push": "int8"},
    },
    "own tables": {"entry": "own_module:Model", "arguments": {}},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_workers_in_pytorch_join_and_die_and_every_sample_counts_once(started: Any, tmp_path: Path, name: str) -> None:
    """Two servers; one worker is killed within a shard, two others join. No worker has TensorFlow in its memory."""
    (tmp_path / "own_module.py").write_text(OWN)
    cluster = started(spec_of(SAMPLES, model={**MODELS[name], "learning_rate": 0.1}), cold=True)
    cluster.environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    cluster.start_ps(0, 1)
    cluster.keep_for("worker-1", "worker-2")
    cluster.launch("worker-0")
    wait_for(lambda: len(cluster.done) >= 2, 60, "two shards")
    cluster.launch("worker-1")
    cluster.kill("worker-0")
    assert cluster.todo[0].attempt == 2
    cluster.launch("worker-2")
    for worker in ("worker-1", "worker-2"):
        cluster.ready(worker)
        maps = Path(f"/proc/{cluster.processes[worker].pid}/maps").read_text()
        assert "libtorch" in maps
        assert "tensorflow" not in maps
    wait_for(cluster.finished, 120, "every shard")
    books = cluster.books(0, 1)
    assert [book.applied_samples for book in books] == [SAMPLES, SAMPLES]
    assert cluster.evaluated("worker-2", 5000).auc > 0.6
    assert cluster.books(0, 1) == books, "an evaluation changes no parameter"
    assert [cluster.terminate(worker) for worker in ("worker-1", "worker-2")] == [0, 0]
