"""The TensorFlow graph of a step, read as a graph of nodes with effects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..partition.contraction import contracted
from ..partition.effects import Effect, Summary, effect_of
from ..partition.graph import ANY, Graph, Node, Tensor
from .registry import is_stateless

_PASSING = frozenset(
    {"Identity", "StopGradient", "Switch", "RefSwitch", "Enter", "RefEnter", "Exit", "RefExit", "NextIteration"}
    | {"RefNextIteration", "RefIdentity"}
)
"""Operations whose output is the handle that is their first input."""
_BRANCHES = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}
"""Number of first inputs that are not passed to the functions of a branching operation."""


@dataclass
class Reading:
    """A graph without calls that is being read.

    given: resource that a placeholder stands for, by the placeholder's name. arguments: placeholders whose values the
    caller of a function passes, which are therefore not sources. fed: operations whose values Python code of the
    program passes.
    """

    graph_def: Any
    given: Mapping[str, str | int] = field(default_factory=dict[str, "str | int"])
    arguments: Collection[str] = ()
    fed: frozenset[str] = frozenset()
    _summaries: dict[str, Summary] = field(default_factory=dict[str, Summary])

    @cached_property
    def graph(self) -> Any:
        """The graph, imported into TensorFlow, which infers types and shapes."""
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(self.graph_def, name="")
        return graph

    @cached_property
    def functions(self) -> dict[str, Any]:
        """Functions of the graph, by name."""
        return {each.signature.name: each for each in self.graph_def.library.function}

    def node_of(self, operation: Any, size_of: Callable[[Any], int]) -> Node:
        """Return an operation as a node."""
        effects, reads, writes, detail = self.touched(operation)
        return Node(
            name=operation.name,
            op=operation.type,
            effects=effects,
            inputs=tuple(dict.fromkeys(tensor.name for tensor in operation.inputs)),
            controls=tuple(each.name for each in operation.control_inputs),
            outputs=tuple(
                Tensor(tensor.name, tensor.dtype.base_dtype.name, size_of(tensor), crosses(tensor))
                for tensor in operation.outputs
            ),
            reads=frozenset(map(str, reads)),
            writes=frozenset(map(str, writes)),
            about=f"{operation.name} ({operation.type}{': ' + detail if detail else ''})",
        )

    def touched(self, operation: Any) -> tuple[frozenset[Effect], frozenset[str | int], frozenset[str | int], str]:
        """Return an operation's effects, the resources that it reads and writes, and a detail for people."""
        effect = effect_of(operation.type)
        if effect is Effect.UNKNOWN and is_stateless(operation):
            effect = Effect.PURE
        if operation.name in self.given or operation.name in self.arguments:
            effect = Effect.HANDLE if operation.name in self.given else Effect.PURE
        if operation.name in self.fed:
            effect = Effect.FED
        nothing = frozenset[str | int]()
        handles = frozenset(self.resource_of(tensor) for tensor in operation.inputs if is_handle(tensor))
        if effect is Effect.CALLS:
            found = self._called(operation)
            return found.effects, found.reads, found.writes, found.detail
        if effect is Effect.READS:
            read = handles or {self.resource_of(operation.outputs[0])}
            return frozenset({Effect.UNKNOWN if ANY in read else effect}), frozenset(read), nothing, ""
        if effect in (Effect.WRITES, Effect.UNKNOWN, Effect.PYTHON, Effect.OUTSIDE):
            return frozenset({effect}), nothing, handles, ""
        return frozenset({effect}), nothing, nothing, ""

    def resource_of(self, tensor: Any) -> str | int:
        """Return the resource of a handle, followed back through operations that pass it on."""
        operation = tensor.op
        while operation.inputs and (operation.type in _PASSING or _gives_back(operation)):
            operation = operation.inputs[0].op
        if operation.name in self.given:
            return self.given[operation.name]
        if effect_of(operation.type) is Effect.HANDLE or operation.type in ("VariableV2", "Variable"):
            return shared_name(operation) or operation.name
        return operation.name if effect_of(operation.type) is Effect.UNKNOWN else ANY

    def _called(self, operation: Any) -> Summary:
        """Return the effects of all functions of an operation together; its inputs stand for their arguments."""
        names = [
            each.name for name in ("f", "then_branch", "else_branch", "cond", "body", "branches")
            for each in _functions_in(operation, name)
        ]  # fmt: skip
        inputs = list(operation.inputs)[_BRANCHES.get(operation.type, 0) :]

        def outer(key: str | int) -> str | int:
            if not isinstance(key, int):
                return key
            return self.resource_of(inputs[key]) if key < len(inputs) else ANY

        effects: set[Effect] = set()
        reads: set[str | int] = set()
        writes: set[str | int] = set()
        details: list[str] = []
        for name in names:
            found = self.summary(name)
            effects |= found.effects
            reads |= {outer(key) for key in found.reads}
            writes |= {outer(key) for key in found.writes}
            details += [found.detail] if found.detail else []
        if ANY in reads or not names:
            effects.add(Effect.UNKNOWN)
        return Summary(frozenset(effects), frozenset(reads), frozenset(writes), ", ".join(dict.fromkeys(details)))

    def summary(self, name: str) -> Summary:
        """Return the effects of a function of the graph."""
        if name not in self._summaries:
            # for a function that calls itself: its effects are not known yet
            self._summaries[name] = Summary(frozenset({Effect.UNKNOWN}))
            self._summaries[name] = (
                self._summarised(self.functions[name])
                if name in self.functions
                else Summary(frozenset({Effect.UNKNOWN}))
            )
        return self._summaries[name]

    def _summarised(self, function: Any) -> Summary:
        from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

        graph_def, _ = function_def_to_graph_def(function)
        graph_def.library.CopyFrom(self.graph_def.library)
        arguments = [each.name for each in function.signature.input_arg]
        return summary_of(graph_def, {name: place for place, name in enumerate(arguments)}, arguments)


def summary_of(graph_def: Any, given: Mapping[str, str | int], arguments: Collection[str]) -> Summary:
    """Return the effects of a whole graph. given: as in Reading. arguments: placeholders that the caller fills."""
    inside = Reading(graph_def, given, arguments)
    effects: set[Effect] = set()
    reads: set[str | int] = set()
    writes: set[str | int] = set()
    details: list[str] = []
    for operation in inside.graph.get_operations():
        found, read, written, detail = inside.touched(operation)
        effects |= found - {Effect.HANDLE}
        reads |= read
        writes |= written
        if found - {Effect.PURE, Effect.HANDLE, Effect.CHECK, Effect.READS}:
            details.append(detail or f"{operation.type} {operation.name}")
    return Summary(
        frozenset(effects) or frozenset({Effect.PURE}),
        frozenset(reads),
        frozenset(writes),
        ", ".join(dict.fromkeys(details)),
    )


def _gives_back(operation: Any) -> bool:
    """Return whether an operation writes a variable of TensorFlow 1, and returns a reference to it."""
    return effect_of(operation.type) is Effect.WRITES and any(each.dtype._is_ref_dtype for each in operation.outputs)


def is_handle(tensor: Any) -> bool:
    """Return whether a tensor names a resource."""
    return tensor.dtype.name == "resource" or tensor.dtype._is_ref_dtype


def crosses(tensor: Any) -> bool:
    """Return whether a tensor can be sent to another process: handles, variants and references to variables cannot."""
    return not tensor.dtype._is_ref_dtype and tensor.dtype.name not in ("resource", "variant")


def shared_name(operation: Any) -> str:
    """Return the name under which a resource is shared, "" for a resource without such a name."""
    try:
        return operation.get_attr("shared_name").decode()
    except ValueError:
        return ""


def _functions_in(operation: Any, name: str) -> list[Any]:
    try:
        value = operation.get_attr(name)
    except ValueError:
        return []
    return list(value) if isinstance(value, list) else [value]


def needed_for(graph: Any, names: Iterable[str]) -> set[str]:
    """Return the operations that a run of these operations needs."""
    found: set[str] = set()
    waiting = [graph.get_operation_by_name(name) for name in names]
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return found


def read_graph(
    reading: Reading,
    *,
    targets: Iterable[str],
    fetched: Iterable[str],
    written: Mapping[str, str],
    size_of: Callable[[Any], int],
) -> Graph:
    """Return the nodes that a run of these targets and fetched tensors needs.

    written: resources that other code writes.
    """
    fetched = list(fetched)
    needed = needed_for(reading.graph, [*targets, *(name.partition(":")[0] for name in fetched)])
    nodes = [
        reading.node_of(operation, size_of) for operation in reading.graph.get_operations() if operation.name in needed
    ]
    return contracted(Graph(tuple(nodes), frozenset(fetched), dict(written)))
