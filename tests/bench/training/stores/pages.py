"""LMDB: get, Adagrad in NumPy, put, in one write transaction that is not synced; its cache is the page cache.

On the disk a control group of memory is its budget: what it takes when it is open, and `budget_bytes`.
"""

from __future__ import annotations

from typing import Any

import lmdb
import numpy as np

from tests.bench.training.stores.side import WIDTH, Side, adagrad, serve, uncache, versions

MAP_BYTES = 2**32


class Pages(Side):
    uncached = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.open()

    def open(self) -> None:
        self.store = lmdb.open(str(self.folder), map_size=MAP_BYTES, sync=False, metasync=False, readahead=False)

    def tighten(self, hot: np.ndarray) -> None:
        """Begin with no page in memory: what is there would count as its own."""
        self.store.close()
        uncache(self.folder)
        self.open()

    def step(self, keys: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        names = [key.tobytes() for key in keys.byteswap()]
        with self.store.begin(write=True) as transaction, transaction.cursor() as cursor:
            found = cursor.getmulti(names)
            if found:
                rows = np.frombuffer(b"".join(row for _, row in found), np.float32).reshape(-1, 2 * WIDTH).copy()
            else:
                rows = np.zeros((len(keys), 2 * WIDTH), np.float32)
            weights = rows[:, :WIDTH].copy()
            adagrad(rows, gradients)
            packed, size = rows.tobytes(), 8 * WIDTH
            cursor.putmulti((name, packed[at * size : at * size + size]) for at, name in enumerate(names))
        return weights

    def told(self) -> dict[str, Any]:
        return {"versions": versions("lmdb")}


serve(Pages)
