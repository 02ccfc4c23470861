"""The memory law against real stores: rows of every optimizer and width, and tables of several widths in one job."""

from __future__ import annotations

import numpy as np
import pytest
from stretto_core.oom.growth import Estimate
from stretto_core.oom.usage import ServerUsage, UsagePoint, bytes_at, row_cost
from stretto_parameters import Layout, Own, Push, Store, Table
from stretto_parameters.optimizers import SGD, Adagrad, Adam, AdamW, Ftrl, Optimizer, RMSprop, RowWiseAdagrad

BUCKETS, SLICES, BATCH = 64, 12, 4000
SEEN, ROWS = 80_000, 240_000
BASE_BYTES = 45 * 2**20
OPTIMIZERS = (SGD(0.1), Adagrad(0.1), RowWiseAdagrad(0.1), Adam(0.1), AdamW(0.1), RMSprop(0.1), Ftrl(0.1))
LAYOUTS = {
    **{type(each).__name__: (Table(16, each),) for each in OPTIMIZERS},
    "narrow": (Table(4, SGD(0.1)),),
    "bfloat16": (Table(16, Adagrad(0.1), weights="bfloat16"),),
    "three widths": (Table(16, Adagrad(0.1)), Table(4, SGD(0.1)), Table(32, Adam(0.1), weights="bfloat16")),
}


def grown(tables: tuple[Table, ...]) -> tuple[ServerUsage, int, int]:
    """Return what is measured of a store up to SEEN rows, its rows at the end, and its bytes there.

    Half of the new rows of each batch are of the first table, the rest of the others alike.
    """
    layout = Layout(tables, 1200, BUCKETS, SLICES, optimizer=_dense(tables[0].optimizer))
    store, server, rng = Store(layout, 2**34), ServerUsage(), np.random.default_rng(0)
    store.set_own(range(layout.columns), Own.MINE)
    counts = [BATCH] if len(tables) == 1 else [BATCH // 2, *[BATCH // 2 // (len(tables) - 1)] * (len(tables) - 1)]
    slices, claim = np.zeros((SLICES, layout.slice_length), np.float32), np.ones(layout.columns, np.bool_)
    shard = 0
    while store.categories() < ROWS:
        keys = [np.unique(rng.integers(0, 2**64 - 1, count, dtype=np.uint64)) for count in counts]
        rows = [np.zeros((len(of), table.dimension), np.float32) for of, table in zip(keys, tables, strict=True)]
        store.push(Push(shard, 0, 0, 512, 0, claim, keys, rows, slices, np.zeros(0, np.float32)))
        shard += 1
        if store.categories() <= SEEN:
            told = store.memory_bytes()
            server.add(UsagePoint(store.categories(), BASE_BYTES + told, told, store.row_bytes()), 2**40, BUCKETS)
    return server, store.categories(), BASE_BYTES + store.memory_bytes()


def _dense(optimizer: Optimizer) -> Optimizer:
    return optimizer.dense


@pytest.mark.parametrize("name", LAYOUTS)
def test_three_times_the_rows_are_foreseen(name: str) -> None:
    server, rows, used_bytes = grown(LAYOUTS[name])
    new = rows - server.rows
    foreseen = bytes_at(server, Estimate(new, new, new), row_cost([server]))
    assert foreseen.mean == pytest.approx(used_bytes, rel=0.05)
    assert foreseen.low <= used_bytes <= foreseen.high, (foreseen, used_bytes)


def test_a_store_tells_the_bytes_of_its_rows_before_and_after_the_first() -> None:
    layout = Layout((Table(16, Adagrad(0.1)), Table(4, SGD(0.1))), 1200, BUCKETS, SLICES)
    store = Store(layout, 2**34)
    index = store.row_bytes() - (144 + 32) / 2
    assert index == pytest.approx(8.6, abs=0.1)
    assert Store(Layout((), 0, BUCKETS, SLICES), 2**30).row_bytes() == 0
    server, _, _ = grown((Table(4, SGD(0.1)),))
    assert server.points[-1].row_bytes == pytest.approx(32 + index)
