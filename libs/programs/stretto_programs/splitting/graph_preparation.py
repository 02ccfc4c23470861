"""Preparations that are TensorFlow graphs, and the module that lanes run for them (`lanes.protocol.Framework`)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray
from stretto_pipeline.arrays import Arrays, Parts, Reader, Writer, size_bytes

from ..graphs.pruning import ImportedGraph
from ..lanes.protocol import Prepares
from .values import packed, unpacked

FRAMEWORK = __name__


def settings() -> dict[str, Any]:
    """Return home's settings of TensorFlow, for `begin`."""
    import tensorflow as tf

    threads = tf.config.threading
    return {
        "inside": threads.get_intra_op_parallelism_threads(),
        "between": threads.get_inter_op_parallelism_threads(),
        "optimizer": tf.config.optimizer.get_experimental_options(),
    }


def load() -> None:
    """Import TensorFlow."""
    importlib.import_module("tensorflow")


def begin(settings: Mapping[str, Any]) -> None:
    """Configure a lane like home: the same threads and graph optimizer, but no GPU."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(settings["inside"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["between"])
    tf.config.set_visible_devices([], "GPU")
    tf.config.optimizer.set_experimental_options(settings["optimizer"])


def taught(parts: Sequence[memoryview]) -> Prepares:
    """Return the function of a preparation's graph, with copies of its constants and tables."""
    return Runs(graph_preparation_of(parts))


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A lookup table that never changes. placeholder: stands for its handle. keys, values: names of their types."""

    placeholder: str
    keys: str
    values: str


@dataclass(frozen=True)
class GraphPreparation:
    """A pure function of raw tensors, as a TensorFlow graph.

    feeds: names of the raw tensors. fetches: names of the prepared tensors; types: their types. constants: placeholders
    of fixed values. contents: values of the constants, then keys and values of each table.
    """

    number: int
    graph: bytes
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    types: tuple[str, ...]
    constants: tuple[str, ...]
    tables: tuple[LookupTable, ...]
    contents: tuple[NDArray[Any], ...]

    def head(self) -> dict[str, Any]:
        """Return the description of the preparation, for JSON."""
        return {
            "number": self.number,
            "feeds": self.feeds,
            "fetches": self.fetches,
            "types": self.types,
            "constants": self.constants,
            "tables": [asdict(each) for each in self.tables],
        }

    def parts(self) -> Parts:
        """Return the preparation as parts of a message."""
        return [json.dumps(self.head()).encode(), self.graph, *Writer().parts(packed(self.contents))]

    def arrays_of(self, values: Sequence[Any]) -> Arrays:
        """Return tensors as arrays."""
        return packed([array_of(each) for each in values])

    def size_of(self, values: Sequence[Any]) -> int:
        """Return the bytes of tensors."""
        return size_bytes(self.arrays_of(values))

    def values_of(self, arrays: Arrays) -> list[Any]:
        """Return tensors from arrays. Raises ArraysRefused."""
        import tensorflow as tf

        return [tf.constant(value, dtype) for value, dtype in zip(unpacked(arrays), self.types, strict=True)]


def graph_preparation_of(parts: Sequence[memoryview]) -> GraphPreparation:
    """Return the preparation that the parts of a message describe."""
    head = json.loads(bytes(parts[0]))
    return GraphPreparation(
        number=head["number"],
        graph=bytes(parts[1]),
        feeds=tuple(head["feeds"]),
        fetches=tuple(head["fetches"]),
        types=tuple(head["types"]),
        constants=tuple(head["constants"]),
        tables=tuple(LookupTable(**each) for each in head["tables"]),
        contents=tuple(unpacked(Reader().arrays(parts[2:]))),
    )


class Runs:
    """A preparation that can be called in this process."""

    def __init__(self, preparation: GraphPreparation) -> None:
        import tensorflow as tf

        graph_def: Any = tf.compat.v1.GraphDef.FromString(preparation.graph)
        graph = ImportedGraph(graph_def)
        contents = iter(preparation.contents)
        fixed: list[Any] = [tf.constant(next(contents), graph.dtype_of(name)) for name in preparation.constants]
        for table in preparation.tables:
            keys, values = tf.constant(next(contents), table.keys), tf.constant(next(contents), table.values)
            made = tf.raw_ops.AnonymousHashTable(key_dtype=table.keys, value_dtype=table.values)
            tf.raw_ops.InitializeTableV2(table_handle=made, keys=keys, values=values)
            fixed.append(made)
        names = [*preparation.feeds, *preparation.constants, *(each.placeholder for each in preparation.tables)]
        self._types = [graph.dtype_of(name) for name in preparation.feeds]
        self._fixed = fixed
        self._run = graph.function(names, preparation.fetches)

    def __call__(self, raw: Arrays) -> Arrays:
        import tensorflow as tf

        given = [tf.constant(each, dtype) for each, dtype in zip(unpacked(raw), self._types, strict=True)]
        return packed([array_of(each) for each in self._run([*given, *self._fixed])])


def array_of(tensor: Any) -> Any:
    """Return the value of a tensor as an array; strings are objects."""
    import numpy as np

    return np.asarray(tensor.numpy(), object if tensor.dtype.name == "string" else None)
