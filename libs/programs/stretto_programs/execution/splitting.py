"""The step of a program in two parts that run: what prepares a raw element, and what home does with it.

    plain: iterator -> step          split: source -> raw -> (lanes or home) prepare -> home's part of the step

Both parts come of the step's own graph; `halves_of` cuts it where the partition says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ProgramRefused
from ..partition.cut import Prices
from ..partition.effects import SOURCES, Effect
from ..partition.graph import Graph, Node, Tensor
from ..partition.halves import Halves, halves_of, needed_part
from ..partition.normalise import address_of, inlined
from ..partition.partition import Partition, partition
from ..partition.reading import Reading, read_graph, static_size
from ..partition.state import State, state_of
from ..programs.analysis import CALL_US, GUESS_US, GUESSED_US, UNKNOWN_DIMENSION
from ..programs.captured import size_bytes
from ..programs.tf2 import Resources, given_of
from ..programs.tracing import Trace, trace
from .graphs import GraphPreparation, Table, array_of
from .opening import Opening, sample_of, staged

OPS_NAMED = 6
CONTENTS_BYTES_MAX = 1 << 30
"""Bound of the constants and tables that a lane gets."""
REQUEST_US = 200.0
"""Least saving for which a step is cut: threads at home that wake up for a request take about as much (taste)."""
XLA = "XLA compiles the step, or a part of it (jit_compile): its operations cannot be told apart"
numbers = itertools.count()
"""Names of preparations, one for each of this process."""


@dataclass(frozen=True)
class Traced:
    """The step of a program, traced with an iterator; see `Captured` for the names.

    fed: placeholders of what it takes beside, in their order.
    """

    concrete: Any
    graph_def: Any
    targets: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str
    handle: str
    fed: tuple[str, ...]
    given: Mapping[str, str]
    arguments: frozenset[str]
    written: Mapping[str, str]
    resources: Resources

    @property
    def captures(self) -> dict[str, Any]:
        """Captured values and handles, by the name of their placeholder."""
        return {inner.op.name: outer for outer, inner in self.concrete.graph.captures}


def traced(concrete: Any, resources: Resources, is_fixed: Callable[[Any], bool]) -> Traced:
    """Read a traced function that takes one iterator, and tensors beside it. Raises ProgramRefused.

    is_fixed: tells of a resource's handle whether nothing can change it. All others count as written: Python code of
    the program runs between steps.
    """
    if _has_xla(concrete.graph.as_graph_def()):
        raise ProgramRefused(XLA)
    variables = {resources.key(each.handle, each.name): each for each in concrete.graph.variables}
    given = given_of(concrete, resources)
    graph_def, stands_for = inlined(concrete.graph.as_graph_def())
    captures = {inner.op.name: outer for outer, inner in concrete.graph.captures}
    outputs: list[str] = [each.name for each in concrete.outputs]
    passed = [each for each in concrete.inputs if each.op.name not in captures]
    handles = [each.op.name for each in passed if each.dtype.name in ("resource", "variant")]
    if len(handles) != 1:
        raise ProgramRefused("the step takes a variable or a data set beside its iterator")
    if concrete.graph.deferred_external_captures:
        raise ProgramRefused("the step reads values of Python when it is called")
    [handle] = handles
    written = dict.fromkeys(variables, "the program between steps")
    written |= {key: "the program between steps" for name, key in given.items() if not is_fixed(captures[name])}
    given |= {handle: f"iterator {handle}"}
    reading = Reading(graph_def, given)
    takers = [
        each
        for each in reading.graph.get_operations()
        if each.type in SOURCES and each.inputs and reading.resource_of(each.inputs[0]) == given[handle]
    ]
    if not takers:
        raise ProgramRefused("the step takes elements within a loop or a condition of its graph, if it takes any")
    if len(takers) > 1:
        raise ProgramRefused(f"the step takes elements at {len(takers)} places of its graph")
    if takers[0].type not in ("IteratorGetNext", "IteratorGetNextSync"):
        raise ProgramRefused(f"the step takes its element by {takers[0].type}")
    return Traced(
        concrete=concrete,
        graph_def=graph_def,
        targets=tuple(each.name for each in concrete.graph.control_outputs),
        outputs=tuple(stands_for.get(name, name) for name in outputs),
        source=takers[0].name,
        handle=handle,
        fed=tuple(each.op.name for each in passed if each.op.name != handle),
        given=given,
        arguments=frozenset(captures) - given.keys(),
        written=written,
        resources=resources,
    )


Finish = Callable[[Mapping[str, Any], Sequence[Any]], Any]
"""Home's part of a step: a function of the tensors that it takes, by name, and of what the step takes beside."""


def _has_xla(graph_def: Any) -> bool:
    nodes = itertools.chain(graph_def.node, *(each.node_def for each in graph_def.library.function))
    return any(node.attr["_XlaMustCompile"].b for node in nodes if "_XlaMustCompile" in node.attr)


@dataclass(frozen=True)
class Split:
    """A step, cut once for all passes: its halves, and the call of home's."""

    traced: Traced
    partition: Partition
    halves: Halves
    finish: Finish


def split_of(step: Traced, opening: Opening, prices: Prices) -> Split:
    """Cut a step where it is cheapest. Raises ProgramRefused: nothing is worth moving."""
    graph = _graph(step, opening)
    sample = sample_of(opening, step.resources.key)
    if sample is not None:
        graph = _measured(step, opening, graph, sample)
    found = worthwhile(graph, prices)
    halves = halves_of(step.graph_def, found, step.targets)
    return Split(step, found, halves, _finish(step, halves))


def worthwhile(graph: Graph, prices: Prices) -> Partition:
    """Cut a graph where it is cheapest. Raises ProgramRefused: nothing is worth moving."""
    found = partition(graph, prices)
    if not found.moved:
        raise ProgramRefused("no part of a step that may move costs more than its way to a data worker")
    saved_us = found.home_us - found.left_us
    if not found.is_worth_it or saved_us < REQUEST_US:
        raise ProgramRefused(
            f"moving would save {saved_us / 1e3:.2f} of {found.home_us / 1e3:.2f} ms of a step: too little"
        )
    return found


def check_strategy(strategy: Any) -> None:
    """Raise ProgramRefused for a step that runs on several devices. strategy: one of tf.distribute."""
    if strategy.num_replicas_in_sync > 1 or "Default" not in type(strategy).__name__:
        raise ProgramRefused(f"{type(strategy).__name__} runs the step on several devices")


def moved_in_words(found: Partition, maps: Iterable[str]) -> str:
    """Return the types of what moves: maps of tf.data, then operations of the step, the dearest first."""
    nodes = sorted((found.graph.by_name[name] for name in found.moved), key=lambda node: -node.cost_us)
    ops = [*dict.fromkeys([*maps, *(each.op for each in nodes if each.op not in SOURCES)])]
    more = f" and {len(ops) - OPS_NAMED} more" if len(ops) > OPS_NAMED else ""
    return ", ".join(ops[:OPS_NAMED]) + more


def moved_us(split: Split, opening: Opening) -> float:
    """Return the CPU of one step that data workers take. Of this data set fewer maps may move than when it was cut."""
    source = split.partition.graph.by_name[split.traced.source]
    has_less = source.name in split.partition.moved and not opening.has_stage
    return split.partition.moved_us - (source.cost_us if has_less else 0.0)


def _graph(step: Traced, opening: Opening) -> Graph:
    """Return the graph of the step, with the maps that move as the operation that takes an element."""
    reading = Reading(step.graph_def, step.given, step.arguments, frozenset(step.fed))
    batch = _batch_size(opening)
    graph = read_graph(
        reading,
        targets=step.targets,
        fetched=step.outputs,
        written=step.written,
        size_of=lambda tensor: static_size(tensor, batch),
    )
    graph = with_guesses(graph)
    if not opening.has_stage:
        return graph
    import tensorflow as tf

    raw = [
        Tensor(f"tf.data: raw {place}", each.dtype.name, (each.shape.num_elements() or batch) * (each.dtype.size or 16))
        for place, each in enumerate(tf.nest.flatten(opening.source.element_spec))
    ]
    ops = _bodies(opening).values()
    cost_us = _calls(opening) * (CALL_US + sum(GUESSED_US.get(op, GUESS_US) for op in ops))
    return with_maps(graph, step.source, raw, cost_us)


def with_guesses(graph: Graph) -> Graph:
    """Return a graph with costs by type of operation."""
    return replace(graph, nodes=tuple(replace(each, cost_us=GUESSED_US.get(each.op, GUESS_US)) for each in graph.nodes))


def with_maps(graph: Graph, source: str, raw: Sequence[Tensor], cost_us: float) -> Graph:
    """Return a graph with raw tensors before the operation that takes an element, which runs the maps at a cost."""
    node = Node(name="tf.data: source", op="tf.data", effects=frozenset({Effect.SOURCE}), outputs=tuple(raw))
    taking = replace(
        graph.by_name[source],
        effects=frozenset({Effect.PURE}),
        inputs=tuple(each.name for each in raw),
        cost_us=cost_us,
    )
    return replace(graph, nodes=(node, *(taking if each.name == source else each for each in graph.nodes)))


def _calls(opening: Opening) -> int:
    """Return how often functions of the maps run for one raw element."""
    return len(opening.maps_before) * _batch_size(opening) + len(opening.maps_after)


def _bodies(opening: Opening) -> dict[str, str]:
    """Return the operations in the functions of the maps: their types, by name."""
    graphs = [each._map_func.function.graph.as_graph_def() for each in (*opening.maps_before, *opening.maps_after)]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for graph in graphs for each in graph.library.function for node in each.node_def]
    return {node.name: node.op for node in nodes}


def _batch_size(opening: Opening) -> int:
    import tensorflow as tf

    for each in (opening.batch, opening.dataset):
        value = None if each is None else tf.get_static_value(getattr(each, "_batch_size", None))
        if value is not None:
            return int(value)
    return UNKNOWN_DIMENSION


def _measured(step: Traced, opening: Opening, graph: Graph, sample: Sequence[Any]) -> Graph:
    """Return the graph with the costs and sizes of what may move, from runs of that part alone: they change nothing."""
    state = state_of(graph)
    names = measured_names(graph, state)
    prepare = preparing(step, step.graph_def, names, opening)
    sizes = {name: size_bytes(array_of(value)) for name, value in zip(names, prepare(*sample), strict=True)}
    found = trace(lambda: prepare(*sample))
    source = step.source if opening.has_stage else ""
    return with_measures(graph, state, found, sizes, source, _calls(opening), _bodies(opening))


def measured_names(graph: Graph, state: State) -> list[str]:
    """Return the tensors of the part that may move."""
    return [
        tensor.name
        for node in graph.nodes
        if node.name in state.movable | state.sources and node.op not in ("control flow", "tf.data")
        for tensor in node.outputs
        if tensor.crosses
    ]


def with_measures(
    graph: Graph,
    state: State,
    found: Trace,
    sizes: Mapping[str, int],
    source: str,
    calls: int,
    bodies: Collection[str],
) -> Graph:
    """Return a graph with measured costs and sizes of what may move.

    source: the operation that runs maps, "" if there are none; calls: runs of the maps for one raw element; bodies:
    the operations in them.
    """
    if not found.step_us:
        return graph

    def cost_us(node: Node) -> float:
        if node.name in state.movable:
            return sum(found.step_us.get(name, 0.0) for name in node.members or (node.name,))
        return node.cost_us

    nodes = [
        replace(
            node,
            outputs=tuple(replace(each, size_bytes=sizes.get(each.name, each.size_bytes)) for each in node.outputs),
            cost_us=cost_us(node),
        )
        for node in graph.nodes
    ]
    # the part's own process time has the price of a data set for each element, which tf.data pays once
    seen_us = found.step_us | found.data_us
    stage_us = calls * CALL_US + sum(seen_us.get(name, 0.0) for name in bodies)
    return replace(
        graph, nodes=tuple(replace(node, cost_us=stage_us) if node.name == source else node for node in nodes)
    )


def preparing(step: Traced, graph_def: Any, names: Sequence[str], opening: Opening) -> Any:
    """Return a function of raw tensors that gives tensors of the step, by name. It touches the real resources."""
    import tensorflow as tf

    specs = [tf.TensorSpec(each.shape, each.dtype) for each in tf.nest.flatten(opening.source.element_spec)]
    fixed = {step.source, step.handle, *step.fed, *step.captures}
    free = type(graph_def)(library=graph_def.library, versions=graph_def.versions)
    free.node.extend(node for node in graph_def.node if node.name not in fixed)
    for node in free.node:
        inputs = [each for each in node.input if not (each.startswith("^") and each[1:] in fixed)]
        del node.input[:]
        node.input.extend(inputs)
    part = needed_part(free, [name.partition(":")[0] for name in names])
    inputs = {"{}:{}".format(*address_of(each)) for node in part.node for each in node.input}

    def prepare(*raw: Any) -> list[Any]:
        with tf.name_scope("stretto"):
            elements = staged(opening, raw)
        graph = tf.compat.v1.get_default_graph()
        given = {f"{step.source}:{place}": each for place, each in enumerate(elements)}
        stands_for = {name: each for name, each in given.items() if name in inputs}
        stands_for |= {
            f"{name}:0": graph.capture(each) for name, each in step.captures.items() if f"{name}:0" in inputs
        }
        wanted = [name for name in names if name not in given]
        made = tf.graph_util.import_graph_def(part, input_map=stands_for, return_elements=wanted, name="")
        by_name = given | dict(zip(wanted, made, strict=True))
        return [tf.identity(by_name[name]) for name in names]

    function: Any = tf.function(prepare, autograph=False)
    return function.get_concrete_function(*specs)


def _finish(step: Traced, halves: Halves) -> Finish:
    """Return home's part, which returns what the step does."""
    import tensorflow as tf

    structure = step.concrete.structured_outputs
    leaves = tf.nest.flatten(structure, expand_composites=True)

    def packed(found: Iterator[Any]) -> Any:
        made = [None if each is None else next(found) for each in leaves]
        return tf.nest.pack_sequence_as(structure, made, expand_composites=True)

    if not halves.targets and all(name in halves.taken for name in step.outputs):  # home's part does nothing
        return lambda values, arguments: packed(iter([values[name] for name in step.outputs]))
    wrapped: Any = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(halves.second, name=""), [])
    present = {node.name for node in halves.second.node}
    captures = {name: each for name, each in step.captures.items() if name in present}
    places = [place for place, name in enumerate(step.fed) if name in present]
    outputs = [f"{halves.taken[name]}:0" if name in halves.taken else name for name in step.outputs]
    graph = wrapped.graph
    fetches = [*map(graph.get_tensor_by_name, outputs), *map(graph.get_operation_by_name, halves.targets)]
    names = [*halves.taken.values(), *(step.fed[place] for place in places), *captures]
    pruned = wrapped.prune([graph.get_tensor_by_name(f"{name}:0") for name in names], fetches)

    def finish(values: Mapping[str, Any], arguments: Sequence[Any]) -> Any:
        given = (*(values[name] for name in halves.taken), *(arguments[place] for place in places))
        return packed(iter(pruned(*given, *captures.values())))

    return finish


@dataclass(frozen=True)
class Prepared:
    """How one data set is prepared for a split step.

    names: tensors that a preparation gives; local: places of others in the raw element itself. used: places of the raw
    tensors that it needs. here: prepares at home.
    """

    preparation: GraphPreparation
    names: tuple[str, ...]
    local: Mapping[str, int]
    used: tuple[int, ...]
    here: Callable[[Sequence[Any]], list[Any]]


def prepared_for(split: Split, opening: Opening) -> Prepared:
    """Return the preparation of one data set. Raises ProgramRefused: it is too large for a lane."""
    step = split.traced
    outputs = {f"{step.source}:{place}": place for place in range(len(opening.dataset._flat_types))}
    local = {} if opening.has_stage else {name: outputs[name] for name in split.halves.taken if name in outputs}
    names = tuple(name for name in split.halves.taken if name not in local)
    concrete = preparing(step, split.halves.first, names, opening)
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
            tables.append(Table(f"{name}:0", *types))
            contents += [keys, values]
    if (total := sum(map(size_bytes, contents))) > CONTENTS_BYTES_MAX:
        raise ProgramRefused(
            f"its constants and tables have {total} bytes: data workers get at most {CONTENTS_BYTES_MAX}"
        )
    preparation = GraphPreparation(
        number=next(numbers),
        graph=graph_def.SerializeToString(),
        feeds=tuple(raw[place].name for place in used),
        fetches=tuple(each.name for each in concrete.outputs),
        types=tuple(each.dtype.name for each in concrete.outputs),
        constants=tuple(f"{name}:0" for name in constants),
        tables=tuple(tables),
        contents=tuple(contents),
    )
    return Prepared(preparation, names, local, used, lambda given: concrete(*given))


def _table(handle: Any, graph_def: Any, placeholder: str) -> tuple[Any, Any, tuple[str, str]]:
    """Return keys, values and types of a table. Raises ProgramRefused: it is none that can be copied."""
    import tensorflow as tf

    types = _table_types(graph_def, placeholder)
    if types is None:
        raise ProgramRefused(f"the types of the table {placeholder} cannot be told")
    keys, values = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=types[0], Tvalues=types[1])
    return array_of(keys), array_of(values), (types[0].name, types[1].name)


def _table_types(graph_def: Any, placeholder: str) -> Any:
    """Return the types of a table by the lookup that reads it, through the functions that pass its handle on."""
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
    """Return the bodies of a node's functions, with the name of the argument that an input becomes."""
    found: list[tuple[Any, str]] = []
    for value in node.attr.values():
        for called in [value.func, *value.list.func]:
            function = functions.get(called.name)
            if function is not None:
                arguments = function.signature.input_arg
                shift = len(arguments) - len(node.input)  # a map's captured inputs are the last of its arguments
                if 0 <= place + shift < len(arguments):
                    found.append((function.node_def, arguments[place + shift].name))
    return found
