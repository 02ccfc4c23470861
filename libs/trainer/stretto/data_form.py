"""The form of a task's batches: how `read` gives inputs, labels and weights, and how a model takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from .entry import Task, read_of
from .errors import DataError, ModelRefused
from .model import Options
from .model_keras import input_names, input_structure
from .readers import Batch
from .samples import (
    LABEL,
    WEIGHT,
    Leaf,
    Parts,
    array_of,
    check_samples,
    fill,
    leaves_of,
    named_inputs,
    parts_of,
    structure_of,
)


class DataForm:
    """Learned from the model and the first samples; the same for every batch.

    inputs: the leaves that the model is called with. first, first_targets: the first samples.
    """

    def __init__(self, task: Task, model: Any, options: Options) -> None:
        """Read the first samples. Raises ModelRefused, DataError."""
        self._task = task
        self._model = model
        self._is_functional = bool(getattr(model, "inputs", None))
        n = options.first_samples
        if n < 1:
            raise ModelRefused(
                "the dataset has no sample yet, and the model is adapted to the first ones; add a partition with "
                "samples before the job starts, or give the model an input 'rows'"
            )
        where = "the first samples"
        parts = self._parts(0, n, options.first_partition, where)
        if self._is_functional:
            self._names = input_names(model)
            self.inputs = [_leaf_of(name, tensor) for name, tensor in zip(self._names, model.inputs, strict=True)]
        else:
            self._structure = structure_of(parts.inputs)
            self.inputs = [_leaf_like(path, value, where) for path, value in leaves_of(parts.inputs)]
        if not self.inputs:
            raise DataError(f"{where} have no input beside the label")
        self._label_structure = structure_of(parts.labels)
        self.labels = [_leaf_like(path, value, where) for path, value in leaves_of(parts.labels)]
        if _takes_floats(task, model):
            self.labels = [_as_float(leaf) for leaf in self.labels]
        self._weight_structure = structure_of(parts.weights)
        self.weights = [_as_float(_leaf_like(path, value, where)) for path, value in leaves_of(parts.weights)]
        self.first = self._inputs_of(parts, where, 0)
        for array, leaf in zip(self.first, self.inputs, strict=True):
            check_samples(array, leaf.name, where, 0, n)
        self.first_targets = self._targets_of(parts, where, 0, n)

    # --- batches ------------------------------------------------------------------------------------------

    def read(self, start: int, length: int, partition: str, where: str) -> tuple[list[NDArray[Any]], Batch]:
        """Return the inputs of samples, and their labels and weights by name. Raises DataError."""
        parts = self._parts(start, length, partition, where)
        inputs = self._inputs_of(parts, where, start)
        for array, leaf in zip(inputs, self.inputs, strict=True):
            check_samples(array, leaf.name, where, start, length)
        return inputs, self._targets_of(parts, where, start, length)

    def _parts(self, start: int, length: int, partition: str, where: str) -> Parts:
        return parts_of(read_of(self._task, start, length, partition), where)

    def _inputs_of(self, parts: Parts, where: str, start: int) -> list[NDArray[Any]]:
        if self._is_functional:
            given = named_inputs(parts.inputs, self._names, where)
        else:
            given = _members(parts.inputs, self.inputs, where)
        return [array_of(value, leaf, where, start) for value, leaf in zip(given, self.inputs, strict=True)]

    def _targets_of(self, parts: Parts, where: str, start: int, length: int) -> Batch:
        batch: Batch = {}
        for kind, nested, leaves in ((LABEL, parts.labels, self.labels), (WEIGHT, parts.weights, self.weights)):
            values = _members(nested, leaves, where)
            for number, (value, leaf) in enumerate(zip(values, leaves, strict=True)):
                array = array_of(value, leaf, where, start)
                check_samples(array, leaf.name or kind, where, start, length)
                batch[numbered(kind, number)] = array
        return batch

    # --- tensors ------------------------------------------------------------------------------------------

    @property
    def target_specs(self) -> list[Any]:
        """The types of labels and weights, as `targets` gives them."""
        return [tf.TensorSpec((None, *leaf.shape), leaf.dtype) for leaf in [*self.labels, *self.weights]]

    @property
    def first_tensors(self) -> tuple[Any, Any, Any]:
        """The first samples: inputs, labels and weights as a model and its loss take them."""
        inputs = self.pack([tf.convert_to_tensor(each) for each in self.first])
        targets = [tf.convert_to_tensor(each) for each in self.targets(self.first_targets)]
        return (inputs, *self.split(targets))

    def targets(self, batch: Batch) -> list[NDArray[Any]]:
        """Return the labels of a batch, then its weights."""
        labels = [batch[numbered(LABEL, number)] for number in range(len(self.labels))]
        return labels + [batch[numbered(WEIGHT, number)] for number in range(len(self.weights))]

    def pack(self, inputs: Sequence[Any]) -> Any:
        """Return inputs in the form in which the model is called."""
        if self._is_functional:
            return keras.tree.pack_sequence_as(input_structure(self._model), list(inputs))
        return fill(self._structure, {leaf.path: value for leaf, value in zip(self.inputs, inputs, strict=True)})

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


def _leaf_of(name: str, tensor: Any) -> Leaf:
    if getattr(tensor, "ragged", False) or getattr(tensor, "sparse", False):
        kind = "ragged" if getattr(tensor, "ragged", False) else "sparse"
        raise ModelRefused(
            f"the input {name!r} is {kind}; make it a dense one of shape (None,), for which ragged data are padded "
            "with 0, and let mask_zero or weights leave the padding out"
        )
    return Leaf(name, (name,), str(tensor.dtype), tuple(tensor.shape[1:]))


def _leaf_like(path: tuple[str | int, ...], value: Any, where: str) -> Leaf:
    """Return the leaf of a subclassed model's input, a label or a weight, by its first samples."""
    array = array_of(value, None, where)
    name = ".".join(map(str, path))
    is_ragged = hasattr(value, "to_tensor") or hasattr(value, "dense_shape") or isinstance(value, list)
    is_ragged = is_ragged or (getattr(value, "dtype", None) == np.dtype(object) and array.ndim > 1)
    kind = "string" if array.dtype == object else str(array.dtype)
    shape = tuple(None if is_ragged and array.ndim == 2 else length for length in array.shape[1:])
    return Leaf(name, path, kind, shape)


def _takes_floats(task: Task, model: Any) -> bool:
    """Return whether losses and metrics are Keras' own, which convert labels to floats; others may index with them."""
    kind: Any = type(model)
    is_own = callable(getattr(task, "loss", None)) or kind.compute_loss is not keras.Model.compute_loss
    return not is_own and kind.compute_metrics is keras.Model.compute_metrics


def _as_float(leaf: Leaf) -> Leaf:
    """Return the leaf for numbers with a fraction, which the first samples may happen to have none of."""
    is_whole = leaf.dtype != "string" and np.dtype(leaf.dtype).kind in "biu"
    return replace(leaf, dtype="float32") if is_whole else leaf


def _members(nested: Any, leaves: Sequence[Leaf], where: str) -> list[Any]:
    found = dict(leaves_of(nested))
    paths = [leaf.path for leaf in leaves]
    if set(found) != set(paths):
        raise DataError(
            f"{where} gave {['.'.join(map(str, path)) for path in found]}, the first samples had "
            f"{[leaf.name for leaf in leaves]}; return the same in every batch"
        )
    return [found[path] for path in paths]
