"""PyTorch's `EmbeddingBag(sparse=True)`, a bag for each key, with `torch.optim.Adagrad`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.bench.training.stores.side import EPSILON, RATE, WIDTH, ArraySide, serve, versions

torch.set_num_threads(1)


class TorchBag(ArraySide):
    def make(self, rows: int) -> None:
        self.bag = torch.nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True)
        self.optimizer = torch.optim.Adagrad(self.bag.parameters(), RATE, eps=EPSILON)

    def step(self, keys: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        rows = self.bag(torch.from_numpy(keys).unsqueeze(1))
        self.optimizer.zero_grad()
        rows.backward(torch.from_numpy(gradients))
        self.optimizer.step()
        return rows.detach().numpy()

    def told(self) -> dict[str, Any]:
        return {"versions": versions("torch")}


serve(TorchBag)
