"""Steps of a Keras model by Keras alone, on a batch, with which the steps of Stretto are compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from stretto_parameters.keys import restore as keys_of_stored

from ..engine.layout import F32
from ..model.keys import VALUE_BITS
from ..model.one_step import OtherIds, Plain, Reference, Ruled, Slices, Stepped, Trial, summed
from ..optimizers import Clipping
from .lookups import Cut, calling


class PlainKeras(Plain):
    """The user's own model with its own variables, as `keras.Model.train_step` trains it."""

    def __init__(
        self,
        loss: Callable[[], Any],
        trained: Mapping[str, Any],
        states: Mapping[str, Any],
        inputs: Collection[str],
        rules: Sequence[Ruled],
        together: Clipping,
    ) -> None:
        """Take a model. loss: calls it. states: variables by name; inputs: those tables among `trained`, whose rows are
        inputs of the model. trained, rules, together: as in `Plain`.
        """
        super().__init__(trained, rules, together)
        self._loss = loss
        self._states = states
        self._inputs = inputs

    def step(self) -> Stepped:
        """Train the batch once."""
        with tf.GradientTape() as tape:
            loss = self._loss()
        found: list[Any] = tape.gradient(loss, [*self._trained.values()])
        for number, name in enumerate(self._trained):
            if name in self._inputs and found[number] is not None:
                found[number] = tf.convert_to_tensor(found[number])  # of rows that a model does not look up itself
        gradients = dict(zip(self._trained, found, strict=True))
        for name, each in gradients.items():
            if each is not None:
                self.saw(name, tf.convert_to_tensor(each).numpy())
        if self._together:
            arrays = {name: _array(each, self._trained[name].numpy()) for name, each in gradients.items()}
            sums, _ = summed(arrays, self._together)
            gradients = {n: None if each is None else tf.convert_to_tensor(sums[n]) for n, each in gradients.items()}
        for each in self._rules:
            self._update(each.rule, {name: gradients[name] for name in each.names})
        both = {**self._trained, **self._states}
        return Stepped(float(loss), {name: np.array(each.numpy()) for name, each in both.items()})

    def _update(self, rule: Any | Reference, gradients: Mapping[str, Any]) -> None:
        if isinstance(rule, Reference):
            weights = {name: self._trained[name].numpy() for name in gradients}
            given = {name: _array(each, weights[name]) for name, each in gradients.items()}
            for name, value in rule.apply(weights, given).items():
                self._trained[name].assign(value)
        else:
            rule.apply([*gradients.values()], [self._trained[name] for name in gradients])


def loss_of_lookups(
    adapted: Any,
    form: Any,
    objective: Any,
    tables: Sequence[Any],
    trial: Trial,
    of_rows: Sequence[tuple[str, int, Any]],
) -> Any:
    """Return the loss of an adapted model whose layers look up in `tables`, as Keras' own do. Raises OtherIds.

    tables: of each layer a variable with the rows of the batch. of_rows: what they are, their table of the store, and
    their places there.
    """
    owners = [layer for group in adapted.tables.groups for layer in group.layers]
    cut = Cut({})
    for of, rows, (_, table, at) in zip(owners, tables, of_rows, strict=True):
        cut.tables[id(of.owner)] = keys_of_stored(trial.keys.tables[table].stored[at]) & ((1 << VALUE_BITS) - 1), rows
    leaves, lookups = trial.samples
    with calling(cut):
        inputs = [tf.convert_to_tensor(each) for each in leaves]
        output = adapted.call(inputs, training=True)
        labels, weights = form.split([tf.convert_to_tensor(each) for each in form.targets(trial.batch)])
        penalties = [of.penalty.of(each) for of, each in zip(owners, tables, strict=True) if of.penalty]
        loss = objective.loss(form.pack(inputs), labels, output, weights, penalties)
    for (layer, seen), (_, noted) in zip(cut.seen, lookups, strict=True):
        if not np.array_equal(seen, noted):
            raise OtherIds(f"layer {layer.name} looks up other ids")
    return loss


def fresh(optimizer: Any, clipping: Clipping) -> Any:
    """Return an unused optimizer like an unused one of Keras, with these limits."""
    limits = {"clipvalue": clipping.value, "clipnorm": clipping.norm, "global_clipnorm": clipping.global_norm}
    return type(optimizer).from_config(optimizer.get_config() | limits)


def table(rows: F32) -> Any:
    """Return a variable for the rows of a batch."""
    return keras.Variable(rows, name="rows")


def _array(gradient: Any, weights: F32) -> F32 | Slices:
    if gradient is None:
        return np.zeros_like(weights)
    if isinstance(gradient, tf.IndexedSlices):
        return Slices(gradient.values.numpy(), gradient.indices.numpy().astype(np.int64), len(weights))
    return gradient.numpy()
