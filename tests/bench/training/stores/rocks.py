"""RocksDB by rocksdict: multi-get, Adagrad in NumPy, one write batch without the write-ahead log."""

from __future__ import annotations

from typing import Any

import numpy as np
import rocksdict

from tests.bench.training.stores.side import DISK, WIDTH, Side, adagrad, serve, versions

ALL_BYTES, WRITE_BUFFER_BYTES, BLOOM_BITS = 2**30, 2**23, 10


class Rocks(Side):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        table = rocksdict.BlockBasedOptions()
        self.cache = rocksdict.Cache(self.budget_bytes if self.mode == DISK else ALL_BYTES)
        table.set_block_cache(self.cache)
        table.set_bloom_filter(BLOOM_BITS, False)
        options = rocksdict.Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_write_buffer_size(WRITE_BUFFER_BYTES if self.mode == DISK else ALL_BYTES // 4)
        self.store = rocksdict.Rdict(str(self.folder), options)
        self.unlogged = rocksdict.WriteOptions()
        self.unlogged.disable_wal = True

    def fill(self, keys: np.ndarray) -> None:
        super().fill(keys)
        self.store.flush()
        self.store.compact_range(None, None)

    def step(self, keys: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        names = [key.tobytes() for key in keys.byteswap()]
        found = self.store[names]
        if found and found[0] is None:
            rows = np.zeros((len(keys), 2 * WIDTH), np.float32)
        else:
            rows = np.frombuffer(b"".join(found), np.float32).reshape(-1, 2 * WIDTH).copy()
        weights = rows[:, :WIDTH].copy()
        adagrad(rows, gradients)
        batch = rocksdict.WriteBatch(raw_mode=True)
        packed, size = rows.tobytes(), 8 * WIDTH
        for number, name in enumerate(names):
            batch.put(name, packed[number * size : number * size + size])
        self.store.write(batch, self.unlogged)
        return weights

    def told(self) -> dict[str, Any]:
        return {"versions": versions("rocksdict"), "cache_bytes": self.cache.get_usage()}


serve(Rocks)
