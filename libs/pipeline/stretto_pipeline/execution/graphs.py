"""Preparations that are graphs of TensorFlow. A lane of this framework runs `begin`, then `taught` for each of them.

A preparation for a chain of data workers is several graphs, one for each group; each takes the raw values, and what the
one before it gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from numpy.typing import NDArray

from ..arrays import Arrays, Parts, Reader, Writer, size_bytes
from ..partition.cutting import parts_of
from .protocol import Prepares, joined_parts, split_parts
from .values import packed, unpacked, with_values

FRAMEWORK = __name__


def settings() -> dict[str, Any]:
    """Return what `begin` needs to know of home."""
    import tensorflow as tf

    threads = tf.config.threading
    return {
        "inside": threads.get_intra_op_parallelism_threads(),
        "between": threads.get_inter_op_parallelism_threads(),
        "optimizer": tf.config.optimizer.get_experimental_options(),
    }


def begin(settings: Mapping[str, Any]) -> None:
    """Give TensorFlow the threads and the optimizer of graphs that home has; a lane sees no GPU."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(settings["inside"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["between"])
    tf.config.set_visible_devices([], "GPU")
    tf.config.optimizer.set_experimental_options(settings["optimizer"])


def taught(parts: Sequence[memoryview]) -> Prepares:
    """Return the function of a graph, with its constants and tables; or of several, one after another."""
    return one_after_another([Runs(graph_preparation_of(each)) for each in split_parts(parts)])


def one_after_another(functions: Sequence[Prepares]) -> Prepares:
    """Return the function of raw arrays that several are: each takes the raw ones, and what the one before it gives."""
    if len(functions) == 1:
        return functions[0]

    def prepare(raw: Arrays) -> Arrays:
        found: Arrays = {}
        for each in functions:
            found = each(with_values(raw, found))
        return found

    return prepare


@dataclass(frozen=True, slots=True)
class Table:
    """A lookup table that never changes: the placeholder of its handle, and TensorFlow's types."""

    placeholder: str
    keys: str
    values: str


@dataclass(frozen=True)
class GraphPreparation:
    """A pure function of raw tensors, as a graph of TensorFlow.

    feeds: tensors for the raw values; fetches: tensors of the answer, with their types. constants: placeholders of
    fixed values. contents: these values, then keys and values of each table. earlier: those of the groups before the
    one that runs this; feeds then are also for what the last of them gives.
    """

    number: int
    graph: bytes
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    types: tuple[str, ...]
    constants: tuple[str, ...]
    tables: tuple[Table, ...]
    contents: tuple[NDArray[Any], ...]
    earlier: tuple[GraphPreparation, ...] = ()

    def head(self) -> dict[str, Any]:
        """Return the part that is JSON."""
        return {
            "number": self.number,
            "feeds": self.feeds,
            "fetches": self.fetches,
            "types": self.types,
            "constants": self.constants,
            "tables": [asdict(each) for each in self.tables],
        } | ({} if (live := self.live_numbers()) is None else {"live": live})

    def parts(self) -> Parts:
        """Return it as parts of one message."""
        own = [json.dumps(self.head()).encode(), self.graph, *Writer().parts(packed(self.contents))]
        return joined_parts([*(each.parts() for each in self.earlier), own], self.live_numbers())

    def live_numbers(self) -> list[int] | None:
        """Return the numbers that lanes may still be asked for; None: all."""
        return None

    def arrays_of(self, values: Sequence[Any]) -> Arrays:
        """Return tensors as arrays."""
        return packed([array_of(each) for each in values])

    def size_of(self, values: Sequence[Any]) -> int:
        """Return the bytes of tensors."""
        return size_bytes(self.arrays_of(values))

    def values_of(self, arrays: Arrays) -> list[Any]:
        """Return tensors of arrays. Raises ArraysRefused."""
        import tensorflow as tf

        return [tf.constant(value, dtype) for value, dtype in zip(unpacked(arrays), self.types, strict=True)]


def graph_preparation_of(parts: Sequence[memoryview]) -> GraphPreparation:
    """Read a preparation that another process sent."""
    head = json.loads(bytes(parts[0]))
    return GraphPreparation(
        number=head["number"],
        graph=bytes(parts[1]),
        feeds=tuple(head["feeds"]),
        fetches=tuple(head["fetches"]),
        types=tuple(head["types"]),
        constants=tuple(head["constants"]),
        tables=tuple(Table(**each) for each in head["tables"]),
        contents=tuple(unpacked(Reader().arrays(parts[2:]))),
    )


_Preparation = TypeVar("_Preparation", bound=GraphPreparation)


def cut(preparation: _Preparation, group_of: Callable[[str], int], count: int) -> _Preparation:
    """Return a preparation, cut into one for each group of a chain. Raises ProgramRefused.

    group_of: the group in which an operation of its graph should run.
    """
    import tensorflow as tf

    graph_def: Any = tf.compat.v1.GraphDef.FromString(preparation.graph)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    raw = [each.partition(":")[0] for each in preparation.feeds]

    def type_of(name: str) -> int | None:
        found = graph.get_tensor_by_name(name).dtype
        return None if found.name in ("resource", "variant") or found._is_ref_dtype else found.as_datatype_enum

    made: list[GraphPreparation] = []
    for part in parts_of(graph_def, raw, preparation.fetches, group_of, count, type_of):
        present = {node.name: node for node in part.graph_def.node}
        types = tuple(tf.as_dtype(_type_of_fetch(each, present, graph)).name for each in part.fetches)
        made.append(_part(preparation, part.graph_def.SerializeToString(), part.received, part.fetches, types, present))
    *earlier, last = made
    return replace(
        preparation,
        earlier=tuple(earlier),
        **{name: getattr(last, name) for name in ("graph", "feeds", "fetches", "constants", "tables", "contents")},
    )


def _type_of_fetch(name: str, present: Mapping[str, Any], graph: Any) -> int:
    node = present[name.partition(":")[0]]
    if node.name.startswith("stretto_passed_"):
        return node.attr["T"].type
    return graph.get_tensor_by_name(name).dtype.as_datatype_enum


def _part(
    whole: GraphPreparation,
    graph: bytes,
    received: tuple[str, ...],
    fetches: tuple[str, ...],
    types: tuple[str, ...],
    present: Mapping[str, Any],
) -> GraphPreparation:
    """Return one part of a preparation, with the constants and tables that its graph has."""
    contents = iter(whole.contents)
    constants = [(name, next(contents)) for name in whole.constants]
    tables = [(each, (next(contents), next(contents))) for each in whole.tables]
    constants = [each for each in constants if each[0].partition(":")[0] in present]
    tables = [each for each in tables if each[0].placeholder.partition(":")[0] in present]
    return GraphPreparation(
        number=whole.number,
        graph=graph,
        feeds=whole.feeds + received,
        fetches=fetches,
        types=types,
        constants=tuple(name for name, _ in constants),
        tables=tuple(each for each, _ in tables),
        contents=(*(value for _, value in constants), *(value for _, pair in tables for value in pair)),
    )


def runs(preparation: GraphPreparation) -> Prepares:
    """Return a preparation, runnable here, by the code that lanes run."""
    return one_after_another([Runs(each) for each in (*preparation.earlier, preparation)])


class Runs:
    """A preparation of one group, runnable here."""

    def __init__(self, preparation: GraphPreparation) -> None:
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

    def __call__(self, raw: Arrays) -> Arrays:
        import tensorflow as tf

        given = [tf.constant(each, dtype) for each, dtype in zip(unpacked(raw), self._types, strict=True)]
        return packed([array_of(each) for each in self._run(*given, *self._fixed)])


def array_of(tensor: Any) -> Any:
    """Return the value of a tensor as an array; texts as objects."""
    import numpy as np

    return np.asarray(tensor.numpy(), object if tensor.dtype.name == "string" else None)
