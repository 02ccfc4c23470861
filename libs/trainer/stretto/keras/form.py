"""The form of the batches of a Keras model: its inputs by name or position, and the tensors that it is called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ..errors import ModelRefused
from ..model.entry_point import Task
from ..model.example_batch import Leaf, fill, leaves_of, structure_of
from ..model.form import DataForm, leaf_like
from ..model.program import Options
from .program import input_names, input_structure


class KerasForm(DataForm):
    """The form of a Keras model, functional or subclassed."""

    def __init__(self, task: Task, model: Any, options: Options) -> None:
        """Read the first samples. Raises ModelRefused, DataError."""
        self._model = model
        self._is_functional = bool(getattr(model, "inputs", None))
        super().__init__(task, options, takes_floats=_takes_floats(task, model))

    def _learned(self, inputs: Any, where: str) -> list[Leaf]:
        if self._is_functional:
            self.names = input_names(self._model)
            pairs = zip(self.names, self._model.inputs, strict=True)
            return [_leaf_of(name, tensor) for name, tensor in pairs]
        self._structure = structure_of(inputs)
        return [leaf_like(path, value, where) for path, value in leaves_of(inputs)]

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

    def pack(self, inputs: Sequence[Any]) -> Any:
        """Return inputs in the form in which the model is called."""
        if self._is_functional:
            return keras.tree.pack_sequence_as(input_structure(self._model), list(inputs))
        return fill(self._structure, {leaf.path: value for leaf, value in zip(self.inputs, inputs, strict=True)})


def _leaf_of(name: str, tensor: Any) -> Leaf:
    if getattr(tensor, "ragged", False) or getattr(tensor, "sparse", False):
        kind = "ragged" if getattr(tensor, "ragged", False) else "sparse"
        raise ModelRefused(
            f"the input {name!r} is {kind}; make it a dense one of shape (None,), for which ragged data are padded "
            "with 0, and let mask_zero or weights leave the padding out"
        )
    return Leaf(name, (name,), str(tensor.dtype), tuple(tensor.shape[1:]))


def _takes_floats(task: Task, model: Any) -> bool:
    """Return whether losses and metrics are Keras' own, which convert labels to floats; others may index with them."""
    kind: Any = type(model)
    is_own = callable(getattr(task, "loss", None)) or kind.compute_loss is not keras.Model.compute_loss
    return not is_own and kind.compute_metrics is keras.Model.compute_metrics
