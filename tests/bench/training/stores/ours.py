"""Stretto's store; a batch wakes cold rows before it is applied, and evicts as many after it, in one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np
from stretto.engine.spilling import Eviction, Hold, Spill, awake
from stretto.engine.turns import SharedLock, Turn
from stretto_parameters import Own, Store

from tests.bench.training.store import LAYOUT, MEMORY_BYTES, push_of
from tests.bench.training.stores.side import ROWS, WIDTH, Side, serve

R = TypeVar("R")
SLICES = np.arange(LAYOUT.slices)


class Ours(Side):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.store, self.shard, self.turn = Store(LAYOUT, MEMORY_BYTES), 0, Turn(SharedLock())
        self.store.set_own(range(LAYOUT.columns), Own.MINE)
        self.eviction: Eviction | None = None

    def step(self, keys: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        self.shard += 1
        push = push_of(self.shard, keys, gradients)
        pulled = self.awake(self.turn.shared, lambda store: store.pull([keys], SLICES))
        self.awake(self.turn.alone, lambda store: store.push(push))
        self.store.finish([self.shard])
        if self.eviction is not None:
            self.eviction.round()
        return pulled.rows[0]

    def awake(self, hold: Hold, call: Callable[[Store], R]) -> R:
        return awake(self.turn, lambda: self.store, hold, call)

    def tighten(self, hot: np.ndarray) -> None:
        """A quarter of the rows stays in memory, and all entries and indices."""
        rows_bytes = 8 * WIDTH * ROWS
        budget_bytes = int((self.store.memory_bytes() - 0.75 * rows_bytes) / 0.875)
        spill = Spill(self.folder, 2**36, lambda used_bytes: budget_bytes)
        assert not spill.prepare(self.store)
        self.eviction = Eviction(spill, lambda: (self.store, self.turn), fail)
        self.step(np.sort(hot[:1000]), np.zeros((1000, 16), np.float32))

    def told(self) -> dict[str, Any]:
        cold = self.store.tiers.counts() if self.store.tiers else None
        return {
            "versions": f"{self.store.kernels.name} kernels",
            "memory_bytes": self.store.memory_bytes(),
            **({"hot": 1 - cold.cold_rows / ROWS, "read": cold.rows_read} if cold else {}),
        }


def fail(reason: str) -> NoReturn:
    raise RuntimeError(reason)


if __name__ == "__main__":
    serve(Ours)
