"""A lane: it runs the moved part of a step in a process of its own (`python -m stretto_pipeline.execution.lane`).

Reads a `Start` as JSON, one line of standard input; prints one line once it serves. It ends when its standard input
does: so it never outlives the program. It holds nothing that anybody would miss.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from stretto_plane import Key, Listener, Message, Peer

from ..arrays import Reader, Writer
from ..errors import PipelineError
from .protocol import REQUEST_BYTES_MAX, Kind, Preparation, preparation_of
from .values import packed, unpacked


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a lane.

    key: of the plane. threads: inside and between operations; optimizer: TensorFlow's options. Both are those of home,
    so that the same operations give the same bits.
    """

    key: str
    address: str
    threads: tuple[int, int]
    optimizer: dict[str, bool]


class Prepares:
    """A preparation, runnable here."""

    def __init__(self, preparation: Preparation) -> None:
        import tensorflow as tf

        graph_def: Any = tf.compat.v1.GraphDef.FromString(preparation.graph)
        wrapped: Any = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
        contents = iter(preparation.contents)
        fixed: list[Any] = [
            tf.constant(next(contents), wrapped.graph.get_tensor_by_name(name).dtype) for name in preparation.constants
        ]
        for table in preparation.tables:
            keys, values = tf.constant(next(contents), table.keys), tf.constant(next(contents), table.values)
            made = tf.raw_ops.AnonymousHashTable(key_dtype=table.keys, value_dtype=table.values)
            tf.raw_ops.InitializeTableV2(table_handle=made, keys=keys, values=values)
            fixed.append(made)
        names = [*preparation.feeds, *preparation.constants, *(each.placeholder for each in preparation.tables)]
        tensors = [wrapped.graph.get_tensor_by_name(name) for name in names]
        self._types = [each.dtype for each in tensors[: len(preparation.feeds)]]
        self._fixed = fixed
        self._run = wrapped.prune(tensors, [wrapped.graph.get_tensor_by_name(name) for name in preparation.fetches])

    def __call__(self, raw: Sequence[Any]) -> list[Any]:
        """Return the prepared values."""
        import tensorflow as tf

        given = [tf.constant(each, dtype) for each, dtype in zip(raw, self._types, strict=True)]
        return [array_of(each) for each in self._run(*given, *self._fixed)]


def array_of(tensor: Any) -> Any:
    """Return the value of a tensor as an array; texts as objects."""
    import numpy as np

    return np.asarray(tensor.numpy(), object if tensor.dtype.name == "string" else None)


class Lane:
    """Serves an address. It prepares one element at a time."""

    def __init__(self, address: str, key: Key) -> None:
        self._taught: dict[int, Prepares] = {}
        self._turn = threading.Lock()
        self._readers: WeakKeyDictionary[Peer, Reader] = WeakKeyDictionary()
        self._writers: WeakKeyDictionary[Peer, Writer] = WeakKeyDictionary()
        self._listener = Listener(address, self._handle, key, size_bytes_max=REQUEST_BYTES_MAX)

    def close(self) -> None:
        """Serve no more."""
        self._listener.close()

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        if message.kind == Kind.TEACH:
            preparation = preparation_of(message.parts)
            with self._turn:
                self._taught[preparation.number] = Prepares(preparation)
            return Kind.TEACH, []
        if message.kind != Kind.PREPARE:
            raise PipelineError(f"a request of kind {message.kind} is refused: lanes prepare elements")
        raw = unpacked(self._readers.setdefault(peer, Reader()).arrays(message.parts[1:]))
        with self._turn:
            begun_s = time.process_time()
            prepared = packed(self._taught[int(bytes(message.parts[0]))](raw))
            cpu_us = int((time.process_time() - begun_s) * 1e6)
        return Kind.PREPARE, [str(cpu_us).encode(), *self._writers.setdefault(peer, Writer()).parts(prepared)]


def main() -> None:
    """Serve until standard input ends."""
    given = json.loads(sys.stdin.readline())
    start = Start(given["key"], given["address"], tuple(given["threads"]), given["optimizer"])
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(start.threads[0])
    tf.config.threading.set_inter_op_parallelism_threads(start.threads[1])
    tf.config.set_visible_devices([], "GPU")
    tf.config.optimizer.set_experimental_options(start.optimizer)
    lane = Lane(start.address, Key.of(start.key.encode()))
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    sys.stdin.read()
    lane.close()
    os._exit(0)


if __name__ == "__main__":
    main()
