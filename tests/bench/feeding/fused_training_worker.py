"""The trainer of the module fused_training: a process that trains on batches which come in one of several ways.

The first line of standard input has the servers' addresses and the key. Each further line names a way and seconds; the
answer has steps per second, and milliseconds of this process's CPU for a step.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import perf_counter, process_time
from typing import Any

import numpy as np
import tensorflow as tf
from stretto_pipeline.arrays import Reader
from stretto_pipeline.feeding import CREDITS
from stretto_plane import Connection, Key

from tests.bench.feeding.crossings import BATCH, SHAPES, Arrays

TIMEOUT_S = 60.0
HIDDEN = (256, 128)
LEARNING_RATE = 0.01
SMALL = 1e-6
"""Factor of the inputs, which are numbers of steps."""
NUMBERS = [number.to_bytes(4, "little") for number in range(len(SHAPES))]


def fused(address: str, key: Key) -> Callable[[], Arrays]:
    connection, reader = Connection(address, key, timeout_s=TIMEOUT_S), Reader()
    return lambda: [*reader.arrays(connection.call(BATCH, []).parts).values()]


def requests(address: str, key: Key) -> Callable[[], Arrays]:
    connection = Connection(address, key, timeout_s=TIMEOUT_S)
    return lambda: _shaped([connection.call(BATCH, [each]).parts[0] for each in NUMBERS])


def grpc(address: str, _: Key) -> Callable[[], Arrays]:
    import grpc as library

    call: Any = library.insecure_channel(address).unary_unary("/bench/Tensor")
    return lambda: _shaped([call(each) for each in NUMBERS])


def _shaped(tensors: Sequence[Any]) -> Arrays:
    return [np.frombuffer(each, np.float32).reshape(shape) for each, shape in zip(tensors, SHAPES, strict=True)]


WAYS = {"fused": fused, "requests": requests, "grpc": grpc}


class Model:
    """A model in the form of DeepFM: first-order weights, products of pairs of embeddings, and deep layers."""

    def __init__(self) -> None:
        self._vectors = [place for place, (_, width) in enumerate(SHAPES) if width == 16]
        sizes = (sum(width for _, width in SHAPES if width > 1), *HIDDEN, 1)
        self._layers = [
            tf.Variable(tf.random.stateless_normal((one, other), seed=(1, place)) * one**-0.5)
            for place, (one, other) in enumerate(pairwise(sizes))
        ]
        signature = [tf.TensorSpec(shape, tf.float32) for shape in SHAPES]
        self.step = tf.function(self._step, input_signature=signature)

    def _step(self, *tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            first = tf.add_n([each for each in tensors if each.shape[1] == 1])
            vectors = tf.stack([tensors[place] for place in self._vectors], 1) * SMALL
            pairs = tf.square(tf.reduce_sum(vectors, 1)) - tf.reduce_sum(tf.square(vectors), 1)
            deep = tf.concat([each for each in tensors if each.shape[1] > 1], 1) * SMALL
            for layer in self._layers[:-1]:
                deep = tf.nn.relu(deep @ layer)
            logits = first * SMALL + tf.reduce_sum(pairs, 1, keepdims=True) + deep @ self._layers[-1]
            loss = tf.reduce_mean(tf.nn.softplus(logits) - logits)
        for layer, gradient in zip(self._layers, tape.gradient(loss, self._layers), strict=True):
            layer.assign_sub(LEARNING_RATE * gradient)
        return loss


class Source:
    """Batches of one way. Several are asked for ahead, each by a thread and a connection of its own."""

    def __init__(self, open_: Callable[[], Callable[[], Arrays]]) -> None:
        takes = [open_() for _ in range(CREDITS)]
        self._threads = [(ThreadPoolExecutor(1), take) for take in takes]
        self._asked = deque((thread, take, thread.submit(take)) for thread, take in self._threads)

    def next(self) -> Arrays:
        thread, take, answer = self._asked.popleft()
        arrays = answer.result()
        self._asked.append((thread, take, thread.submit(take)))
        return arrays


def train(model: Model, source: Source, seconds: float) -> dict[str, float]:
    begun_s, begun_cpu_s, steps = perf_counter(), process_time(), 0
    while perf_counter() - begun_s < seconds:
        model.step(*source.next())
        steps += 1
    took_s = perf_counter() - begun_s
    return {"per_s": steps / took_s, "cpu_ms": 1000 * (process_time() - begun_cpu_s) / steps}


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given = json.loads(sys.stdin.readline())
    key = Key.load(given["key"])
    model = Model()
    sources = {way: Source(lambda way=way: WAYS[way](given["addresses"][way], key)) for way in WAYS}
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(train(model, sources[asked["way"]], asked["seconds"])), flush=True)


if __name__ == "__main__":
    main()
