"""The layout of a job: a layout of the parameter store with Stretto's number of buckets and slices."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import BUCKETS, SLICES
from stretto_parameters import Layout, Table
from stretto_parameters.keys import KeyBatch, TableKeys
from stretto_parameters.optimizers import Adagrad, Optimizer

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
Bools = NDArray[np.bool_]

DEFAULT_OPTIMIZER = Adagrad(0.05)
UNKNOWN = Layout((), 0, BUCKETS, SLICES)
"""The layout of a server that no worker has told the job's: it can own columns, and holds nothing."""


def one_table(
    dimension: int,
    dense_size: int,
    *,
    state_size: int = 0,
    optimizer: Optimizer = DEFAULT_OPTIMIZER,
    seed: int = 0,
    initial_scale: float = 0.05,
    weights: Literal["float32", "bfloat16"] = "float32",
) -> Layout:
    """Return the layout of a model with one embedding table; `optimizer` updates its rows and the dense vector."""
    table = Table(dimension, optimizer, seed, initial_scale, weights)
    return Layout((table,), dense_size, BUCKETS, SLICES, state_size, optimizer)


__all__ = ["F32", "I64", "U64", "UNKNOWN", "Bools", "KeyBatch", "Layout", "Table", "TableKeys", "one_table"]
