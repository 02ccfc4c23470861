"""The loss and the metrics of a Keras model: given by the task, compiled by the user, or binary cross-entropy."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..errors import ModelRefused
from ..model.adapted import Binary, name_of
from ..model.entry_point import Task
from ..model.program import Judged, Metrics
from .private import (
    adds_losses,
    compiled_loss,
    compiled_metrics,
    layers_of,
    losses_by_output,
    means_of_loss,
    options_of,
    total_loss,
)

_PASSED_THROUGH = {"Identity", "Reshape", "Squeeze", "ExpandDims", "Cast", "StopGradient"}
"""Operations that change no value of an output."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a model. is_sigmoid: it ends in a sigmoid; width: of its last dimension, None for no single one."""

    name: str
    width: int | None
    is_sigmoid: bool


def ends_in_sigmoid(output: Any) -> bool:
    """Return whether a tensor of a graph is the result of a sigmoid."""
    operation = output.op
    while operation.type in _PASSED_THROUGH and operation.inputs:
        operation = operation.inputs[0].op
    return operation.type == "Sigmoid"


def check_steps(model: Any) -> None:
    """Raise ModelRefused for a model whose own code takes the steps."""
    if getattr(model.train_step, "__func__", None) is not keras.Model.train_step:
        raise ModelRefused(
            f"{type(model).__name__} has its own train_step(), which updates parameters where they are not; put "
            "the loss into compute_loss(), or give the task loss(label, output)"
        )
    if getattr(model.test_step, "__func__", None) is not keras.Model.test_step:
        raise ModelRefused(
            f"{type(model).__name__} has its own test_step(), which no evaluation calls; put what it computes into "
            "compute_loss() or compute_metrics()"
        )


class Objective:
    """The loss of a model with any outputs, as a function of tensors."""

    def __init__(self, task: Task, model: Any, outputs: Sequence[Output], has_labels: bool) -> None:
        """Raises ModelRefused where nothing says what the loss is."""
        self._model = model
        self._outputs = outputs
        own = getattr(task, "loss", None)
        self._own = cast("Callable[[Any, Any], Any] | None", own if callable(own) else None)
        self.needs_inputs = type(model).compute_loss is not keras.Model.compute_loss
        is_compiled = compiled_loss(model) is not None
        self._is_compiled = self.needs_inputs or is_compiled or _adds_its_loss(model)
        check_steps(model)
        self.is_default = self._own is None and not self._is_compiled
        if self.is_default and (len(outputs) != 1 or outputs[0].width != 1):
            told = [f"{each.name} (width {each.width})" for each in outputs]
            raise ModelRefused(
                f"the model has the outputs {', '.join(told)} and no loss: compile it with one for each "
                "(model.compile(loss={...})), or give the task loss(label, output)"
            )
        if self.is_default and not has_labels:
            raise ModelRefused(
                "the model has no loss of its own, and read gave no labels: return (inputs, labels), or add the loss "
                "in the model's call (add_loss) and compile it without another one"
            )
        self._default = keras.losses.BinaryCrossentropy(from_logits=not outputs[0].is_sigmoid)

    def loss(self, inputs: Any, labels: Any, output: Any, weights: Any, extra: Sequence[Any]) -> Any:
        """Return the mean loss with all penalties. Called in the scope and in the mode of the model's call.

        extra: penalties that the model does not know of.
        """
        if self._own is None and self._is_compiled:
            total = total_loss(self._model, inputs, labels, output, weights)
            return tf.add_n([tf.cast(total, tf.float32), *extra])
        if self._own is not None:
            total = _weighted(self._own(_like(labels, output), output), weights)
        else:
            total = self._default(_like(labels, output), output, sample_weight=weights)
        penalties = [tf.cast(each, tf.float32) for each in self._model.losses]
        return tf.add_n([tf.cast(total, tf.float32), *penalties, *extra])

    @property
    def name(self) -> str:
        """Return what the loss is, by the name that its author gave it."""
        compiled = compiled_loss(self._model)
        if self._own is not None:
            return name_of(self._own)
        if self.needs_inputs:
            return f"{type(self._model).__name__}.compute_loss"
        found = [name_of(loss) for _, loss in losses_by_output(compiled)] if compiled is not None else []
        return " + ".join(dict.fromkeys(found)) or "add_loss"

    def binary(self, labels: Sequence[NDArray[Any]], label_of: Sequence[int]) -> Binary | None:
        """Return the first output with probabilities of 0/1 labels. label_of: the number of each output's labels."""
        losses = self._losses()
        for number, output in enumerate(self._outputs):
            if output.width != 1 or number >= len(label_of):
                continue
            found = labels[label_of[number]]
            is_binary = found.dtype != object and bool(((found == 0) | (found == 1)).all())
            if not is_binary and not self.is_default:  # by default labels must be 0 or 1, and `read` checks them
                continue
            loss = losses.get(number, losses.get(-1))
            if loss is not None:
                return Binary(number, label_of[number], bool(loss))
            is_only = self._own is not None and len(self._outputs) == 1
            if output.is_sigmoid or is_only:
                return Binary(number, label_of[number], not output.is_sigmoid)
        return None

    def _losses(self) -> dict[int, bool]:
        """Return the outputs with binary cross-entropy: whether they are logits. -1: all outputs."""
        if self.is_default:
            return {0: not self._outputs[0].is_sigmoid}
        compiled = compiled_loss(self._model)
        if self._own is not None or compiled is None:
            return {}
        names = [output.name for output in self._outputs]
        found: dict[int, bool] = {}
        for path, loss in losses_by_output(compiled):
            kinds = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
            function = getattr(loss, "fn", None)
            is_function = function in (keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy)
            if not isinstance(loss, kinds) and not is_function:
                continue
            is_logit = bool(getattr(loss, "from_logits", options_of(loss).get("from_logits", False)))
            place = path[0] if path else 0
            number = names.index(place) if place in names else place if isinstance(place, int) else -1
            found[number] = is_logit
        return found


def _adds_its_loss(model: Any) -> bool:
    """Return whether a model that was compiled without a loss adds one in its call, as models of pairs do."""
    layers = [layer for layer in layers_of(model) if layer.activity_regularizer is None]
    return bool(model.compiled) and any(adds_losses(layer) for layer in layers)


def _weighted(values: Any, weights: Any) -> Any:
    values = tf.convert_to_tensor(values)
    if weights is None:
        return tf.reduce_mean(values)
    if values.shape.rank == 0:
        raise ModelRefused(
            "the task's loss(label, output) is one number, and samples have weights: return one a sample"
        )
    weights = tf.reshape(tf.cast(keras.tree.flatten(weights)[0], values.dtype), (-1,))
    per_sample = tf.reduce_mean(tf.reshape(values, (tf.shape(weights)[0], -1)), axis=1)
    return tf.reduce_mean(per_sample * weights)


def _like(labels: Any, output: Any) -> Any:
    """Return a single label in the shape of a single output of width 1, as float32; others, and none, as they are."""
    if labels is None or keras.tree.is_nested(labels) or keras.tree.is_nested(output) or output.shape[-1] != 1:
        return labels
    if labels.shape.rank is not None and labels.shape.rank > len(output.shape):
        return labels
    return tf.reshape(tf.cast(labels, tf.float32), tf.shape(output))


class ModelMetrics(Metrics):
    """The metrics of a Keras model, over the samples that are added. One evaluation at a time."""

    _turn = threading.Lock()

    def __init__(self, model: Any) -> None:
        self._model = model
        self._turn.acquire()
        try:
            model.reset_metrics()
        except Exception as error:
            self._turn.release()  # nobody has the object to close it
            raise ModelRefused(f"reset_state() of a metric: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Let the next evaluation begin."""
        self._turn.release()

    def sums(self) -> dict[str, tuple[float, float]]:
        """Return total and count of each metric that is a mean: these add up over several workers."""
        results = self.results()
        return {
            name: (float(metric.total), float(metric.count))
            for name, metric in self._by_name().items()
            if name in results
            and isinstance(metric, keras.metrics.Mean)
            and type(metric).result is keras.metrics.Mean.result
        }

    @abstractmethod
    def _by_name(self) -> dict[str, Any]:
        """Return the metrics by the names of their results."""


class CompiledMetrics(ModelMetrics):
    """The metrics that the user compiled."""

    def add(self, judged: Judged) -> None:
        """Add a batch."""
        try:
            self._compiled.update_state(judged.labels, judged.outputs, judged.weights)
        except Exception as error:
            raise ModelRefused(f"metrics of model.compile: {type(error).__name__}: {error}") from error

    def results(self) -> dict[str, float]:
        """Return each metric by its name."""
        try:
            return _numbers(cast("Mapping[str, Any]", self._compiled.result()) if self._compiled.built else {})
        except Exception as error:
            raise ModelRefused(f"result() of a metric of model.compile: {type(error).__name__}: {error}") from error

    @property
    def _compiled(self) -> Any:
        return compiled_metrics(self._model)

    def _by_name(self) -> dict[str, Any]:
        metrics, results = self._compiled.metrics, self.results()
        return dict(zip(results, metrics, strict=True)) if len(results) == len(metrics) else {}


class ComputedMetrics(ModelMetrics):
    """The metrics that a model's own compute_metrics returns."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._found: dict[str, float] = {}

    def add(self, judged: Judged) -> None:
        """Add a batch."""
        given = {"x": judged.inputs, "y": judged.labels, "y_pred": judged.outputs, "sample_weight": judged.weights}
        try:
            self._found = _numbers(self._model.compute_metrics(**given))
        except Exception as error:
            raise ModelRefused(f"compute_metrics of the model: {type(error).__name__}: {error}") from error

    def results(self) -> dict[str, float]:
        """Return each metric by its name, but not Keras' means of the loss, which are not updated here."""
        names = {metric.name for metric in means_of_loss(self._model)}
        return {name: value for name, value in self._found.items() if name not in names}

    def _by_name(self) -> dict[str, Any]:
        compiled = compiled_metrics(self._model)
        metrics = [*self._model.metrics, *(compiled.metrics if compiled is not None else ())]
        found = {metric.name: metric for metric in metrics if metric is not compiled}
        try:
            return {name: metric for name, metric in found.items() if self._found.get(name) == float(metric.result())}
        except Exception as error:
            raise ModelRefused(f"result() of a metric of the model: {type(error).__name__}: {error}") from error


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in results.items() if np.ndim(value) == 0}
