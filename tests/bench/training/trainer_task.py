"""The task of all sides of the trainer benchmark: Wide & Deep on the same batches, kept in memory.

python -m tests.bench.training.trainer_task FILE     writes task and batches for the side that has no TensorFlow
"""

import json
import sys

import numpy as np
from stretto.build import make_program
from stretto.examples.wide_deep import WideDeep
from stretto.model.program import Options

BATCH = 512
POOL = 100  # batches


class PooledWideDeep(WideDeep):
    """Batches in memory, so that reading costs neither side: the samples repeat after POOL batches."""

    def __init__(self, hidden: str = "256,128,64") -> None:
        super().__init__(hidden=hidden, samples=BATCH * POOL, embedding_dim=16)
        self.pool = super().read(0, BATCH * POOL)

    def read(self, start, length):
        first = start % (BATCH * POOL)
        return {name: values[first : first + length] for name, values in self.pool.items()}

    def dense_ids(self):
        """Return [samples, fields] ids numbered without gaps, for a table of fixed size, and their number."""
        unique, ids = np.unique(self.keys(self.pool), return_inverse=True)
        return ids.reshape(self.pool["label"].shape[0], -1), len(unique)


def write(path: str) -> None:
    """Write ids [samples, fields], numeric [samples, 13], label [samples, 1], and the task as JSON."""
    task = PooledWideDeep()
    optimizer = make_program(task, Options()).layout.optimizer
    ids, categories = task.dense_ids()
    told = {
        "batch": BATCH,
        "categories": categories,
        "dimension": task.embedding_dim,
        "hidden": task.hidden,
        "learning_rate": float(optimizer.learning_rate),
        "initial_accumulator": optimizer.initial_accumulator,
    }
    label = task.pool["label"].astype(np.float32)[:, None]
    np.savez(path, ids=ids, numeric=task.pool["numeric"].astype(np.float32), label=label, task=json.dumps(told))


if __name__ == "__main__":
    write(sys.argv[1])
