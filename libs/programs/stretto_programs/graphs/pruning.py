"""Tensors of a graph as a function of other tensors of it, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Function = Callable[[Sequence[Any]], Any]


class ImportedGraph:
    """A graph of which functions can be made."""

    def __init__(self, graph_def: Any) -> None:
        import tensorflow as tf

        self._wrapped: Any = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])

    def dtype_of(self, name: str) -> Any:
        """Return the type of a tensor."""
        return self._wrapped.graph.get_tensor_by_name(name).dtype

    def function(self, feeds: Sequence[str], fetches: Sequence[str], targets: Sequence[str] = ()) -> Function:
        """Return a function of tensors to tensors, which also runs the operations `targets`."""
        graph = self._wrapped.graph
        found = [*map(graph.get_tensor_by_name, fetches), *map(graph.get_operation_by_name, targets)]
        pruned = self._wrapped.prune([graph.get_tensor_by_name(name) for name in feeds], found)
        # called as `pruned(*given)`, TensorFlow first tries a signature that a pruned function does not have, and
        # prints every tensor for an error that nobody sees: that cost more than many a step
        return lambda given: pruned._call_with_flat_signature(given, {})
