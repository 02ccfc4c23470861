"""FBGEMM's table-batched embedding on the CPU, its Adagrad fused into the backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

from tests.bench.training.stores.side import EPSILON, RATE, WIDTH, ArraySide, serve, versions

torch.set_num_threads(1)


class Fbgemm(ArraySide):
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
