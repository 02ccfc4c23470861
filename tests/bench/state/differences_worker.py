"""One worker of the benchmark of differences: a JSON command per line in, a JSON answer per line out."""

import json
import sys
import threading
import time

import numpy as np
from stretto.engine import Access, Key, Layout, Parameters

BATCHES, BATCH = 200, 512 * 26
COMPUTE_S = 0.008
"""CPU time that a step of the Wide & Deep model of the other benchmarks computes, beside pull and push."""


class Worker:
    """Trains until it is told to stop; its keys are Zipf-distributed over the ids 0..rows."""

    def __init__(self, number, layout, servers, key, rows, exponent):
        self.layout, self.number = Layout.from_dict(layout), number
        servers = {int(index): address for index, address in servers.items()}
        self.parameters = Parameters(self.layout, servers, worker=number, access=Access(Key.of(key.encode())))
        weights = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
        self.weights, self.random, self.rows = weights / weights[-1], np.random.default_rng(number), rows
        self.order = np.random.default_rng(99).permutation(rows)
        self.matrix = np.ones((256, 256), np.float32)
        self.dense = np.zeros(self.layout.dense_size, np.float32)
        self.steps = 0
        threading.Thread(target=self.train, daemon=True).start()

    def train(self):
        dimension = self.layout.tables[0].dimension
        while True:
            ids = self.order[np.searchsorted(self.weights, self.random.random(BATCH)).clip(0, self.rows - 1)]
            keys = self.layout.index(ids)
            self.parameters.pull(keys)
            begun = time.thread_time()
            while time.thread_time() - begun < COMPUTE_S:
                self.matrix @ self.matrix
            gradients = [np.full((len(keys), dimension), 1e-3, np.float32)]
            self.parameters.push(
                keys, gradients, self.dense, shard=10 * self.steps + self.number, attempt=1, start=0, stop=512
            )
            self.parameters.forget([10 * self.steps + self.number])
            self.steps += 1


def main():
    worker = None
    for line in sys.stdin:
        command = json.loads(line)
        if worker is None:
            worker = Worker(**command)
        print(json.dumps({"steps": worker.steps, "at_s": time.monotonic()}), flush=True)


main()
