"""A client of parameter servers that pulls and pushes without a model. It runs on either engine (processes.py).

One JSON command per line in, one JSON answer per line out.
"""

import json
import os
import sys
import time

import numpy as np
from stretto import engine

DIMENSION, DENSE = 16, 145_000
SAMPLES, FIELDS = 512, 26
KEYS = SAMPLES * FIELDS
BATCHES = 24
OFFSET = 1 << 55
"""Ids of no model, where tables of a training job are filled."""


def layout():
    if hasattr(engine, "one_table"):
        return engine.one_table(DIMENSION, DENSE)
    return engine.Layout(dimension=DIMENSION, dense_size=DENSE)


class Client:
    """Its batches are made beforehand: the measured time is that of pulls and pushes."""

    def __init__(self):
        self.layout = layout()
        self.random = np.random.default_rng(os.getpid())
        self.dense = np.full(DENSE, 1e-3, np.float32)
        self.shard, self.step, self.batches = 0, 0, []

    def describe(self):
        return {"layout": self.layout.to_dict()}

    def connect(self, servers, worker, key="", encrypted=False, layout=None):
        """Connect; with the layout of another job, to fill its tables with rows."""
        if layout is not None:
            self.layout = engine.Layout.from_dict(layout)
            self.dense = np.zeros(self.layout.dense_size, np.float32)
        access = {"access": engine.Access(engine.Key.of(key.encode()), encrypted)} if key else {}
        addresses = {int(server): address for server, address in servers.items()}
        self.parameters = engine.Parameters(self.layout, addresses, worker=worker, **access)
        if layout is None:
            self.parameters.seed(np.zeros(DENSE, np.float32))
        self.shard = worker
        return {}

    def rows_of(self, keys):
        values = self.random.normal(0, 0.01, (len(keys), DIMENSION)).astype(np.float32)
        return (values,) if hasattr(keys, "tables") else values

    def push(self, keys, rows):
        self.step += 1
        at = {"start": self.step - 1, "stop": self.step}
        return self.parameters.push(keys, rows, self.dense, shard=self.shard, attempt=1, **at)

    def fill(self, first, last, block=KEYS):
        """Push new ids in blocks; return the seconds of each push."""
        seconds = []
        for begin in range(first, last, block):
            keys = self.layout.index(np.arange(begin, min(begin + block, last)) + OFFSET)
            rows = self.rows_of(keys)
            begun = time.perf_counter()
            self.push(keys, rows)
            seconds.append(time.perf_counter() - begun)
        return {"seconds": seconds}

    def prepare(self, ids):
        """Make batches of uniform ids, the worst case; return the mean number of their unique keys."""
        drawn = [self.layout.index(self.random.integers(0, ids, (SAMPLES, FIELDS)) + OFFSET) for _ in range(BATCHES)]
        self.batches = [(keys, self.rows_of(keys)) for keys in drawn]
        return {"keys": float(np.mean([len(keys) for keys in drawn]))}

    def train(self, seconds):
        until, cpu_s, ends = time.monotonic() + seconds, time.process_time(), []
        while (begun := time.monotonic()) < until:
            keys, rows = self.batches[self.step % BATCHES]
            self.parameters.pull(keys)
            self.push(keys, rows)
            ends.append(time.monotonic() - begun)
        return {"steps": ends, "cpu_s": time.process_time() - cpu_s}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    client = Client()
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(client, command.pop("do"))(**command)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


main()
