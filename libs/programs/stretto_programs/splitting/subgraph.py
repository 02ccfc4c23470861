"""A part of a split step as a function of raw tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graphs.inlining import address_of
from .halves import needed_part
from .opening import Opening
from .stage import staged
from .traced import Traced


def subgraph_of(step: Traced, graph_def: Any, names: Sequence[str], opening: Opening) -> Any:
    """Return a function of raw tensors that computes tensors of the step, by name.

    The function reads the program's own resources.
    """
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
        with tf.name_scope("stretto"):  # pyrefly: ignore[direct-abstract-base-instantiation]
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
