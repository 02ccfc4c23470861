"""The preparation of a data set for a split step: a graph with copies of the constants and tables that it reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ProgramRefused
from ..graphs.sizes import size_bytes
from .graph_preparation import GraphPreparation, LookupTable, array_of
from .opening import Opening
from .split import Split
from .subgraph import subgraph_of

CONTENTS_BYTES_MAX = 1 << 30
"""Most bytes of constants and tables that a lane is sent."""


preparation_numbers = itertools.count()
"""Numbers that identify the preparations of this process."""


@dataclass(frozen=True)
class DatasetPreparation:
    """A data set's preparation for a split step.

    names: tensors that the preparation gives. local: tensors that home takes from the raw element itself, each with its
    place there. used: places of the raw tensors that the preparation reads. here: prepares a raw element at home.
    """

    preparation: GraphPreparation
    names: tuple[str, ...]
    local: Mapping[str, int]
    used: tuple[int, ...]
    here: Callable[[Sequence[Any]], list[Any]]


def preparation_for(split: Split, opening: Opening) -> DatasetPreparation:
    """Return the preparation of a data set. Raises ProgramRefused: it is too large for a lane."""
    step = split.traced
    outputs = {f"{step.source}:{place}": place for place in range(len(opening.dataset._flat_types))}
    local = {} if opening.has_stage else {name: outputs[name] for name in split.halves.taken if name in outputs}
    names = tuple(name for name in split.halves.taken if name not in local)
    concrete = subgraph_of(step, split.halves.first, names, opening)
    graph_def = concrete.graph.as_graph_def()
    captures = {inner.op.name: outer for outer, inner in concrete.graph.captures}
    raw = [each for each in concrete.inputs if each.op.name not in captures]
    read = {each.partition(":")[0] for node in graph_def.node for each in node.input}
    used = tuple(place for place, each in enumerate(raw) if each.op.name in read)
    tables, contents = [], []
    constants = [name for name, outer in captures.items() if outer.dtype.name != "resource"]
    contents += [array_of(captures[name]) for name in constants]
    for name, handle in captures.items():
        if handle.dtype.name == "resource":
            keys, values, types = _table(handle, graph_def, name)
            tables.append(LookupTable(f"{name}:0", *types))
            contents += [keys, values]
    if (total := sum(map(size_bytes, contents))) > CONTENTS_BYTES_MAX:
        raise ProgramRefused(
            f"its constants and tables have {total} bytes: data workers get at most {CONTENTS_BYTES_MAX}"
        )
    preparation = GraphPreparation(
        number=next(preparation_numbers),
        graph=graph_def.SerializeToString(),
        feeds=tuple(raw[place].name for place in used),
        fetches=tuple(each.name for each in concrete.outputs),
        types=tuple(each.dtype.name for each in concrete.outputs),
        constants=tuple(f"{name}:0" for name in constants),
        tables=tuple(tables),
        contents=tuple(contents),
    )
    return DatasetPreparation(preparation, names, local, used, lambda given: concrete(*given))


def _table(handle: Any, graph_def: Any, placeholder: str) -> tuple[Any, Any, tuple[str, str]]:
    """Return keys, values and types of a lookup table. Raises ProgramRefused: the table cannot be copied."""
    import tensorflow as tf

    types = _table_types(graph_def, placeholder)
    if types is None:
        raise ProgramRefused(f"the types of the table {placeholder} cannot be told")
    keys, values = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=types[0], Tvalues=types[1])
    return array_of(keys), array_of(values), (types[0].name, types[1].name)


def _table_types(graph_def: Any, placeholder: str) -> Any:
    """Return the types of a table, from the lookup that reads it; None: there is no such lookup."""
    import tensorflow as tf

    functions = {each.signature.name: each for each in graph_def.library.function}
    waiting: list[tuple[Any, str]] = [(graph_def.node, placeholder)]
    while waiting:
        nodes, name = waiting.pop()
        for node in nodes:
            places = [place for place, each in enumerate(node.input) if each.split(":")[0] == name]
            if not places:
                continue
            if node.op == "LookupTableFindV2":
                return tf.as_dtype(node.attr["Tin"].type), tf.as_dtype(node.attr["Tout"].type)
            if node.op in ("Identity",):
                waiting.append((nodes, node.name))
            waiting += [inner for place in places for inner in _inside(node, place, functions)]
    return None


def _inside(node: Any, place: int, functions: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return the body of each function of a node, with the name of the argument that an input of the node becomes."""
    found: list[tuple[Any, str]] = []
    for value in node.attr.values():
        for called in [value.func, *value.list.func]:
            function = functions.get(called.name)
            if function is not None:
                arguments = function.signature.input_arg
                # captured inputs of a map are the last arguments of its function
                shift = len(arguments) - len(node.input)
                if 0 <= place + shift < len(arguments):
                    found.append((function.node_def, arguments[place + shift].name))
    return found
