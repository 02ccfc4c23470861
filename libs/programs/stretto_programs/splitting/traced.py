"""Steps of a program, traced with an iterator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ProgramRefused
from ..graphs.inlining import inlined
from ..graphs.reading import Reading
from ..graphs.refusals import of_strategy
from ..graphs.resources import Resources, given_of
from ..partition.effects import SOURCES

XLA = "XLA compiles the step, or a part of it (jit_compile): its operations cannot be told apart"


@dataclass(frozen=True)
class Traced:
    """A traced step that takes an iterator.

    source: operation that takes the element. handle: placeholder of the iterator. fed: placeholders of the other
    arguments, in their order. targets, given, arguments, written: as in `Captured`.
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
        """Captured values and handles, by the names of their placeholders."""
        return {inner.op.name: outer for outer, inner in self.concrete.graph.captures}


def traced(concrete: Any, resources: Resources, is_fixed: Callable[[Any], bool]) -> Traced:
    """Read a traced function that takes an iterator, and perhaps tensors. Raises ProgramRefused.

    is_fixed: returns whether the resource of a handle can never change. All other resources count as written, since
    Python code of the program runs between steps.
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


def _has_xla(graph_def: Any) -> bool:
    nodes = itertools.chain(graph_def.node, *(each.node_def for each in graph_def.library.function))
    return any(node.attr["_XlaMustCompile"].b for node in nodes if "_XlaMustCompile" in node.attr)


def check_strategy(strategy: Any, *, is_wrapped: bool = True) -> None:
    """Raise ProgramRefused for a step that a strategy of tf.distribute runs on several devices.

    is_wrapped: the strategy has wrapped the data set, also for one device.
    """
    if (is_wrapped or strategy.num_replicas_in_sync > 1) and (refusal := of_strategy(strategy)):
        raise ProgramRefused(refusal)
