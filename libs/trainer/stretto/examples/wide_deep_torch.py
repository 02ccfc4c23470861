"""Wide & Deep (Cheng et al. 2016) in PyTorch: the same model as in stretto.examples.wide_deep, layer by layer."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from stretto.examples.criteo import FIELDS, INTEGERS, CriteoTask


class WideDeep(CriteoTask):
    def build(self) -> nn.Module:
        return Module(self.embedding_dim, self.hidden)


class Module(nn.Module):
    def __init__(self, embedding_dim: int, hidden: list[int]) -> None:
        super().__init__()
        widths = [FIELDS * (embedding_dim - 1) + INTEGERS, *hidden]
        layers = [[nn.Linear(fan_in, units), nn.ReLU()] for fan_in, units in itertools.pairwise(widths)]
        self.deep = nn.Sequential(*itertools.chain(*layers), nn.Linear(widths[-1], 1))

    def forward(self, rows: Tensor, numeric: Tensor) -> Tensor:
        # the first float of a row is the category's weight in the wide part, the others are its embedding
        wide = rows[:, :, 0].sum(dim=1, keepdim=True)
        return wide + self.deep(torch.cat([rows[:, :, 1:].flatten(1), numeric], dim=1))
