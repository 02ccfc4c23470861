"""Steps of sessions of TensorFlow 1: what a run asks of its graph, what of it moves, and how home runs the rest.

The program's graph is never edited: it may be final, and its operations draw seeds by their number. Home feeds the
tensors that crossed in the place of their computation, in the program's own session.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from typing import Any

from ..arrays import Arrays
from ..errors import ProgramRefused
from ..partition.cut import Prices
from ..partition.effects import HANDLES, INITIALIZERS, SOURCES, WRITES, Effect, effect_of
from ..partition.graph import Graph, Tensor
from ..partition.halves import halves_of, needed_part
from ..partition.normalise import address_of
from ..partition.partition import Partition, partition
from ..partition.reading import Reading, needed_for, read_graph, shared_name, static_size
from ..programs import captured
from ..programs.analysis import CALL_US, GUESS_US, GUESSED_US, UNKNOWN_DIMENSION
from ..programs.sessions import CHECKPOINTED
from ..programs.tracing import trace
from .graph_opening import PREFIX, TABLES, GraphOpening, open_in_graph, raw_name, stage_nodes
from .graphs import GraphPreparation, Runs, Table
from .splitting import (
    CONTENTS_BYTES_MAX,
    measured_names,
    numbers,
    with_guesses,
    with_maps,
    with_measures,
    worthwhile,
)
from .values import packed, unpacked

_TRAVELS = frozenset(
    {"bool", "float16", "float32", "float64", "string"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_VARIABLES = frozenset({"VariableV2", "Variable", "VarHandleOp", "TemporaryVariable"})
_INITIALIZERS = INITIALIZERS | {"LookupTableImportV2"}
"""Writes that give a table its content, where they are the only ones."""
_ITERATORS = frozenset({"Iterator", "IteratorV2", "OneShotIterator"})


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a run: names of tensors and operations, of tensors that it feeds, and its options."""

    fetched: tuple[str, ...]
    targets: tuple[str, ...]
    fed: tuple[str, ...] = ()
    options: bytes = b""

    @property
    def operations(self) -> list[str]:
        """The operations that are asked for, or whose tensors are."""
        return [*self.targets, *(name.partition(":")[0] for name in self.fetched if name not in self.fed)]


@dataclass(frozen=True, slots=True)
class Reached:
    """The needs of a run: operations that take elements, that initialise iterators, and all types of operations."""

    sources: tuple[str, ...]
    makers: tuple[str, ...]
    types: frozenset[str]


@dataclass
class SessionGraph:
    """A graph of sessions at one version of it. before: an older one, whose runs need what they needed.

    plans: of passes, by what they depend on; None: they take elements of the program's own iterator.
    """

    graph: Any
    version: int
    before: InitVar[SessionGraph | None] = None
    plans: dict[Any, Plan | None] = field(default_factory=dict[Any, "Plan | None"])
    _reached: dict[Asked, Reached] = field(default_factory=dict[Asked, Reached])

    def __post_init__(self, before: SessionGraph | None) -> None:
        if before is not None:
            self.plans, self._reached = before.plans, before._reached

    def reached(self, asked: Asked) -> Reached:
        """Return what a run needs; what is fed is not computed."""
        asked = replace(asked, options=b"")
        if asked not in self._reached:
            found = [self.graph.get_operation_by_name(name) for name in self.needed(asked, frozenset(asked.fed))]
            self._reached[asked] = Reached(
                tuple(each.name for each in found if each.type in SOURCES),
                tuple(each.name for each in found if each.type == "MakeIterator"),
                frozenset(each.type for each in found),
            )
        return self._reached[asked]

    def needed(self, asked: Asked, fed: frozenset[str], without: Collection[str] = ()) -> list[str]:
        """Return the operations that run when some tensors are fed. without: targets that are not asked for."""
        waiting = [self.graph.get_operation_by_name(name) for name in asked.targets if name not in without]
        waiting += [self.graph.get_tensor_by_name(name).op for name in asked.fetched if name not in fed]
        found: dict[str, None] = {}
        while waiting:
            operation = waiting.pop()
            if operation.name not in found:
                found[operation.name] = None
                waiting += [tensor.op for tensor in operation.inputs if tensor.name not in fed]
                waiting += operation.control_inputs
        return list(found)

    def iterator_of(self, source: str) -> Any:
        """Return the iterator from which an operation takes elements, or which it initialises."""
        operation = self.graph.get_operation_by_name(source)
        handle = operation.inputs[1 if operation.type == "MakeIterator" else 0].op
        while handle.type == "Identity":
            handle = handle.inputs[0].op
        return handle

    @cached_property
    def has_iterators(self) -> bool:
        """Return whether any operation takes elements or initialises an iterator."""
        return any(each.type in SOURCES or each.type == "MakeIterator" for each in self.graph.get_operations())

    @cached_property
    def graph_def(self) -> Any:
        return self.graph.as_graph_def()

    @cached_property
    def changing(self) -> dict[str, str]:
        """Resources that the program may write between steps: all but tables that are only initialised."""
        made: dict[str, str] = {}
        for each in self.graph.get_operations():
            if each.type in _VARIABLES or (each.type in HANDLES and each.type not in _ITERATORS):
                made[shared_name(each) or each.name] = "the program between steps"
        for key in self.initializers:
            made.pop(key, None)
        return made

    @cached_property
    def initializers(self) -> dict[str, str]:
        """The operation that gives each table its content, for tables that nothing else writes."""
        found: dict[str, list[Any]] = {}
        for each in self.graph.get_operations():
            if each.type in WRITES:
                for tensor in each.inputs:
                    if tensor.op.type in TABLES:
                        found.setdefault(shared_name(tensor.op) or tensor.op.name, []).append(each)
        return {
            key: writers[0].name
            for key, writers in found.items()
            if len(writers) == 1 and writers[0].type in _INITIALIZERS and self._is_plain(writers[0])
        }

    def _is_plain(self, initializer: Any) -> bool:
        before = [self.graph.get_operation_by_name(name) for name in needed_for(self.graph, [initializer.name])]
        plain = (Effect.PURE, Effect.CHECK, Effect.HANDLE)
        return all(each is initializer or effect_of(each.type) in plain for each in before)

    def check(self) -> None:
        """Raise ProgramRefused for a graph whose iterators cannot be told apart, or are saved."""
        for each in self.graph.get_operations():
            if each.type in ("SerializeIterator", "DeserializeIterator"):
                raise ProgramRefused(CHECKPOINTED.format(name=each.name))
            if each.type.startswith("IteratorFromStringHandle"):
                raise ProgramRefused(f"{each.name} chooses an iterator by a handle: the graph does not tell which")

    def table_content(self, name: str) -> tuple[Any, Any]:
        """Return keys and values of a table, made by its own initialisation in a graph apart."""
        import tensorflow as tf

        operation = self.graph.get_operation_by_name(name)
        part = needed_part(self.graph_def, [self.initializers[shared_name(operation) or name]])
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(_free(part), name="")
            initializer = graph.get_operation_by_name(self.initializers[shared_name(operation) or name])
            exported = tf.raw_ops.LookupTableExportV2(
                table_handle=initializer.inputs[0],
                Tkeys=operation.get_attr("key_dtype"),
                Tvalues=operation.get_attr("value_dtype"),
            )
            with tf.compat.v1.Session() as session:
                own_run(session, [], [initializer.name])
                keys, values = own_run(session, [each.name for each in exported])
        return as_array(keys, operation.get_attr("key_dtype")), as_array(values, operation.get_attr("value_dtype"))


def own_run(session: Any, fetches: Sequence[str], targets: Sequence[str] = (), feeds: Mapping[str, Any] = {}) -> Any:
    """Run a session without `Session.run`, which is hooked."""
    return callable_of(session, list(feeds), fetches, targets)(*feeds.values())


def callable_of(
    session: Any, feeds: Sequence[str], fetches: Sequence[str], targets: Sequence[str] = (), options: bytes = b""
) -> Any:
    """Return a function of the values of feeds, which gives those of fetches."""
    from tensorflow.core.protobuf.config_pb2 import CallableOptions, RunOptions

    return session._make_callable_from_options(
        CallableOptions(feed=feeds, fetch=fetches, target=targets, run_options=RunOptions.FromString(options))
    )


def as_array(value: Any, dtype: Any) -> Any:
    """Return what a session gives for a tensor as an array; texts as objects."""
    import numpy as np

    return np.asarray(value, object if dtype.name == "string" else None)


def _free(graph_def: Any) -> Any:
    """Take the places of nodes away, and ties of places."""
    for node in graph_def.node:
        node.device = ""
        if "_class" in node.attr:
            del node.attr["_class"]
    return graph_def


# --- the preparation --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SessionPreparation(GraphPreparation):
    """A preparation whose values at home are arrays: sessions feed arrays."""

    def arrays_of(self, values: Sequence[Any]) -> Arrays:
        """Return prepared values as arrays that travel."""
        return packed(values)

    def values_of(self, arrays: Arrays) -> list[Any]:
        """Return prepared values. Raises ArraysRefused."""
        return [*unpacked(arrays)]


@dataclass(frozen=True)
class Prepares:
    """Prepares tensors of a step by their names. used: places of the raw tensors that it needs."""

    preparation: SessionPreparation
    names: tuple[str, ...]
    used: tuple[int, ...]

    @cached_property
    def _runs(self) -> Runs:
        from tensorflow.python.eager import context

        with context.eager_mode():
            return Runs(self.preparation)

    def here(self, raw: Sequence[Any]) -> list[Any]:
        """Prepare a raw element in this process, by the code that lanes run."""
        from tensorflow.python.eager import context

        runs = self._runs
        with context.eager_mode():
            return [*unpacked(runs(packed([raw[place] for place in self.used])))]


def prepares(known: SessionGraph, part: Any, source: str, opening: GraphOpening, names: Sequence[str]) -> Prepares:
    """Return the preparation of tensors of a step. part: the part of the step's graph that makes them.

    Raises ProgramRefused: it is too large for a lane.
    """
    elements = known.graph.get_operation_by_name(source).outputs
    given = {
        (source, place): f"{PREFIX}element:{place}" if opening.has_stage else f"{raw_name(place)}:0"
        for place in range(len(elements))
    }
    graph_def = type(part)(library=part.library, versions=part.versions)
    for node in (*stage_nodes(opening), *part.node):
        if node.name == source:
            continue
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        del copy.input[:]
        for each in node.input:
            address = address_of(each)
            if address[0] != source:
                copy.input.append(each)
            elif address in given:
                copy.input.append(given[address])
    fetches = [given.get(address_of(name), name) for name in names]
    graph_def = _free(needed_part(graph_def, [each.partition(":")[0] for each in fetches]))
    tables, contents = _with_tables(known, graph_def)
    present = {node.name for node in graph_def.node}
    used = tuple(place for place in range(len(opening.raw)) if raw_name(place) in present)
    if (total := sum(map(captured.size_bytes, contents))) > CONTENTS_BYTES_MAX:
        raise ProgramRefused(f"its tables have {total} bytes: data workers get at most {CONTENTS_BYTES_MAX}")
    preparation = SessionPreparation(
        number=next(numbers),
        graph=graph_def.SerializeToString(),
        feeds=tuple(f"{raw_name(place)}:0" for place in used),
        fetches=tuple(fetches),
        types=tuple(known.graph.get_tensor_by_name(name).dtype.name for name in names),
        constants=(),
        tables=tables,
        contents=contents,
    )
    return Prepares(preparation, tuple(names), used)


def _with_tables(known: SessionGraph, graph_def: Any) -> tuple[tuple[Table, ...], tuple[Any, ...]]:
    """Put placeholders in the place of tables; return the tables, and their keys and values."""
    import tensorflow as tf

    tables: list[Table] = []
    contents: list[Any] = []
    for node in graph_def.node:
        if node.op not in TABLES:
            continue
        types = (tf.as_dtype(node.attr[name].type).name for name in ("key_dtype", "value_dtype"))
        tables.append(Table(f"{node.name}:0", *types))
        contents += known.table_content(node.name.removeprefix(f"{PREFIX}stage/"))
        node.op = "Placeholder"
        node.attr.clear()
        node.attr["dtype"].type = tf.resource.as_datatype_enum
    return tuple(tables), tuple(contents)


# --- the cut ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The part of the runs of one pass that moves, decided by its first run.

    local: places of tensors in the raw element itself.
    """

    opening: GraphOpening
    partition: Partition
    prepared: Prepares
    local: Mapping[str, int]

    @property
    def moved(self) -> frozenset[str]:
        """The operations that data workers run."""
        return self.partition.moved


def opening_of(known: SessionGraph, source: str, maker: str) -> GraphOpening:
    """Open the data set of a source. Raises ProgramRefused."""
    reading = Reading(needed_part(known.graph_def, [source, *([maker] if maker else [])]))
    return open_in_graph(reading, reading.graph.get_operation_by_name(source), maker, frozenset(known.changing))


def plan_of(
    known: SessionGraph, asked: Asked, source: str, opening: GraphOpening, raw: Sequence[Any], prices: Prices
) -> Plan:
    """Cut a run where it is cheapest, by costs measured on a raw element. Raises ProgramRefused."""
    part, graph = _graph(known, asked, source, opening)
    graph = with_guesses(graph)
    if opening.has_stage:
        ops = opening.bodies.values()
        cost_us = opening.calls * (CALL_US + sum(GUESSED_US.get(op, GUESS_US) for op in ops))
        graph = with_maps(graph, source, _raw_tensors(opening, raw), cost_us)
    graph = _measured(known, part, graph, source, opening, raw)
    found = worthwhile(graph, prices)
    halves = halves_of(part, found, asked.targets)
    local = {} if opening.has_stage else {name: address_of(name)[1] for name in halves.taken if _is_of(name, source)}
    names = [name for name in halves.taken if name not in local]
    plan = Plan(opening, found, prepares(known, part, source, opening, names), local)
    check_home(known, asked, source, halves.taken, found.moved)
    return plan


def taken_by(plan: Plan, known: SessionGraph, asked: Asked, source: str) -> tuple[tuple[str, ...], frozenset[str], Any]:
    """Return the tensors that another run of a pass takes, the operations that it leaves out, and its graph.

    It leaves out what the pass's first run does, and no more than it must.
    """
    opening = plan.opening
    part, graph = _graph(known, asked, source, opening)
    graph = replace(
        graph,
        nodes=tuple(
            replace(each, cost_us=_FIRST_US if each.name in plan.moved | {source} else 0.0) for each in graph.nodes
        ),
    )
    if opening.has_stage:
        raw = [Tensor(f"tf.data: raw {place}", dtype.name) for place, (dtype, _) in enumerate(opening.raw)]
        graph = with_maps(graph, source, raw, _FIRST_US)
    found = partition(graph, Prices(tensor_us=1.0, byte_us=0.0))
    halves = halves_of(part, found, asked.targets)
    check_home(known, asked, source, halves.taken, found.moved)
    return tuple(name for name in halves.taken if name not in asked.fed), found.moved, part


_FIRST_US = 1000.0
"""Cost that makes an operation move which moves in the first run of a pass, when another run is cut."""


def _is_of(name: str, source: str) -> bool:
    return address_of(name)[0] == source


def check_home(known: SessionGraph, asked: Asked, source: str, taken: Collection[str], moved: Collection[str]) -> None:
    """Raise ProgramRefused where home's part would take an element from the program's own iterator."""
    left = known.needed(asked, frozenset({*taken, *asked.fed}), {*moved, source})
    if source in left:
        raise ProgramRefused(f"what stays of the run comes after {source} by an edge of control")


def _graph(known: SessionGraph, asked: Asked, source: str, opening: GraphOpening) -> tuple[Any, Graph]:
    """Return the graph of a run, as it is and as nodes with effects."""
    part = needed_part(known.graph_def, asked.operations)
    reading = Reading(part, fed=frozenset(name.partition(":")[0] for name in asked.fed) - {source})
    batch = opening.batch_size or UNKNOWN_DIMENSION
    graph = read_graph(
        reading,
        targets=asked.targets,
        fetched=[name for name in asked.fetched if name not in asked.fed],
        written=known.changing,
        size_of=lambda tensor: static_size(tensor, batch),
    )
    if source not in graph.by_name:
        raise ProgramRefused(f"{source} takes elements within a loop or a branch of the graph")
    return part, _feedable(known, graph)


def _feedable(known: SessionGraph, graph: Graph) -> Graph:
    """Return a graph in which only tensors cross that a session can be fed, and edges of control never do.

    Home drops no edge of its graph: an operation that another one at home waits for must be at home, too.
    """
    before = {name for node in graph.nodes for name in node.controls}

    def crosses(tensor: Tensor) -> bool:
        return (
            tensor.crosses
            and tensor.dtype in _TRAVELS
            and known.graph.is_feedable(known.graph.get_tensor_by_name(tensor.name))
        )

    return replace(
        graph,
        nodes=tuple(
            replace(
                node,
                inputs=(*node.inputs, *(f"^{name}" for name in node.controls)),
                outputs=(
                    *(replace(each, crosses=crosses(each)) for each in node.outputs),
                    *([Tensor(f"^{node.name}", "control", crosses=False)] if node.name in before else []),
                ),
            )
            for node in graph.nodes
        ),
    )


def _raw_tensors(opening: GraphOpening, raw: Sequence[Any]) -> list[Tensor]:
    return [
        Tensor(f"tf.data: raw {place}", dtype.name, _priced_bytes(value))
        for place, ((dtype, _), value) in enumerate(zip(opening.raw, raw, strict=True))
    ]


def _priced_bytes(value: Any) -> int:
    """Return the bytes of an array that crosses, with the price of its texts: at home each is an object of Python."""
    texts = value.size if value.dtype.kind == "O" else 0
    return captured.size_bytes(value) + int(texts * _TEXT_US / Prices().byte_us)


_TEXT_US = 0.3
"""CPU of home for one text: to unpack it 0.19, to feed it 0.12 (512 texts of 8 bytes in an array, one core)."""


def _measured(
    known: SessionGraph, part: Any, graph: Graph, source: str, opening: GraphOpening, raw: Sequence[Any]
) -> Graph:
    from ..partition.state import state_of

    state = state_of(graph)
    names = [name for name in measured_names(graph, state) if opening.has_stage or not _is_of(name, source)]
    if not names:
        return graph
    prepared = prepares(known, part, source, opening, names)
    values = prepared.here(raw)
    sizes = {name: _priced_bytes(value) for name, value in zip(names, values, strict=True)}
    if not opening.has_stage:
        sizes |= {f"{source}:{place}": _priced_bytes(value) for place, value in enumerate(raw)}

    def run() -> None:
        prepared.here(raw)

    found = trace(run)
    return with_measures(graph, state, found, sizes, source if opening.has_stage else "", opening.calls, opening.bodies)
