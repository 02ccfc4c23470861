"""FBGEMM's table-batched embedding on the CPU, its Adagrad fused into the backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

from tests.bench.training.stores.side import EPSILON, RATE, ROWS, WIDTH, Side, resident_bytes, serve, versions

torch.set_num_threads(1)


class Fbgemm(Side):
    by_position = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.make(rows=1)
        self.step(np.zeros(1, np.int64), np.zeros((1, WIDTH), np.float32))  # loads what its first step needs
        self.empty_bytes = resident_bytes()
        self.make(ROWS)

    def make(self, rows: int) -> None:
        table = (rows, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)
        rule = EmbOptimType.EXACT_ADAGRAD
        self.bags = SplitTableBatchedEmbeddingBagsCodegen([table], optimizer=rule, learning_rate=RATE, eps=EPSILON)

    def step(self, keys: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        rows = self.bags(torch.from_numpy(keys), torch.arange(len(keys) + 1))
        rows.backward(torch.from_numpy(gradients))
        return rows.detach().numpy()

    def told(self) -> dict[str, Any]:
        return {"versions": versions("fbgemm-gpu-cpu", "torch")}


serve(Fbgemm)
