"""Datasets of others as a source of samples: anything with a length and items by number, such as PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..errors import DataError
from . import Batch, check_range

Collate = Callable[[list[Any]], Any]


class MapStyle:
    """Random access to a map-style dataset: one with ``len(dataset)`` and ``dataset[i]``. ``size``: samples in it.

    collate: items -> a batch: arrays by name, ``label`` among them. Without it items are dicts, whose values are
    stacked by name. A ``tf.data`` dataset is taken if TensorFlow finds its elements by number, which it does for
    tensors in memory that are mapped, batched or taken from; others are refused with the remedy.

    Items must be the same at any time and in every process: without shuffling, augmentation or a state of their own.
    """

    def __init__(self, dataset: Any, collate: Collate | None = None) -> None:
        self._collate = collate or _stacked
        self._name = type(dataset).__name__
        self.size, self._items = _access(dataset, self._name)
        if self.size:
            first, again = self.read(0, 1), self.read(0, 1)
            changed = [name for name in first if not np.array_equal(first[name], again[name])]
            if changed:
                raise DataError(
                    f"item 0 of {self._name} gave two different values of {changed[0]!r}: a shard that is trained "
                    "again after a failure must be the same; take shuffling and random augmentation out of the dataset"
                )

    def read(self, start: int, length: int) -> Batch:
        """Return samples [start, start + length), collated."""
        check_range(start, length, self.size, self._name)
        # of no samples the shapes and types are those of the first one
        items = self._items(range(start, start + length) if length else range(min(1, self.size)))
        batch = self._collate(items)
        if not isinstance(batch, Mapping):
            raise DataError(
                f"collate gave {type(batch).__name__} for items of {self._name}; expected arrays by name, with 'label'"
            )
        arrays = {str(name): _array(values) for name, values in cast("Mapping[str, Any]", batch).items()}
        for name, values in arrays.items():
            if not values.ndim or len(values) != len(items):
                raise DataError(f"{name!r} has shape {values.shape} for {len(items)} samples; check collate")
        return arrays if length else {name: values[:0] for name, values in arrays.items()}


def _access(dataset: Any, name: str) -> tuple[int, Callable[[Sequence[int]], list[Any]]]:
    """Return the number of items, and a function that gets some of them. Raises DataError if items have no numbers."""
    remedy = "write the samples to Parquet once, and read them with stretto.readers.arrow.Arrow"
    if hasattr(dataset, "element_spec") and hasattr(dataset, "as_numpy_iterator"):
        return _tf_data(dataset, remedy)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"{name} has no length or no items by number: a worker reads any shard, and again after a failure; {remedy}"
        )
    if hasattr(dataset, "__getitems__"):  # PyTorch: many at a time
        return len(dataset), lambda numbers: list(dataset.__getitems__(list(numbers)))
    return len(dataset), lambda numbers: [dataset[number] for number in numbers]


def _tf_data(dataset: Any, remedy: str) -> tuple[int, Callable[[Sequence[int]], list[Any]]]:
    import tensorflow as tf

    size = int(dataset.cardinality())
    try:
        if size < 0:
            raise DataError(f"the tf.data dataset has an unknown or infinite number of elements; {remedy}")
        if size:
            tf.data.experimental.at(dataset, 0)
    except (NotImplementedError, tf.errors.OpError) as error:
        line = str(error).splitlines()[0][:200]
        raise DataError(f"the tf.data dataset has no random access ({line}); {remedy}") from error
    return size, lambda numbers: [tf.data.experimental.at(dataset, number) for number in numbers]


def _stacked(items: list[Any]) -> dict[str, Any]:
    if not all(isinstance(item, Mapping) for item in items):
        raise DataError(f"items are of {type(items[0]).__name__}; give collate=, which makes a dict of arrays of them")
    return {name: np.stack([_array(item[name]) for item in items]) for name in items[0]}


def _array(values: Any) -> Any:
    if hasattr(values, "detach"):  # a tensor of PyTorch
        values = values.detach().cpu()
    return np.asarray(values)
