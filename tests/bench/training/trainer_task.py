"""The task of both sides of the trainer benchmark: Wide & Deep on the same batches, kept in memory."""

import numpy as np
from stretto.examples.wide_deep import WideDeep

BATCH = 512
POOL = 100  # batches


class PooledWideDeep(WideDeep):
    """Batches in memory, so that reading costs neither side: the samples repeat after POOL batches."""

    def __init__(self) -> None:
        super().__init__(hidden="256,128,64", samples=BATCH * POOL, embedding_dim=16)
        self.pool = super().read(0, BATCH * POOL)

    def read(self, start, length):
        first = start % (BATCH * POOL)
        return {name: values[first : first + length] for name, values in self.pool.items()}

    def dense_ids(self):
        """Return [samples, fields] ids numbered without gaps, for a table of fixed size, and their number."""
        unique, ids = np.unique(self.keys(self.pool), return_inverse=True)
        return ids.reshape(self.pool["label"].shape[0], -1), len(unique)
