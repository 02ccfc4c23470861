"""The form of a task's batches: how `read` gives inputs, labels and weights, whatever framework takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, ModelRefused
from ..readers import Batch
from .entry_point import Task, read_of
from .example_batch import LABEL, WEIGHT, Leaf, Parts, array_of, check_samples, fill, leaves_of, parts_of, structure_of
from .program import Options


class DataForm(ABC):
    """Learned from the model and the first samples; the same for every batch.

    inputs: the leaves that the model is called with. first, first_targets: the first samples; first_samples: how many.
    """

    inputs: list[Leaf]

    def __init__(self, task: Task, options: Options, *, takes_floats: bool) -> None:
        """Read the first samples. takes_floats: labels are converted to floats. Raises ModelRefused, DataError."""
        self._task = task
        self.first_samples = n = options.first_samples
        if n < 1:
            raise ModelRefused(
                "the dataset has no sample yet, and the model is adapted to the first ones; add a partition with "
                "samples before the job starts, or give the model an input 'rows'"
            )
        where = "the first samples"
        parts = self._parts(0, n, options.first_partition, where)
        self.inputs = self._learned(parts.inputs, where)
        if not self.inputs:
            raise DataError(f"{where} have no input beside the label")
        self._label_structure = structure_of(parts.labels)
        self.labels = [leaf_like(path, value, where) for path, value in leaves_of(parts.labels)]
        if takes_floats:
            self.labels = [_as_float(leaf) for leaf in self.labels]
        self._weight_structure = structure_of(parts.weights)
        self.weights = [_as_float(leaf_like(path, value, where)) for path, value in leaves_of(parts.weights)]
        self.first = self._inputs_of(parts, where, 0, n)
        self.first_targets = self._targets_of(parts, where, 0, n)

    @abstractmethod
    def _learned(self, inputs: Any, where: str) -> list[Leaf]:
        """Return the leaves of the inputs, by the model or by the first samples."""

    @abstractmethod
    def _inputs_of(self, parts: Parts, where: str, start: int, length: int) -> list[NDArray[Any]]:
        """Return the inputs of samples in the order of the leaves, checked. Raises DataError."""

    # --- batches ------------------------------------------------------------------------------------------

    def read(self, start: int, length: int, partition: str, where: str) -> tuple[list[NDArray[Any]], Batch]:
        """Return the inputs of samples, and their labels and weights by name. Raises DataError."""
        parts = self._parts(start, length, partition, where)
        return self._inputs_of(parts, where, start, length), self._targets_of(parts, where, start, length)

    def _parts(self, start: int, length: int, partition: str, where: str) -> Parts:
        return parts_of(read_of(self._task, start, length, partition), where)

    def _targets_of(self, parts: Parts, where: str, start: int, length: int) -> Batch:
        batch: Batch = {}
        for kind, nested, leaves in ((LABEL, parts.labels, self.labels), (WEIGHT, parts.weights, self.weights)):
            values = members(nested, leaves, where)
            for number, (value, leaf) in enumerate(zip(values, leaves, strict=True)):
                array = array_of(value, leaf, where, start)
                check_samples(array, leaf.name or kind, where, start, length)
                batch[numbered(kind, number)] = array
        return batch

    def targets(self, batch: Batch) -> list[NDArray[Any]]:
        """Return the labels of a batch, then its weights."""
        labels = [batch[numbered(LABEL, number)] for number in range(len(self.labels))]
        return labels + [batch[numbered(WEIGHT, number)] for number in range(len(self.weights))]

    def split(self, targets: Sequence[Any]) -> tuple[Any, Any]:
        """Return labels and weights, nested as the user has them; weights None if there are none."""
        count = len(self.labels)
        labels = {leaf.path: value for leaf, value in zip(self.labels, targets[:count], strict=True)}
        if not self.weights:
            return fill(self._label_structure, labels), None
        weights = {leaf.path: value for leaf, value in zip(self.weights, targets[count:], strict=True)}
        return fill(self._label_structure, labels), fill(self._weight_structure, weights)

    def labels_of(self, outputs: Sequence[str]) -> list[int]:
        """Return for each output of a model, by its name, the number of its labels."""
        names = [str(leaf.path[-1]) if leaf.path else "" for leaf in self.labels]
        if set(names) == set(outputs):
            return [names.index(name) for name in outputs]
        return list(range(len(outputs))) if len(outputs) == len(names) else [0] * min(len(outputs), len(names))


def numbered(kind: str, number: int) -> str:
    """Return the name of a label or weight in a batch: `label`, `label 1`, …"""
    return kind if number == 0 else f"{kind} {number}"


def leaf_like(path: tuple[str | int, ...], value: Any, where: str) -> Leaf:
    """Return the leaf of a subclassed model's input, a label or a weight, by its first samples."""
    array = array_of(value, None, where)
    name = ".".join(map(str, path))
    is_ragged = hasattr(value, "to_tensor") or hasattr(value, "dense_shape") or isinstance(value, list)
    is_ragged = is_ragged or (getattr(value, "dtype", None) == np.dtype(object) and array.ndim > 1)
    kind = "string" if array.dtype == object else str(array.dtype)
    shape = tuple(None if is_ragged and array.ndim == 2 else length for length in array.shape[1:])
    return Leaf(name, path, kind, shape)


def _as_float(leaf: Leaf) -> Leaf:
    """Return the leaf as float32 if the first samples are whole numbers: later samples may have fractions."""
    is_whole = leaf.dtype != "string" and np.dtype(leaf.dtype).kind in "biu"
    return replace(leaf, dtype="float32") if is_whole else leaf


def members(nested: Any, leaves: Sequence[Leaf], where: str) -> list[Any]:
    """Return the values of the leaves, in their order. Raises DataError if a batch has other leaves."""
    found = dict(leaves_of(nested))
    paths = [leaf.path for leaf in leaves]
    if set(found) != set(paths):
        raise DataError(
            f"{where} gave {['.'.join(map(str, path)) for path in found]}, the first samples had "
            f"{[leaf.name for leaf in leaves]}; return the same in every batch"
        )
    return [found[path] for path in paths]
