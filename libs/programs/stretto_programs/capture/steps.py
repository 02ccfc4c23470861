"""A step from a traced function: its graph, its pipelines, and runs of it with iterators of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graphs.inlining import inlined
from ..graphs.pipeline_reading import datasets_of, pipeline_of
from ..graphs.pruning import ImportedGraph
from ..graphs.reading import Reading
from ..graphs.refusals import CHECKPOINTED, LOOP
from ..graphs.resources import Resources, given_of
from ..graphs.sizes import size_bytes
from ..partition.effects import SOURCES
from .captured import Captured, Pipeline

ELEMENTS = (
    "the step takes elements, which the program's Python code may look at: only what lies in tf.data can move, and "
    "nothing of the step"
)


SAMPLED = 16
"""Number of raw elements whose bytes are measured."""


@dataclass
class Seen:
    """Iterators of the program so far.

    skip: steps that run before the one to explain. checkpointed: iterators that the program saves itself. iterators: by
    the identity of their resource. is_looking: a hook itself calls TensorFlow now. passed: what each skipped step is
    told apart by: a function, an optimizer, a call of `fit`.
    """

    skip: int = 0
    last_iterator: Any = None
    checkpointed: list[Any] = field(default_factory=list[Any])
    iterators: dict[int, Any] = field(default_factory=dict[int, Any])
    is_looking: bool = False
    passed: list[Any] = field(default_factory=list[Any])

    def has_passed(self, step: Any) -> bool:
        return any(each is step for each in self.passed)

    def is_due(self, step: Any) -> bool:
        """Return whether a step that the program has met is the one to explain; else it runs."""
        if self.has_passed(step) or not self.skip:
            return not self.has_passed(step)
        self.skip -= 1
        self.passed.append(step)
        return False


def refused_step(kind: str, title: str, iterator: Any, refusals: Sequence[str]) -> Captured:
    import tensorflow as tf

    return Captured(
        kind=kind,
        title=title,
        graph_def=tf.Graph().as_graph_def(),
        targets=(),
        fetched=(),
        run=lambda: None,
        values=lambda names: {},
        pipelines=() if iterator is None else (pipeline_behind("", iterator, Resources()),),
        refusals=tuple(refusals),
    )


def captured(
    kind: str,
    title: str,
    concrete: Any,
    iterators: Sequence[Any],
    seen: Seen,
    run: Callable[[Mapping[int, Any]], Any],
) -> Captured:
    """Return the step of a traced function.

    run: runs the function, given other iterators in place of the program's. These repeat their data without end, so the
    program's own iterators stay where they are.
    """
    fresh = {id(each): iter(each._dataset.repeat()) for each in iterators}
    resources = Resources()
    variables = {resources.key(each.handle, each.name): each for each in concrete.graph.variables}
    given = given_of(concrete, resources)
    graph_def, stands_for = inlined(concrete.graph.as_graph_def())
    captures = [inner.op.name for _, inner in concrete.graph.captures]
    passed = [tensor for tensor in concrete.inputs if tensor.op.name not in captures]
    owners = {id(outer): inner.op.name for outer, inner in concrete.graph.captures}
    sources: dict[str, Any] = {owners[key]: each for key, each in seen.iterators.items() if key in owners}
    handles = [tensor for tensor in passed if tensor.dtype.name == "resource"]
    if len(handles) == len(iterators):  # otherwise variables are passed, too, and handles cannot be matched
        sources |= {tensor.op.name: each for tensor, each in zip(handles, iterators, strict=True)}
    given |= {name: f"iterator {name}" for name in sources}
    types = {tensor.dtype.name for tensor in passed}
    takes_elements = not sources and bool(types - {"resource", "variant"})
    used = _taking(Reading(graph_def, given), sources, given)
    if takes_elements and seen.last_iterator is not None:
        used = [("", seen.last_iterator)]
    checkpointed = {id(each) for each in seen.checkpointed}
    elements = iter(seen.last_iterator._dataset.repeat()) if takes_elements and seen.last_iterator is not None else None

    def one_step() -> None:
        if elements is not None:  # taking an element is part of a step, although the step is run with the same elements
            next(elements)
        run(fresh)

    outputs: list[str] = [tensor.name for tensor in concrete.outputs]
    return Captured(
        kind=kind,
        title=title,
        graph_def=graph_def,
        targets=tuple(operation.name for operation in concrete.graph.control_outputs),
        fetched=tuple(dict.fromkeys(stands_for.get(name, name) for name in outputs)),
        given=given,
        arguments=frozenset(captures) - given.keys(),
        written={name: "the training (it is trainable)" for name, each in variables.items() if each.trainable},
        pipelines=tuple(pipeline_behind(name, each, resources) for name, each in used),
        refusals=(CHECKPOINTED,) if any(id(each) in checkpointed for _, each in used) else (),
        notes=(*((ELEMENTS,) if takes_elements else ()), *((LOOP,) if "variant" in types else ())),
        step=concrete,
        iterators=tuple(iterators),
        run=one_step,
        values=_values(graph_def, concrete, [fresh[id(each)] for each in iterators]),
    )


def _taking(reading: Reading, sources: Mapping[str, Any], given: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return the names of the operations that take elements, each with its iterator."""
    iterators = {given[name]: each for name, each in sources.items()}
    return [
        (operation.name, iterators[str(key)])
        for operation in reading.graph.get_operations()
        if operation.type in SOURCES and operation.inputs
        if (key := reading.resource_of(operation.inputs[0])) in iterators
    ]


def pipeline_behind(source: str, iterator: Any, resources: Resources) -> Pipeline:
    datasets = datasets_of(iterator._dataset)
    return Pipeline(source, pipeline_of(iterator._dataset, resources.key), lambda place: _sampled(datasets[place]))


def _sampled(dataset: Any) -> Sequence[int] | None:
    """Return the mean bytes of each component of the first elements of a data set; None if there are no elements."""
    import tensorflow as tf

    rows = [
        [size_bytes(each.numpy()) for each in tf.nest.flatten(element, expand_composites=True)]
        for element in dataset.take(SAMPLED)
        if all(hasattr(each, "numpy") for each in tf.nest.flatten(element, expand_composites=True))
    ]
    return [sum(column) // len(rows) for column in zip(*rows, strict=True)] if rows else None


def _values(graph_def: Any, concrete: Any, iterators: Sequence[Any]) -> Callable[[Sequence[str]], dict[str, int]]:
    def values(names: Sequence[str]) -> dict[str, int]:
        captures = {inner.name: outer for outer, inner in concrete.graph.captures}
        handles = iter([each._iterator_resource for each in iterators])
        feeds = {
            tensor.name: captures[tensor.name] if tensor.name in captures else next(handles)
            for tensor in concrete.inputs
            if tensor.name in captures or tensor.dtype.name == "resource"
        }
        found = ImportedGraph(graph_def).function([*feeds], names)([*feeds.values()])
        return {name: size_bytes(value.numpy()) for name, value in zip(names, found, strict=True)}

    return values
