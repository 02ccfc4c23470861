"""Stretto's store; a batch wakes cold rows before it is applied, and evicts as many after it, in one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from stretto_parameters import Own, RowsAsleep, Store, Tiers

from tests.bench.training.store import LAYOUT, MEMORY_BYTES, push_of
from tests.bench.training.stores.side import ROWS, WIDTH, Side, serve

R = TypeVar("R")
SLICES = np.arange(LAYOUT.slices)


class Ours(Side):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.store, self.shard, self.woken = Store(LAYOUT, MEMORY_BYTES), 0, 0
        self.store.set_own(range(LAYOUT.columns), Own.MINE)

    def step(self, keys: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        self.shard += 1
        push = push_of(self.shard, keys, gradients)
        pulled = self.awake(lambda: self.store.pull([keys], SLICES))
        self.awake(lambda: self.store.push(push))
        self.store.finish([self.shard])
        if self.store.tiers is not None:
            self.evict(self.store.tiers)
        return pulled.rows[0]

    def awake(self, call: Callable[[], R]) -> R:
        while True:
            try:
                return call()
            except RowsAsleep as asleep:
                tiers = self.store.tiers
                assert tiers is not None
                for each in asleep.rows:
                    tiers.wake(each, tiers.read(each))
                    self.woken += len(each.keys)
                tiers.let_go(asleep.rows)

    def evict(self, tiers: Tiers) -> None:
        while tiers.hand.is_full():
            if (victims := tiers.hand.choose()) is not None:
                tiers.hand.write(victims)
                tiers.hand.release(victims)
        for number, log in enumerate(tiers.logs):
            if (segment := log.sparse()) is not None:
                records, keys, raw = log.read_segment(segment)
                live = tiers.live(number, keys, records)
                to = log.allot(int(live.sum()))
                log.write(to, keys[live], log.rows_of(keys[live], raw[live]))
                tiers.move(number, keys[live], records[live], to)

    def tighten(self, hot: np.ndarray) -> None:
        """A quarter of the rows stays in memory, and all entries and indices."""
        rows_bytes = 8 * WIDTH * ROWS
        self.store.spill_to(self.folder, 2**36, int((self.store.memory_bytes() - 0.75 * rows_bytes) / 0.875))
        self.step(np.sort(hot[:1000]), np.zeros((1000, 16), np.float32))

    def told(self) -> dict[str, Any]:
        cold = self.store.tiers.counts() if self.store.tiers else None
        return {
            "versions": f"{self.store.kernels.name} kernels",
            "memory_bytes": self.store.memory_bytes(),
            **({"hot": 1 - cold.cold_rows / ROWS, "read": self.woken} if cold else {}),
        }


if __name__ == "__main__":
    serve(Ours)
